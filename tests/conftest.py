"""What every test may ask for."""

import os
import signal
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

# Without a GPU Triton's kernels run in its interpreter, which is chosen when their modules are imported.
os.environ.setdefault("TRITON_INTERPRET", "0" if torch.cuda.is_available() else "1")

# Processes that compile at once may write over each other's files of Numba's cache, and load another's code:
# each worker of `make test` has a cache of its own.
if (worker := os.environ.get("PYTEST_XDIST_WORKER")) is not None:
    os.environ["NUMBA_CACHE_DIR"] = str(Path(__file__).parents[1] / "build" / f"kernels-{worker}")

# Shells let what they start in the background ignore interrupts, and so would all that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Machines differ in speed, so no example has a deadline; a soak asks for more: --hypothesis-profile soak
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("soak", parent=settings.get_profile("default"), max_examples=5000)
settings.load_profile("default")

REPOSITORY = Path(__file__).parent.parent

collect_ignore = ["clients"]  # in an environment of their own: `make test-clients`


@pytest.fixture(scope="session")
def default_model_path() -> Path:
    """The default model's file, which `make pull` fetches."""
    path = Path(
        os.environ.get("STEMMA_TEST_MODEL", REPOSITORY / "data/models/SmolLM2-135M-Instruct.Q4_1.gguf")
    )
    assert path.is_file(), f"{path} is missing: run `make pull`"
    return path


@pytest.fixture
def anyio_backend() -> str:
    """Asynchronous tests run on asyncio."""
    return "asyncio"
