"""The command `stemma`: serve, pull, migrate, simulate, bench.

It turns flags into settings and a user's mistakes into one line on standard error and exit code 1; a
traceback is always a fault of ours.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from sqlalchemy import make_url
from sqlalchemy.exc import SQLAlchemyError

from engine.errors import EngineError
from gateway.benches import UnknownBench, bench, run_program
from gateway.beside import WorkFailed
from gateway.launch import CannotServe, run_server, version
from gateway.logs import configure_logs
from gateway.pull import PullError, pull_default
from gateway.serving import AddressUnavailable, bind, run
from gateway.settings import BadSettings, Settings, load_settings
from gateway.store.migrate import upgrade

__all__ = ["main"]


class _UserError(Exception):
    """Something that the user can mend."""


_USER_ERRORS = (
    BadSettings,
    PullError,
    AddressUnavailable,
    CannotServe,
    WorkFailed,
    EngineError,
    UnknownBench,
    _UserError,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    parser = _parser()
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if given and given[0] in _PROGRAMS:  # all that follows, -h too, is the program's own
            return _PROGRAMS[given[0]](given[1:])
        options = parser.parse_args(given)
        settings = load_settings(options.config, _flags(options))
        _COMMANDS[options.command](settings)
    except _USER_ERRORS as error:
        print(f"stemma: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def serve(settings: Settings) -> None:
    """Fetch the default model if it is missing, migrate the database, and serve until a signal."""
    configure_logs(settings.log.format)
    with bind(settings.server.host, settings.server.port) as listener:
        model_path = _model_path(settings)
        migrate(settings)
        run(run_server(settings, model_path, listener))


def pull(settings: Settings) -> None:
    """Fetch the default model."""
    pull_default(settings.data / "models")


def migrate(settings: Settings) -> None:
    """Bring the database to the newest schema."""
    try:
        settings.data.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise _UserError(f"data: cannot make the folder {settings.data}: {error.strerror}") from None
    try:
        upgrade(settings.database_url)
    except SQLAlchemyError as error:
        place = make_url(settings.database_url).render_as_string(hide_password=True)
        raise _UserError(f"the database {place} cannot be used: {str(error).splitlines()[0]}") from None


def simulate(arguments: Sequence[str]) -> NoReturn:
    """Tell what a cache of another size would have found of a recorded load."""
    run_program("benchmarks.simulate", arguments)


_COMMANDS = {"serve": serve, "pull": pull, "migrate": migrate}
_PROGRAMS = {"simulate": simulate, "bench": bench}


def _model_path(settings: Settings) -> Path:
    if settings.model.path == "default":
        return pull_default(settings.data / "models")
    path = Path(settings.model.path)
    if not path.exists():
        raise _UserError(f"model.path: there is no file or folder {path}")
    return path


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="stemma", description="A chat gateway that computes no prefix twice."
    )
    parser.add_argument("--version", action="version", version=f"stemma {version()}")
    commands = parser.add_subparsers(dest="command", required=True)
    # for the list of commands alone: they read their own flags
    commands.add_parser("simulate", help=simulate.__doc__, add_help=False)
    commands.add_parser("bench", help="Measure something; without a name, say what can be measured.")
    for name, command in _COMMANDS.items():
        subparser = commands.add_parser(name, help=command.__doc__, description=command.__doc__)
        subparser.add_argument("--config", type=Path, help="a TOML file; see configs/default.toml")
        subparser.add_argument("--data", help="the folder for models, the database and the secret")
        if name == "serve":
            subparser.add_argument("--host")
            subparser.add_argument("--port", type=int)
            subparser.add_argument("--model", help="a GGUF file, a folder with safetensors, or default")
    return parser


def _flags(options: argparse.Namespace) -> dict[str, Any]:
    """The flags that were given, nested like the settings."""
    given = vars(options)
    tree = {
        "data": given.get("data"),
        "server": {"host": given.get("host"), "port": given.get("port")},
        "model": {"path": given.get("model")},
    }
    return _without_none(tree)


def _without_none(tree: dict[str, Any]) -> dict[str, Any]:
    pruned = {
        name: _without_none(value) if isinstance(value, dict) else value for name, value in tree.items()
    }
    return {name: value for name, value in pruned.items() if value is not None and value != {}}
