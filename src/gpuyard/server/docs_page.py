"""`/openapi.json`, and `/docs`: what it says, as one page for people.

The page is made here and holds everything: no script, and nothing from another address.
"""

import base64
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from html import escape
from typing import Any

from fastapi import APIRouter, Depends, Response
from fastapi.responses import HTMLResponse

from gpuyard.server.parameters import refuse_unknown

Json = Mapping[str, Any]

_STYLE = """
:root { color-scheme: light dark; --line: #8885; --accent: #0a7d74; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: auto;
  padding: 1rem; }
code, pre { font: 14px/1.5 ui-monospace, monospace; overflow-wrap: anywhere; }
pre { border: 1px solid var(--line); padding: .5rem; white-space: pre-wrap; }
a { color: var(--accent); }
summary { cursor: pointer; padding: .4rem 0; }
summary b { display: inline-block; min-width: 4.5rem; color: var(--accent); }
details { border-top: 1px solid var(--line); }
table { border-collapse: collapse; width: 100%; margin: .5rem 0; }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .5rem; text-align: left;
  vertical-align: top; }
"""
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_POLICY = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; frame-ancestors 'none';"
    " base-uri 'none'; form-action 'none'"
)


def make_router(openapi: Callable[[], Json]) -> APIRouter:
    """The routes, which want no token.

    Both answers are made once: they are long, and anybody may ask for them.
    """
    router = APIRouter(include_in_schema=False, dependencies=[Depends(refuse_unknown)])

    @cache
    def page() -> bytes:
        return "\n".join(_page(openapi())).encode()

    @cache
    def document() -> bytes:
        return json.dumps(openapi(), ensure_ascii=False).encode()

    @router.get("/docs")
    async def docs() -> HTMLResponse:
        """Every call, with its parameters, its body and its answers."""
        return HTMLResponse(page(), headers={"Content-Security-Policy": _POLICY})

    @router.get("/openapi.json")
    async def openapi_document() -> Response:
        """The OpenAPI document."""
        return Response(document(), media_type="application/json")

    return router


def _page(document: Json) -> Iterator[str]:
    info = document["info"]
    title = f"{info['title']} {info['version']}"
    yield "<!doctype html>"
    yield '<html lang="en"><head><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>"
    yield f"<h1>{escape(title)}</h1>"
    yield (
        "<p>Every call wants the header <code>Authorization: Bearer TOKEN</code>, but"
        " <code>/healthz</code>. The token is in the file <code>token</code> in"
        " <code>$GPUYARD_HOME</code>. The server is at <code>$URL</code>. Programs read"
        ' <a href="/openapi.json">/openapi.json</a>.</p>'
    )
    sections = _sections(document)
    links = [f'<a href="#{_id(name)}">{escape(name)}</a>' for name in sections]
    yield f'<nav>{" · ".join(links)} · <a href="#schemas">schemas</a></nav>'
    for name, operations in sections.items():
        yield f'<h2 id="{_id(name)}">{escape(name.capitalize())}</h2>'
        for method, path, operation in operations:
            yield from _operation(method, path, operation)
    yield '<h2 id="schemas">Schemas</h2>'
    for name, schema in sorted(document["components"]["schemas"].items()):
        yield from _schema(name, schema)
    yield "</body></html>"


def _sections(document: Json) -> dict[str, list[tuple[str, str, Json]]]:
    """The operations by their tag."""
    sections: dict[str, list[tuple[str, str, Json]]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            section = sections.setdefault(operation["tags"][0], [])
            section.append((method.upper(), path, operation))
    return sections


def _operation(method: str, path: str, operation: Json) -> Iterator[str]:
    yield f"<details><summary><b>{method}</b><code>{escape(path)}</code> "
    yield f"{escape(operation['summary'])}</summary>"
    yield f"<p>{escape(operation.get('description', ''))}</p>"
    rows = [
        (
            f"<code>{escape(parameter['name'])}</code>",
            escape(parameter["in"]),
            _type(parameter["schema"]),
            "yes" if parameter.get("required") else "",
        )
        for parameter in operation.get("parameters", [])
    ]
    yield from _table(("parameter", "in", "type", "required"), rows)
    body = operation.get("requestBody")
    if body:
        yield f"<p>Body: {_content(body['content'])}</p>"
    answers = [
        (escape(status), escape(answer["description"]), _content(answer["content"]))
        for status, answer in operation["responses"].items()
        if "content" in answer
    ]
    yield from _table(("status", "meaning", "answer"), answers)
    yield f"<pre>{escape(_command(method, path, operation))}</pre></details>"


def _command(method: str, path: str, operation: Json) -> str:
    """The call as a command for a shell."""
    words = ["curl"]
    if method != "GET":
        words.append(f"-X {method}")
    if operation.get("security"):
        words.append('-H "Authorization: Bearer $(cat $GPUYARD_HOME/token)"')
    if "requestBody" in operation:
        words.append("-H 'Content-Type: application/json' -d @body.json")
    return " ".join([*words, f'"$URL{path}"'])


def _schema(name: str, schema: Json) -> Iterator[str]:
    yield f'<details id="{_id(name)}"><summary><code>{escape(name)}</code></summary>'
    yield f"<p>{escape(schema.get('description', ''))}</p>"
    if "enum" in schema:
        yield f"<p>{_type(schema)}</p>"
    required = schema.get("required", [])
    rows = [
        (
            f"<code>{escape(field)}</code>",
            _type(kind),
            "yes" if field in required else "",
            escape(kind.get("description", "")),
        )
        for field, kind in schema.get("properties", {}).items()
    ]
    yield from _table(("field", "type", "required", "meaning"), rows)
    yield "</details>"


def _content(content: Json) -> str:
    shown = [
        f"<code>{escape(media)}</code> {_type(described.get('schema', {}))}"
        for media, described in content.items()
    ]
    return "<br>".join(shown)


def _type(schema: Json) -> str:
    """A schema in a few words; a named one is a link."""
    if reference := schema.get("$ref"):
        name = reference.rpartition("/")[2]
        return f'<a href="#{_id(name)}">{escape(name)}</a>'
    if choices := schema.get("anyOf"):
        return " or ".join(dict.fromkeys(_type(choice) for choice in choices))
    if values := schema.get("enum"):
        return " or ".join(
            f"<code>{escape(json.dumps(value))}</code>" for value in values
        )
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {})) or 'any'}"
    return escape(str(schema.get("type", "")))


def _cells(tag: str, cells: Iterable[str]) -> str:
    return "".join(f"<{tag}>{cell}</{tag}>" for cell in cells)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """A table of cells that are HTML; nothing when there are no rows."""
    lines = [f"<tr>{_cells('td', row)}</tr>" for row in rows]
    if lines:
        head = _cells("th", heads)
        yield f"<table><tr>{head}</tr>{''.join(lines)}</table>"


def _id(name: str) -> str:
    return escape(name.lower().replace(" ", "-"), quote=True)
