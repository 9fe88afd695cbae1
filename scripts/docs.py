"""Builds the site of the documents in `build/site`, for `make docs`.

The pages of `docs/` are copied to `build/pages`. The pages that describe an interface
(commands, settings, HTTP) are written there from the code, so they are never out of
date. Then Zensical builds the site, and fails on a dead link.
"""

import ast
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from openapi import description
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from typer.core import TyperGroup

from gpuyard.cli.main import app
from gpuyard.cli.plugins import PluginCommand
from gpuyard.config.settings import Settings

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "build/pages"
# Pages that live beside `docs/`, and the names that they have in the site.
OUTSIDE = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}


def main() -> int:
    """Assemble the pages, then build the site; the exit status of the build."""
    copy_pages()
    reference = PAGES / "reference"
    (reference / "commands.md").write_text("\n".join(command_page()))
    (reference / "settings.md").write_text("\n".join(settings_page()))
    (reference / "http.md").write_text("\n".join(http_page()))
    (reference / "modules.md").write_text("\n".join(module_page()))
    zensical = Path(sys.executable).with_name("zensical")
    command = [zensical, "build", "--clean", "--strict", "--config-file", "mkdocs.yml"]
    built = subprocess.run(command, cwd=ROOT, check=False)
    if built.returncode == 0:
        print("The site is in build/site; open build/site/index.html.")
    return built.returncode


def copy_pages() -> None:
    """Copy `docs/` and the pages beside it, with links that suit the new places."""
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(ROOT / "docs", PAGES)
    for source, name in OUTSIDE.items():
        text = (ROOT / source).read_text()
        (PAGES / name).write_text(text.replace("](docs/", "]("))
    for page in PAGES.rglob("*.md"):
        text = page.read_text()
        for source, name in OUTSIDE.items():
            text = text.replace(f"](../{source})", f"]({name})")
            text = text.replace(f"](../../{source})", f"](../{name})")
        page.write_text(text)


# --- Commands -----------------------------------------------------------------------


def command_page() -> Iterator[str]:
    """The reference of the command `gpuyard`, from its own help texts."""
    root = typer.main.get_group(app)
    yield "# Commands\n"
    yield "`gpuyard COMMAND --help` prints the same.\n"
    yield from describe_group(root, root.context_class(root, info_name="gpuyard"))


def describe_group(group: TyperGroup, context: Any) -> Iterator[str]:
    """Each command of a group, those of its own groups included."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        if isinstance(command, PluginCommand):
            command = command.open()
        inner = command.context_class(command, info_name=name, parent=context)
        yield from describe_command(command, inner)
        if isinstance(command, TyperGroup):
            yield from describe_group(command, inner)


def describe_command(command: Any, context: Any) -> Iterator[str]:
    """One command: its usage, what it does, its arguments and options."""
    depth = context.command_path.count(" ") + 1
    yield f"{'#' * depth} `{context.command_path}`\n"
    yield f"{command.help or ''}\n"
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"```text\n{context.command_path} {usage}\n```\n"
    records = [
        parameter.get_help_record(context) for parameter in command.get_params(context)
    ]
    rows = [record for record in records if record and "--help" not in record[0]]
    yield from table(("option", "meaning"), [(code(row[0]), row[1]) for row in rows])


# --- Settings -----------------------------------------------------------------------


def settings_page() -> Iterator[str]:
    """The reference of `gpuyard.toml`, from the classes that read it."""
    yield "# Settings\n"
    yield (
        "Settings are in `gpuyard.toml` in `$GPUYARD_HOME` (default `~/.gpuyard`). An"
        " environment variable comes before the file: `GPUYARD_SERVER__PORT=8400` is"
        " `port` in the section `[server]`. The server reads both when it starts.\n"
    )
    for name, field in Settings.model_fields.items():
        section = model_of(field)
        if section is None:
            continue
        yield f"## `[{name}]`\n"
        yield f"{paragraphs(section)}\n"
        if section:
            yield from table(
                ("setting", "type", "default"), list(setting_rows(section))
            )


def setting_rows(section: type[BaseModel]) -> Iterator[tuple[str, ...]]:
    """A row for each setting of a section."""
    schema = section.model_json_schema()
    for name, field in section.model_fields.items():
        shown = type_name(schema["properties"].get(field.alias or name, {}), schema)
        default = "required" if field.is_required() else code(default_of(field))
        yield code(name), shown, default


def default_of(field: FieldInfo) -> str:
    """A setting's default, as it is written in TOML."""
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is None:
        return "unset"
    return json.dumps(value, default=str)


def model_of(field: FieldInfo) -> type[BaseModel] | None:
    """The class of a section, when it is a section with fields of its own."""
    kind = field.annotation
    is_section = isinstance(kind, type) and issubclass(kind, BaseModel)
    return kind if is_section else None


# --- HTTP ---------------------------------------------------------------------------


def http_page() -> Iterator[str]:
    """The reference of the HTTP interface, from its OpenAPI description."""
    document = description()
    yield "# HTTP API\n"
    yield (
        "Every call needs the header `Authorization: Bearer TOKEN`, except `/healthz`."
        " The token is in the file `token` in `$GPUYARD_HOME`. An error is a"
        " `Problem` (RFC 9457) with a stable `code`. A running server has the same"
        " description at `/docs` and `/openapi.json`.\n"
    )
    sections: dict[str, list[str]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            lines = sections.setdefault(operation["tags"][0], [])
            lines += describe_operation(method, path, operation)
    for name, lines in sections.items():
        yield f"## {name.capitalize()}\n"
        yield from lines
    yield "## Schemas\n"
    for name, schema in sorted(document["components"]["schemas"].items()):
        if not name.startswith("Body_"):
            yield from describe_schema(name, schema)


def describe_operation(method: str, path: str, operation: Any) -> Iterator[str]:
    """One call: what it does, its parameters, its body and its answer."""
    yield f"### `{method.upper()} {path}`\n"
    yield f"{operation.get('description', operation['summary'])}\n"
    rows = [
        (
            code(parameter["name"]),
            parameter["in"],
            type_name(parameter["schema"]),
        )
        for parameter in operation.get("parameters", [])
    ]
    yield from table(("parameter", "in", "type"), rows)
    if body := operation.get("requestBody"):
        yield f"Body: {content_types(body['content'])}\n"
    for status, answer in operation["responses"].items():
        if status != "default" and "content" in answer:
            yield f"Answer {status}: {content_types(answer['content'])}\n"


def describe_schema(name: str, schema: Any) -> Iterator[str]:
    """One schema: its fields, or its values."""
    yield f"### {name}\n"
    yield f"{schema.get('description', '')}\n"
    if "enum" in schema:
        yield f"One of {', '.join(code(str(value)) for value in schema['enum'])}.\n"
    required = schema.get("required", [])
    rows = [
        (code(field), type_name(kind), "yes" if field in required else "")
        for field, kind in schema.get("properties", {}).items()
    ]
    yield from table(("field", "type", "required"), rows)


def content_types(content: Any) -> str:
    """The media types of a body, with their schemas."""
    shown = [
        f"`{media}`, {type_name(described.get('schema', {})) or 'any'}"
        for media, described in content.items()
    ]
    return "; ".join(shown)


def type_name(schema: Any, inside: Any = None) -> str:
    """A JSON schema in a few words.

    A named schema is a link to its description, or, `inside` a schema that defines it,
    its values or "table".
    """
    if reference := schema.get("$ref"):
        name = reference.rpartition("/")[2]
        if inside:
            return type_name(inside["$defs"][name], inside).replace("object", "table")
        described = not name.startswith("Body_")
        return f"[{name}](http.md#{name.lower()})" if described else name
    if choices := schema.get("anyOf"):
        names = [type_name(choice, inside) for choice in choices]
        return " or ".join(dict.fromkeys(names))
    if "enum" in schema:
        return " or ".join(code(json.dumps(value)) for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {type_name(schema.get('items', {}), inside) or 'any'}"
    return str(schema.get("type", ""))


# --- Modules ------------------------------------------------------------------------


def module_page() -> Iterator[str]:
    """Every module with the first sentence of its docstring, by package."""
    yield "# Modules\n"
    yield "Each module of `src/gpuyard/`, in the words of its docstring.\n"
    source = ROOT / "src/gpuyard"
    for package in sorted(path for path in source.iterdir() if path.is_dir()):
        files = sorted(package.rglob("*.py"))
        rows = [
            (code(str(file.relative_to(package))), first_sentence(file))
            for file in files
            if package.name != "templates" and "versions" not in file.parts
        ]
        described = [row for row in rows if row[1]]
        if described:
            yield f"## `{package.name}/`\n"
            yield from table(("module", "what it does"), described)


def first_sentence(file: Path) -> str:
    """The first sentence of a module's docstring."""
    docstring = ast.get_docstring(ast.parse(file.read_text())) or ""
    paragraph = " ".join(docstring.partition("\n\n")[0].split())
    sentence = re.match(r".+?[.](?= [A-Z]|$)", paragraph)
    return sentence[0] if sentence else paragraph


# --- Markdown -----------------------------------------------------------------------


def table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> Iterator[str]:
    """A Markdown table; nothing when there are no rows."""
    if not rows:
        return
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for row in rows:
        cells = [re.sub(r"\s+", " ", cell).replace("|", "\\|") for cell in row]
        yield f"| {' | '.join(cells)} |"
    yield ""


def code(text: str) -> str:
    """Text as code."""
    return f"`{text}`"


def paragraphs(described: type) -> str:
    """A class's docstring, without its indentation."""
    return "\n".join(line.strip() for line in (described.__doc__ or "").splitlines())


if __name__ == "__main__":
    sys.exit(main())
