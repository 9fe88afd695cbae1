"""The plain table: columns line up, also with wide characters; nothing in a cell can
break a line.
"""

import re

import pytest

from gpuyard.cli import output
from gpuyard.cli.columns import width_of
from gpuyard.cli.output import print_fields, print_table, say_lines


def test_columns_line_up(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(
        ("NAME", "PRIO", "NOTE"),
        [("a", 3, None), ("訓練", 10, "x"), ("line\nbreak", 1, "\x1b[31m")],
        empty="",
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "NAME        PRIO  NOTE",
        "a              3  -",
        "訓練          10  x",
        "line break     1   [31m",
    ]


def test_empty(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("NAME",), [], empty="Nothing.")
    assert capsys.readouterr().out == "Nothing.\n"


@pytest.mark.parametrize("no_color", [False, True])
def test_colours_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, no_color: bool
) -> None:
    monkeypatch.setattr(output.sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    (
        monkeypatch.setenv("NO_COLOR", "1")
        if no_color
        else monkeypatch.delenv("NO_COLOR", raising=False)
    )
    print_table(("STATE",), [("running",)], empty="")
    plain = ["STATE", "running"]
    assert capsys.readouterr().out.splitlines() == (
        plain if no_color else ["\x1b[1mSTATE\x1b[0m", "\x1b[32mrunning\x1b[0m"]
    )


def test_a_table_wider_than_the_terminal_is_folded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output.sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "30")
    print_table(
        ("ID", "NOTE"), [("abc", "many words that do not fit on one line")], empty=""
    )
    lines = [
        re.sub(r"\x1b\[[0-9;]*m", "", line)
        for line in capsys.readouterr().out.splitlines()
    ]
    assert len(lines) > 2
    assert max(map(len, lines)) <= 30


COLUMNS = ("JOB", "NAME", "STATE", "SUBMITTED", "NODE", "PROGRESS")
ROWS = [
    ("856bf6da", "sweep", "running", "12s ago", None, "step 150 loss 2.367"),
    ("9ec3c889", "訓練", "failed", "1m04s ago", None, None),
]


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    text = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    return text.splitlines()


@pytest.mark.parametrize("room", range(12, 80))
def test_in_a_narrow_terminal_nothing_is_cut_off(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    monkeypatch.setattr(output.sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(room))
    print_table(COLUMNS, ROWS, empty="")
    lines = printed(capsys)
    assert max(map(width_of, lines)) <= room
    words = " ".join(lines).split()
    for row in ROWS:
        for word in " ".join(cell for cell in row if cell).split():
            assert word in words


@pytest.mark.parametrize(
    ("room", "expected"),
    [
        (
            60,
            [
                "JOB       NAME   STATE    SUBMITTED  PROGRESS",
                "856bf6da  sweep  running  12s ago    step 150 loss 2.367",
                "9ec3c889  訓練   failed   1m04s ago  -",
            ],
        ),
        (
            46,
            [
                "JOB       NAME   STATE    SUBMITTED",
                "856bf6da  sweep  running  12s ago",
                "          step 150 loss 2.367",
                "9ec3c889  訓練   failed   1m04s ago",
            ],
        ),
        (
            30,
            [
                "JOB 856bf6da  NAME sweep",
                "  STATE running",
                "  SUBMITTED 12s ago",
                "  PROGRESS step 150 loss 2.367",
                "JOB 9ec3c889  NAME 訓練",
                "  STATE failed",
                "  SUBMITTED 1m04s ago",
            ],
        ),
    ],
)
def test_a_narrow_terminal_gets_another_layout(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    room: int,
    expected: list[str],
) -> None:
    monkeypatch.setattr(output.sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(room))
    print_table(COLUMNS, ROWS, empty="")
    assert printed(capsys) == expected


def test_a_text_of_others_in_a_field_controls_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_fields({"host": "lab\x1b]0;title\x07\n2", "seed": None})
    assert capsys.readouterr().out == "host  lab ]0;title  2\n"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_lines_of_others_control_no_terminal_and_reach_a_file_as_they_are(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    is_terminal: bool,
) -> None:
    monkeypatch.setattr(output.sys.stdout, "isatty", lambda: is_terminal)
    text = "+one\tand\x1b[2J\r\n-two\n"
    say_lines(text)
    shown = capsys.readouterr().out
    assert shown == ("+one    and [2J \n-two\n" if is_terminal else text)
