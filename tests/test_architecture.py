"""The house's rules about its own source, read from the imports."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers.utils import is_kernels_available

REPOSITORY = Path(__file__).parent.parent
ROOMS = ("gateway", "engine", "prefix_cache", "kernels", "migrations")
MAY_IMPORT = {
    "gateway": {"gateway", "engine", "migrations"},
    "engine": {"engine", "prefix_cache", "kernels"},
    "prefix_cache": {"prefix_cache"},
    "kernels": {"kernels"},
    "migrations": {"migrations", "gateway"},
}
PUBLIC_ENGINE = {
    "engine.cache_messages",
    "engine.client",
    "engine.deep_threads",
    "engine.errors",
    "engine.gguf",
    "engine.messages",
    "engine.sequence",
}
OF_OFFLINE = {"engine.local"}  # an engine in the script's own process


def sources(room: str) -> list[Path]:
    return sorted((REPOSITORY / room).rglob("*.py"))


def imports(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively"
            yield node.lineno, node.module or ""


@pytest.mark.parametrize("room", ROOMS)
def test_imports_run_downwards(room: str) -> None:
    upwards = [
        f"{path}:{line} imports {module}"
        for path in sources(room)
        for line, module in imports(path)
        if module.split(".")[0] in ROOMS and module.split(".")[0] not in MAY_IMPORT[room]
    ]

    assert sources(room)
    assert upwards == []


def test_the_gateway_knows_only_the_engines_public_modules() -> None:
    private = [
        f"{path}:{line} imports {module}"
        for path in sources("gateway")
        for line, module in imports(path)
        if module.split(".")[0] == "engine"
        and module not in PUBLIC_ENGINE | (OF_OFFLINE if path.name == "offline.py" else set())
    ]

    assert private == []


@pytest.mark.parametrize("room", ROOMS)
def test_no_import_stands_inside_a_function(room: str) -> None:
    inside = [
        f"{path}:{inner.lineno}"
        for path in sources(room)
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for inner in ast.walk(function)
        if isinstance(inner, ast.Import | ast.ImportFrom)
    ]

    assert inside == []


@pytest.mark.parametrize("room", ROOMS)
def test_every_module_says_what_it_owns(room: str) -> None:
    silent = [str(path) for path in sources(room) if not ast.get_docstring(ast.parse(path.read_text()))]

    assert silent == []


def test_only_the_settings_read_the_environment() -> None:
    """And the client and the benches, which hand it on to the processes that they start."""
    readers = [
        str(path.relative_to(REPOSITORY))
        for room in ROOMS
        for path in sources(room)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
    ]

    assert set(readers) <= {"gateway/settings.py", "engine/client.py", "gateway/benches.py"}


def test_the_readme_names_every_file() -> None:
    tree = (REPOSITORY / "README.md").read_text().split("## Where things are")[1]
    rooms = (*ROOMS, "scripts")
    files = {path.name for room in rooms for path in sources(room) if path.name != "__init__.py"}

    assert {name for name in files if f"{name} " not in tree} == set()


def test_our_kernels_are_not_taken_for_the_package_of_that_name() -> None:
    """transformers would fetch kernels of its own from a hub if it thought that the package was there."""
    assert not is_kernels_available()
