"""What somebody sees who does not know the commands yet."""

import pytest

from gpuyard.cli import main


def test_the_list_of_commands_cuts_no_sentence_off(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["gpuyard", "--help"])
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main.main()
    assert "..." not in capsys.readouterr().out.partition("Commands:")[2]


def exit_code() -> object:
    """How the command in `sys.argv` ends."""
    with pytest.raises(SystemExit) as ended:
        main.main()
    return ended.value.code


@pytest.mark.parametrize(
    ("word", "ours"), [("ps", "jobs"), ("stop", "cancel"), ("tail", "logs -f")]
)
def test_who_types_the_word_of_another_tool_is_told_ours(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    word: str,
    ours: str,
) -> None:
    monkeypatch.setattr("sys.argv", ["gpuyard", word, "x"])
    assert exit_code() == 2
    assert f"Did you mean `gpuyard {ours}`?" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["run", "submit"])
def test_who_types_an_option_of_python_is_told_what_to_type(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr("sys.argv", ["gpuyard", command, "-m", "package.train"])
    assert exit_code() == 2
    assert "`gpuyard run python -m package.train`" in capsys.readouterr().err


@pytest.mark.parametrize("group", ["batch", "models", "schedule", "secret"])
def test_every_group_has_the_word_list(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, group: str
) -> None:
    monkeypatch.setattr("sys.argv", ["gpuyard", group, "list", "--help"])
    assert exit_code() == 0
    assert "List " in capsys.readouterr().out
