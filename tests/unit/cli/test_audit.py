"""`gpuyard audit --jsonl`: the whole audit log, as JSON lines."""

import json
from pathlib import Path

import pytest

from gpuyard.cli.audit import audit
from gpuyard.domain.errors import InvalidInputError


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the logs of a home with three files of 30 lines in all."""
    monkeypatch.setenv("GPUYARD_HOME", str(tmp_path))
    folder = tmp_path / "logs"
    folder.mkdir()
    names = ("audit.log.2", "audit.log.1", "audit.log")
    for number, name in enumerate(names):
        lines = [json.dumps({"at": 10 * number + i}) for i in range(10)]
        (folder / name).write_text("".join(f"{line}\n" for line in lines))
    return folder


def printed(capsys: pytest.CaptureFixture[str]) -> list[int]:
    return [json.loads(line)["at"] for line in capsys.readouterr().out.splitlines()]


def test_all_lines_of_all_files_are_json_lines(
    logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (logs / "audit.log").open("a") as file:
        file.write('{"at": 30, "cut off')
    audit(as_jsonl=True)
    assert printed(capsys) == list(range(30))
    audit(as_jsonl=True, lines=12)
    assert printed(capsys) == list(range(18, 30))


@pytest.mark.usefixtures("logs")
def test_one_form_at_a_time() -> None:
    with pytest.raises(InvalidInputError, match="--jsonl: does not go with --json"):
        audit(as_jsonl=True, as_json=True)
