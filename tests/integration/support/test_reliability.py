"""Each fault of docs/reliability.md names its test, and pytest would run that test, as
well as those that the pages on security name.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/reliability.md").read_text()
ROWS = [
    row
    for row in PAGE.partition("## Simulated storms")[0].splitlines()
    if row.startswith("| ") and not row.startswith("| fault")
]
NAMED = sorted(
    {
        name
        for page in ("reliability", "security", "asvs")
        for name in re.findall(
            r"`(tests/[^`\s]+\.py(?:::[^`]+)?)`", (ROOT / f"docs/{page}.md").read_text()
        )
    }
)


class Collection:
    """A plugin of pytest that keeps what it found."""

    items: tuple[pytest.Item, ...] = ()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Called by pytest."""
        self.items = tuple(session.items)


@pytest.fixture(scope="module")
def collected() -> Iterator[dict[str, list[pytest.Item]]]:
    """The tests that pytest finds for each name of the pages: in a file, of a function,
    or with certain parameters. In this process, which has most of them already.
    """
    files = sorted({name.partition("::")[0] for name in NAMED})
    # These act when they are loaded, or cost time; the rest is as in any run.
    without = [f"-pno:{name}" for name in ("xdist", "faulthandler", "cacheprovider")]
    found = Collection()
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTEST_ADDOPTS", raising=False)
        patch.chdir(ROOT)
        arguments = ["--collect-only", "-qq", "--capture=no", *without, *files]
        assert pytest.main(arguments, plugins=[found]) == pytest.ExitCode.OK
    by_name: dict[str, list[pytest.Item]] = {}
    for item in found.items:
        file, _, rest = item.nodeid.partition("::")
        for name in (file, f"{file}::{rest.partition('[')[0]}", item.nodeid):
            if item not in by_name.setdefault(name, []):
                by_name[name].append(item)
    yield by_name


def left_out(item: pytest.Item) -> bool:
    """Whether pytest would not run the test on any machine, or not mind its failure."""
    return any(mark.name in ("skip", "xfail") for mark in item.iter_markers())


def test_each_row_names_a_test() -> None:
    assert len(ROWS) >= 16
    for row in ROWS:
        assert re.search(r"`tests/\S+\.py(::[^`]+)?`", row), row


@pytest.mark.parametrize("name", NAMED)
def test_each_named_test_would_run(
    name: str, collected: dict[str, list[pytest.Item]]
) -> None:
    assert name in collected, "pytest finds no such test"
    assert not [item.nodeid for item in collected[name] if left_out(item)]
