"""Measures how plain the code is: figures by package, beside five other projects.

    scripts/style.py                the table; exit status 1 when an aim is missed
    scripts/style.py --json         the same figures as JSON
    scripts/style.py --count DIR    the figures of another source folder, as JSON

The other projects' figures are in scripts/style-peers.json. They come from
`--count DIR` on the package folder of the source distribution, without its tests.
"""

import argparse
import ast
import io
import json
import statistics
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "gpuyard"
PEERS = Path(__file__).with_name("style-peers.json")

COUNTED_TOKENS = {tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING}
LONG_MODULE_LINES = 500
# Programs that are written for a person, or run without gpuyard.
TEMPLATES = "templates"
# Names that mean the same wherever they stand.
SAME_IDEA = {
    "LogPart": "a part of a log, inside the server and on the wire",
    "Model": "a model of machine learning, as a program makes it and as a GPU holds it",
    "_Message": "the base class of messages",
}
# Tables must not be folded when the output is a file.
PIPE_WIDTH = 120


@dataclass(frozen=True, slots=True)
class Module:
    """What was counted in one file."""

    path: Path
    lines: int
    code_lines: int
    tokens: int
    packed_assignments: int
    fmt_skips: int
    function_lengths: tuple[int, ...]
    class_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one package or of a whole project."""

    code_lines: int
    tokens_per_line: float
    packed_per_1000_lines: float
    fmt_skips: int
    function_median: float
    function_p90: int
    long_modules: int


@dataclass(frozen=True, slots=True)
class Aims:
    """The largest figures allowed."""

    tokens_per_line: float = 7.5
    tokens_per_line_of_a_package: float = 8.5
    function_median: float = 10
    function_p90: int = 35
    module_lines: int = LONG_MODULE_LINES
    packed_assignments: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """Everything `scripts/style.py` prints."""

    packages: dict[str, Figures]
    total: Figures
    peers: dict[str, Figures]
    long_modules: dict[str, int]
    packed_assignments: dict[str, int]
    duplicate_class_names: dict[str, list[str]]
    missed: list[str]
    aims: Aims = field(default_factory=Aims)


def count_module(path: Path) -> Module:
    """Count one Python file."""
    text = path.read_text(encoding="utf-8")
    tokens_by_line = Counter(
        token.start[0]
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type in COUNTED_TOKENS
    )
    nodes = list(ast.walk(ast.parse(text)))
    functions = [
        node
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return Module(
        path=path,
        lines=len(text.splitlines()),
        code_lines=len(tokens_by_line),
        tokens=tokens_by_line.total(),
        packed_assignments=sum(is_packed_assignment(node) for node in nodes),
        fmt_skips=text.count("# fmt: skip"),
        function_lengths=tuple(function_length(node) for node in functions),
        class_names=tuple(n.name for n in nodes if isinstance(n, ast.ClassDef)),
    )


def is_packed_assignment(node: ast.AST) -> bool:
    """Whether a statement assigns several values to several names: `a, b = x, y`.

    A swap such as `a, b = b, a` is one thing.
    """
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
        return False
    target = node.targets[0]
    if not isinstance(target, ast.Tuple):
        return False
    names = {ast.unparse(name) for name in target.elts}
    values = {ast.unparse(value) for value in node.value.elts}
    return names != values


def function_length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The lines of a function from `def` to its end, without decorators."""
    return (node.end_lineno or node.lineno) - node.lineno + 1


def count_folder(folder: Path) -> list[Module]:
    """Count every Python file in a folder."""
    return [count_module(path) for path in sorted(folder.rglob("*.py"))]


def summarise(modules: Sequence[Module]) -> Figures:
    """The figures of several files together."""
    code_lines = sum(module.code_lines for module in modules)
    tokens = sum(module.tokens for module in modules)
    packed = sum(module.packed_assignments for module in modules)
    lengths = sorted(length for module in modules for length in module.function_lengths)
    return Figures(
        code_lines=code_lines,
        tokens_per_line=round(tokens / max(code_lines, 1), 2),
        packed_per_1000_lines=round(1000 * packed / max(code_lines, 1), 1),
        fmt_skips=sum(module.fmt_skips for module in modules),
        function_median=statistics.median(lengths) if lengths else 0,
        function_p90=lengths[int(len(lengths) * 0.9)] if lengths else 0,
        long_modules=sum(module.lines > LONG_MODULE_LINES for module in modules),
    )


def by_package(folder: Path, modules: Iterable[Module]) -> dict[str, Figures]:
    """The figures of each package directly in a folder."""
    grouped: defaultdict[str, list[Module]] = defaultdict(list)
    for module in modules:
        grouped[module.path.relative_to(folder).parts[0]].append(module)
    return {name: summarise(group) for name, group in grouped.items()}


def packed_assignments(folder: Path, modules: Iterable[Module]) -> dict[str, int]:
    """How many packed assignments each file has that has any."""
    return {
        str(module.path.relative_to(folder)): module.packed_assignments
        for module in modules
        if module.packed_assignments
    }


def duplicate_class_names(
    folder: Path, modules: Iterable[Module]
) -> dict[str, list[str]]:
    """Class names that several places use for different things, with their files."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    for module in modules:
        path = module.path.relative_to(folder)
        if path.parts[0] == TEMPLATES:
            continue
        for name in module.class_names:
            places[name].append(str(path))
    return {
        name: paths
        for name, paths in sorted(places.items())
        if len(paths) > 1 and name not in SAME_IDEA
    }


def missed_aims(
    packages: Mapping[str, Figures],
    total: Figures,
    long_modules: Mapping[str, int],
    packed_assignments: Mapping[str, int],
    repeated_names: Mapping[str, Sequence[str]],
    aims: Aims,
) -> list[str]:
    """One sentence for each aim that is missed."""
    missed: list[str] = []
    if total.tokens_per_line > aims.tokens_per_line:
        missed.append(
            f"{total.tokens_per_line} tokens a line (aim: {aims.tokens_per_line})"
        )
    for name, figures in packages.items():
        if figures.tokens_per_line > aims.tokens_per_line_of_a_package:
            missed.append(
                f"{name}: {figures.tokens_per_line} tokens a line"
                f" (aim: {aims.tokens_per_line_of_a_package})"
            )
    if total.function_median > aims.function_median:
        missed.append(
            f"the median function has {total.function_median} lines"
            f" (aim: {aims.function_median})"
        )
    if total.function_p90 > aims.function_p90:
        missed.append(
            f"one function in ten has {total.function_p90} lines or more"
            f" (aim: {aims.function_p90})"
        )
    for path, lines in long_modules.items():
        missed.append(f"{path} has {lines} lines (aim: {aims.module_lines})")
    for path, number in packed_assignments.items():
        missed.append(
            f"{path} has {number} packed assignments (aim: {aims.packed_assignments})"
        )
    for name, paths in repeated_names.items():
        missed.append(f"several classes are called {name}: {', '.join(paths)}")
    return missed


def read_peers() -> dict[str, Figures]:
    """The stored figures of other projects, by name and version."""
    stored = json.loads(PEERS.read_text(encoding="utf-8"))
    return {
        f"{peer['name']} {peer['version']}": Figures(**peer["figures"])
        for peer in stored["peers"]
    }


def make_report(folder: Path) -> Report:
    """Count a source folder and compare it with the aims."""
    modules = count_folder(folder)
    packages = by_package(folder, modules)
    total = summarise(modules)
    long_modules = {
        str(module.path.relative_to(folder)): module.lines
        for module in modules
        if module.lines > LONG_MODULE_LINES
    }
    packed = packed_assignments(folder, modules)
    repeated = duplicate_class_names(folder, modules)
    return Report(
        packages=packages,
        total=total,
        peers=read_peers(),
        long_modules=long_modules,
        packed_assignments=packed,
        duplicate_class_names=repeated,
        missed=missed_aims(packages, total, long_modules, packed, repeated, Aims()),
    )


def add_row(table: Table, name: str, figures: Figures, style: str = "") -> None:
    """Add one package's or project's figures to the table."""
    table.add_row(
        name,
        f"{figures.code_lines:,}",
        f"{figures.tokens_per_line:.2f}",
        f"{figures.packed_per_1000_lines:.1f}",
        str(figures.fmt_skips),
        f"{figures.function_median:g}",
        str(figures.function_p90),
        str(figures.long_modules),
        style=style,
    )


def make_table(report: Report) -> Table:
    """All figures as a table."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for heading in (
        "lines\nof code",
        "tokens\na line",
        "packed\nper 1000",
        "fmt:\nskip",
        "function\nmedian",
        "function\np90",
        "modules\nover 500",
    ):
        table.add_column(heading, justify="right")
    aims = report.aims
    for name, figures in report.packages.items():
        too_dense = figures.tokens_per_line > aims.tokens_per_line_of_a_package
        add_row(table, name, figures, "red" if too_dense else "")
    table.add_section()
    add_row(table, "gpuyard", report.total, "bold")
    table.add_row(
        "aim, at most",
        "",
        f"{aims.tokens_per_line:.2f}",
        str(aims.packed_assignments),
        "",
        f"{aims.function_median:g}",
        str(aims.function_p90),
        "0",
    )
    package_aim = f"{aims.tokens_per_line_of_a_package:.2f}"
    table.add_row("aim of a package", "", package_aim)
    table.add_section()
    for name, figures in report.peers.items():
        add_row(table, name, figures)
    return table


def print_report(report: Report) -> None:
    """Print the table and the missed aims."""
    console = Console(
        highlight=False,
        markup=False,
        soft_wrap=True,
        width=None if sys.stdout.isatty() else PIPE_WIDTH,
    )
    console.print(make_table(report))
    console.print(f"\nAims missed: {len(report.missed)}")
    for sentence in report.missed:
        console.print(f"  {sentence}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures; 1 when an aim is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--count", type=Path, metavar="DIR", help="count this folder")
    options = parser.parse_args(arguments)
    if options.count:
        figures = summarise(count_folder(options.count))
        print(json.dumps(asdict(figures), indent=2))
        return 0
    report = make_report(SOURCE)
    if options.json:
        print(json.dumps(asdict(report), indent=2))
    else:
        print_report(report)
    return 1 if report.missed else 0


if __name__ == "__main__":
    sys.exit(main())
