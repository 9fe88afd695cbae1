"""`make style` counts what it says it counts."""

import ast
import json
import re
from collections import defaultdict
from pathlib import Path

import pytest

from scripts import style

ROOT = Path(__file__).parents[2]
CLASS = re.compile(r"^ *class (\w+)", re.MULTILINE)
MAY_PACK = re.compile(r"^ *\(?[\w.]+(, [\w.]+)+\)? = .*,", re.MULTILINE)
SOURCE = '''"""A docstring counts as one token."""

a, b = 1, 2  # a comment counts as none
c = (  # fmt: skip
    a,
)


class Thing:
    @property
    def double(self):
        return 2 * self.value
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for package in ("one", "two"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "things.py").write_text(SOURCE)
    return tmp_path


def test_one_file_is_counted(folder: Path) -> None:
    module = style.count_module(folder / "one" / "things.py")
    assert module.lines == 12
    assert module.code_lines == 9
    # docstring 1, `a, b = 1, 2` 7, `c = (` 3, `a,` 2, `)` 1, `class Thing:` 3,
    # `@property` 2, `def double(self):` 6, `return 2 * self.value` 6
    assert module.tokens == 1 + 7 + 3 + 2 + 1 + 3 + 2 + 6 + 6
    assert module.packed_assignments == 1
    assert module.fmt_skips == 1
    assert module.function_lengths == (2,)
    assert module.class_names == ("Thing",)


def test_figures_are_summed_by_package(folder: Path) -> None:
    modules = style.count_folder(folder)
    packages = style.by_package(folder, modules)
    assert list(packages) == ["one", "two"]
    assert packages["one"] == packages["two"]
    assert packages["one"].code_lines == 9
    assert packages["one"].tokens_per_line == round(31 / 9, 2)
    assert packages["one"].packed_per_1000_lines == round(1000 / 9, 1)
    assert style.summarise(modules).code_lines == 18
    assert style.duplicate_class_names(folder, modules) == {
        "Thing": ["one/things.py", "two/things.py"]
    }


def test_missed_aims_are_named(folder: Path) -> None:
    figures = style.summarise(style.count_folder(folder))
    strict = style.Aims(
        tokens_per_line=3,
        tokens_per_line_of_a_package=3,
        function_median=1,
        function_p90=1,
    )
    assert style.missed_aims({"one": figures}, figures, {}, {}, {}, style.Aims()) == []
    missed = style.missed_aims(
        {"one": figures},
        figures,
        {"one/things.py": 501},
        {"one/things.py": 1},
        {"Thing": ["one/things.py", "two/things.py"]},
        strict,
    )
    assert len(missed) == 7
    assert missed[-3:] == [
        "one/things.py has 501 lines (aim: 500)",
        "one/things.py has 1 packed assignments (aim: 0)",
        "several classes are called Thing: one/things.py, two/things.py",
    ]


def test_no_file_of_ours_packs_assignments() -> None:
    """Except programs that stand for other people's."""
    foreign = ROOT / "tests/unit/insight/needs/programs"
    packed: list[str] = []
    for folder in ("src", "tests", "scripts", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text()
            # To parse every file takes ten seconds.
            if foreign in path.parents or not MAY_PACK.search(text):
                continue
            nodes = ast.walk(ast.parse(text))
            packed += [str(path) for node in nodes if style.is_packed_assignment(node)]
    assert packed == []


def test_no_two_classes_of_ours_have_one_name() -> None:
    """Except those of one idea, each of which needs its row."""
    places: defaultdict[str, set[Path]] = defaultdict(set)
    for path in style.SOURCE.rglob("*.py"):
        if style.TEMPLATES not in path.relative_to(style.SOURCE).parts:
            for name in CLASS.findall(path.read_text()):
                places[name].add(path)
    repeated = {name for name, paths in places.items() if len(paths) > 1}
    assert repeated == set(style.SAME_IDEA)


def test_patterns_of_models_write_out_their_letters() -> None:
    """With those of all languages, one pattern takes 6 MB of each server."""
    wide = re.compile(r"""pattern=r?["'].*\\[wW]""")
    found = [
        f"{path}: {line.strip()}"
        for path in style.SOURCE.rglob("*.py")
        for line in path.read_text().splitlines()
        if wide.search(line)
    ]
    assert found == []


def test_a_swap_is_no_packed_assignment(tmp_path: Path) -> None:
    (tmp_path / "swap.py").write_text("a, b = b, a\na, b = divmod(a, b)\n")
    assert style.count_module(tmp_path / "swap.py").packed_assignments == 0


def test_the_report_is_json_and_a_table(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(style, "SOURCE", folder)
    for package in ("one", "two"):
        things = folder / package / "things.py"
        text = SOURCE.replace("a, b = 1, 2", "a = 1")
        things.write_text(text.replace("Thing", package.title()))
    assert style.main(["--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["packages"]["one"]["code_lines"] == 9
    assert len(report["peers"]) == 6
    (folder / "one" / "long.py").write_text("x = 1\n" * 501)
    assert style.main([]) == 1
    printed = capsys.readouterr().out
    assert "aim, at most" in printed
    assert "one/long.py has 501 lines (aim: 500)" in printed


def test_a_folder_is_counted_alone(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert style.main(["--count", str(folder)]) == 0
    assert json.loads(capsys.readouterr().out)["code_lines"] == 18
