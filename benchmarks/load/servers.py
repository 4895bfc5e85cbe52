"""The flags that name servers: NAME=URL@MODEL, and NAME=VALUE for what belongs to one of them."""

import argparse
from collections.abc import Mapping, Sequence

from benchmarks.flags import api_url, json_object
from benchmarks.load.client import Server
from benchmarks.load.options import BadOptions

__all__ = ["add_servers", "commands_of", "servers_of"]


def add_servers(parser: argparse.ArgumentParser) -> None:
    """Add them."""
    who = parser.add_argument_group("who is asked")
    for flag, form, help_ in (
        ("--server", "NAME=URL@MODEL", "one of them; ratios are to the first"),
        ("--start", "NAME=COMMAND", "start it so before each of its runs, without a shell, and end it after"),
        ("--extra", "NAME=JSON", "more fields of its bodies"),
        ("--key", "NAME=KEY", "its API key"),
    ):
        who.add_argument(flag, action="append", default=[], metavar=form, type=_named, help=help_)
    who.add_argument(
        "--no-ignore-eos", action="append", default=[], metavar="NAME", help="it refuses `ignore_eos`"
    )


def servers_of(options: argparse.Namespace) -> dict[str, Server]:
    """The servers by name, in the order given. Raises BadOptions."""
    addresses = _unique(options.server, "--server")
    if not addresses:
        raise BadOptions("--server NAME=URL@MODEL: name at least one")
    keys, extras = (_of_servers(options, name, addresses) for name in ("key", "extra"))
    for name in options.no_ignore_eos:
        _known(name, "--no-ignore-eos", addresses)
    return {
        name: _server(
            address,
            key=keys.get(name, "none"),
            extra=extras.get(name, "{}"),
            ignores_eos=name not in options.no_ignore_eos,
            timeout=options.timeout,
        )
        for name, address in addresses.items()
    }


def commands_of(options: argparse.Namespace) -> dict[str, str]:
    """What starts them, by name; a server without a command is up already. Raises BadOptions."""
    return _of_servers(options, "start", _unique(options.server, "--server"))


def _server(address: str, *, key: str, extra: str, ignores_eos: bool, timeout: float) -> Server:
    url, at, model = address.rpartition("@")
    try:
        if not (at and model):
            raise ValueError("no @MODEL")
        return Server(api_url(url), model, key, json_object(extra), ignores_eos, timeout)
    except (ValueError, argparse.ArgumentTypeError) as error:
        raise BadOptions(f"--server {address}, --extra {extra}: {error}") from None


def _of_servers(options: argparse.Namespace, name: str, addresses: Mapping[str, str]) -> dict[str, str]:
    found = _unique(getattr(options, name), f"--{name}")
    for server in found:
        _known(server, f"--{name}", addresses)
    return found


def _known(name: str, flag: str, addresses: Mapping[str, str]) -> None:
    if name not in addresses:
        raise BadOptions(f"{flag}: no --server has the name {name!r}")


def _unique(pairs: Sequence[tuple[str, str]], flag: str) -> dict[str, str]:
    if len(dict(pairs)) < len(pairs):
        raise BadOptions(f"{flag}: a name was given twice")
    return dict(pairs)


def _named(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise argparse.ArgumentTypeError(f"{text} is not NAME=VALUE")
    return name, value
