"""The words of other tools."""

import pytest

from gpuyard.cli import main


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
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 2
    assert f"Did you mean `gpuyard {ours}`?" in capsys.readouterr().err
