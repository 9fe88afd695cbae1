#!/usr/bin/env python3
"""Print a Markdown table of test times, by level and by file, from a JUnit file.

Usage: make test ARGS="--junitxml=tests.xml"; scripts/test-times.py tests.xml
"""

import argparse
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

Case = tuple[str, float]


def main() -> None:
    """Read the file and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("junit", type=Path, help="what pytest --junitxml wrote")
    parser.add_argument("--files", type=int, default=20, help="how many files to list")
    words = parser.parse_args()
    cases = read_cases(words.junit)
    print_table("Level", cases, level_of, None)
    print()
    print_table("File", cases, lambda name: f"`{name}`", words.files)


def read_cases(path: Path) -> list[Case]:
    """The file of each test, and its seconds with setup and teardown."""
    root = ElementTree.parse(path).getroot()
    return [
        (file_of(case.get("classname", "")), float(case.get("time", "0")))
        for case in root.iter("testcase")
        if case.get("classname")
    ]


def file_of(module: str) -> str:
    """`tests.unit.test_x.TestY` as `tests/unit/test_x.py`."""
    parts = module.split(".")
    while parts and parts[-1][:1].isupper():
        parts.pop()
    return "/".join(parts) + ".py"


def level_of(file: str) -> str:
    """The folder below tests/."""
    return file.split("/")[1]


def print_table(title: str, cases: list[Case], group_of, most: int | None) -> None:
    """One row for each group, the slowest first, and the total."""
    seconds: dict[str, float] = defaultdict(float)
    tests: dict[str, int] = defaultdict(int)
    for file, duration in cases:
        seconds[group_of(file)] += duration
        tests[group_of(file)] += 1
    slowest_first = sorted(seconds, key=lambda group: -seconds[group])
    print(f"| {title} | Tests | Seconds |")
    print("|---|---:|---:|")
    for group in slowest_first[:most]:
        print(f"| {group} | {tests[group]} | {seconds[group]:.0f} |")
    print(f"| all | {len(cases)} | {sum(seconds.values()):.0f} |")


if __name__ == "__main__":
    main()
