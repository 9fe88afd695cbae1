"""Where the code of an invitation comes from."""

from pathlib import Path

import pytest

from gpuyard.client.joining import code_in
from gpuyard.domain.errors import InvalidInputError


def test_the_code_is_what_the_file_holds(tmp_path: Path) -> None:
    file = tmp_path / "code"
    file.write_text(" print.secret\n")
    assert code_in(str(file), None) == "print.secret"


@pytest.mark.parametrize(
    ("content", "typed", "fault"),
    [
        (None, None, "cannot be read: No such file"),
        ("\n", None, "is empty"),
        ("print.secret", "print.secret", "comes with a CODE on the command line"),
    ],
)
def test_a_file_without_a_code_and_two_codes_are_refused(
    content: str | None, typed: str | None, fault: str, tmp_path: Path
) -> None:
    file = tmp_path / "code"
    if content is not None:
        file.write_text(content)
    with pytest.raises(InvalidInputError, match=f"--code-file: .*{fault}"):
        code_in(str(file), typed)
