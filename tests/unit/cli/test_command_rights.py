"""Each command, and the request that says who may use it."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from gpuyard.cli.main import app
from gpuyard.cli.plugins import PluginCommand
from tests.support.command_rights import LOCAL, REQUESTS

PAGE = Path(__file__).parents[3] / "docs/guides/users.md"


def commands() -> Iterator[str]:
    """Every command by its words, without `gpuyard`; also a group that does something
    by itself.
    """
    root = typer.main.get_group(app)
    yield from _inside(root, root.context_class(root, info_name="gpuyard"))


def _inside(command: Any, context: Any) -> Iterator[str]:
    if not isinstance(command, TyperGroup) or command.invoke_without_command:
        yield context.command_path.removeprefix("gpuyard ")
    if not isinstance(command, TyperGroup):
        return
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        if isinstance(inner, PluginCommand):
            inner = inner.open()
        assert inner is not None
        made = inner.context_class(inner, info_name=name, parent=context)
        yield from _inside(inner, made)


def test_each_command_has_its_request_or_needs_none() -> None:
    assert set(commands()) == LOCAL | set(REQUESTS)
    assert not LOCAL & set(REQUESTS)


def test_each_request_of_a_command_is_in_the_table_of_rights() -> None:
    rows = re.findall(r"^\| `([A-Z]+ /\S+)` \| \w+ \|$", PAGE.read_text(), re.M)
    assert set(REQUESTS.values()) - set(rows) == set()
