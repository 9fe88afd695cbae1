"""A wrong value of an option: the error names it, and what would be right."""

import pytest
from typer.testing import CliRunner

from gpuyard.cli.main import app


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("llm a hi --priority 9", "'--priority': it is '9'; it must be at most 5"),
        ("llm a hi --priority 0", "'--priority': it is '0'; it must be at least 1"),
        (
            "llm a --max-tokens x",
            "'--max-tokens': it is 'x'; it must be a valid integer",
        ),
        (
            "batch submit s x --priority 9",
            "'--priority': it is '9'; it must be at most 5",
        ),
        ("up --port 70000", "'--port': it is '70000'; it must be at most 65535"),
    ],
)
def test_it_is_named_with_what_is_right(command: str, said: str) -> None:
    done = CliRunner().invoke(app, command.split())
    assert (done.exit_code, said in done.output) == (2, True), done.output
