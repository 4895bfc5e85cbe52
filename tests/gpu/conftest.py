"""What tests of compiled kernels may ask for."""

from collections.abc import Iterator

import pytest

from tests.kernels.aot import Compiler


@pytest.fixture(scope="session")
def compiler() -> Iterator[Compiler]:
    """For chips that are not here."""
    with Compiler() as started:
        yield started
