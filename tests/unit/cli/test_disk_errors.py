"""What the command says of a disk that is full."""

import errno
import os

import pytest

from gpuyard.cli import main


def test_a_full_disk_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def write() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(main, "click_command", lambda: write)
    with pytest.raises(SystemExit) as left:
        main.main()
    assert left.value.code == 2
    assert capsys.readouterr().err == "gpuyard: No space left on device\n"
