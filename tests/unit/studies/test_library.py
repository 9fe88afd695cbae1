"""The names that `gpuyard.studies` offers."""

import pytest

from gpuyard import studies


@pytest.mark.parametrize("name", studies.__all__)
def test_each_name_of_the_library_can_be_imported(name: str) -> None:
    assert getattr(studies, name).__name__ == name
