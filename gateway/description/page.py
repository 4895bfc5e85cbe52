"""The OpenAPI document as one page for readers, with nothing fetched from anywhere and no script in it."""

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

__all__ = ["as_page"]

Schema = Mapping[str, Any]

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
code, .method { font-family: ui-monospace, monospace; }
.method { display: inline-block; min-width: 4.5rem; font-weight: 600; }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 1.5rem; }
td, th { border-bottom: 1px solid #8884; padding: .25rem .5rem; text-align: left; vertical-align: top; }
section { margin: 2.5rem 0; }
:root { color-scheme: light dark; }
"""


def as_page(document: Schema) -> str:
    """HTML: the operations first, then every schema that they name."""
    info = document["info"]
    operations = [
        (method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    return "".join(
        [
            f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(info["title"])}</title>',
            f"<style>{_STYLE}</style><h1>{escape(info['title'])} {escape(info['version'])}</h1>",
            f'<p>{escape(info["summary"])} As data: <a href="openapi.json">openapi.json</a>.</p><ul>',
            *[f"<li><a href='#{each[2]['operationId']}'>{_name(*each[:2])}</a></li>" for each in operations],
            "</ul>",
            *[_operation(*each) for each in operations],
            "<h2>Schemas</h2>",
            *[_schema(name, each) for name, each in sorted(document["components"]["schemas"].items())],
            "</html>",
        ]
    )


def _name(method: str, path: str) -> str:
    return f'<span class="method">{method}</span> <code>{escape(path)}</code>'


def _operation(method: str, path: str, operation: Schema) -> str:
    rows = [
        *[("in the " + each["in"], each["name"], _kind(each["schema"])) for each in operation["parameters"]],
        *[("body", media, _kind(each["schema"])) for media, each in _contents(operation.get("requestBody"))],
        *[
            (status, media, _kind(each["schema"]))
            for status, answer in operation["responses"].items()
            for media, each in _contents(answer)
        ],
    ]
    key = "" if operation["security"] else " Needs no key."
    return (
        f'<section id="{operation["operationId"]}"><h3>{_name(method, path)}</h3>'
        f"<p>{escape(operation['summary'])}{key}</p>{_table(rows)}</section>"
    )


def _contents(part: Schema | None) -> Iterator[tuple[str, Schema]]:
    yield from ({} if part is None else part.get("content", {})).items()


def _schema(name: str, schema: Schema) -> str:
    required = schema.get("required", ())
    rows = [
        (field, "required" if field in required else "", _kind(each))
        for field, each in schema.get("properties", {}).items()
    ]
    described = escape(schema.get("description", ""))
    return f'<section id="{escape(name)}"><h3>{escape(name)}</h3><p>{described}</p>{_table(rows)}</section>'


def _table(rows: list[tuple[str, str, str]]) -> str:
    """The first two cells of a row are text, the third is HTML."""
    cells = [f"<tr><td><code>{escape(a)}</code><td>{escape(b)}<td>{html}" for a, b, html in rows]
    return f"<table>{''.join(cells)}</table>" if cells else ""


def _kind(schema: Schema) -> str:
    """What a value may be, in a few words of HTML."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " or ".join(_kind(each) for each in schema[several])
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return " or ".join(f"<code>{escape(repr(value))}</code>" for value in values)
    kind = schema.get("type", "anything")
    if kind == "array":
        return f"array of {_kind(schema.get('items') or {})}"
    return escape(str(kind)) + _limits(schema)


def _limits(schema: Schema) -> str:
    said = [
        f"{words} {schema[name]:,}"
        for name, words in (
            ("minimum", "at least"),
            ("exclusiveMinimum", "more than"),
            ("maximum", "at most"),
        )
        if name in schema
    ]
    return f", {' and '.join(said)}" if said else ""
