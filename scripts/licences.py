"""Writes the tables of docs/licences.md: the licence of each locked package, and what
brings it.

The licence comes from the page itself where it has the same version already, from the
installed package, or from the package index, through pip. `licences.toml` says which
licences need no review, and which packages were reviewed.
"""

import importlib.metadata as metadata
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from packaging.licenses import (
    InvalidLicenseExpression,
    canonicalize_license_expression,
)
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/licences.md"
RULES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
MARK = "<!-- scripts/licences.py writes what follows -->\n"
UNKNOWN = "unknown"
BASE = "gpuyard"
DEVELOPMENT = "development"
SERVER_IMAGE = "image gpuyard"
# The locks of images, with the Python inside.
IMAGES = {
    "pytorch-gpu": ("requirements-pytorch.txt", "3.12"),
    "tensorflow-gpu": ("requirements-tensorflow.txt", "3.11"),
    "solver-transformers": ("requirements-solver-transformers.txt", "3.11"),
    "solver-vllm": ("requirements-solver-vllm.txt", "3.11"),
}
PINNED = re.compile(
    r"^(?P<name>[A-Za-z0-9._-]+)(?:\[[^]]*\])?==(?P<version>[^ ;\\]+)"
    r"(?: ; (?P<marker>[^\\]*[^ \\]))?"
)
VIA = re.compile(r"^ +# +(?:via )?(?P<parent>[A-Za-z0-9._-]+)(?:\[[^]]*\])?(?: .*)?$")
ROW = re.compile(r"^\| (?P<name>\S+) \| (?P<version>\d\S*) \| (?P<licence>[^|]+) \|")

Pin = tuple[str, str]  # name and version


@dataclass(frozen=True, slots=True)
class Package:
    """A locked package. `licence` is an SPDX expression, or `unknown`; `brought_by` are
    the places where it gets: gpuyard itself, extras, images, or the development.
    """

    name: str
    version: str
    licence: str
    brought_by: frozenset[str]


def main() -> int:
    """Write the page; 1 if a package must be reviewed first."""
    found = packages()
    PAGE.write_text(page(found))
    faults = [fault for package in found if (fault := problem(package))]
    for fault in faults:
        print(f"licences: {fault}", file=sys.stderr)
    return 1 if faults else 0


def problem(package: Package, rules: Mapping[str, Any] = RULES) -> str | None:
    """What is against the licence of a package, in a sentence; None if nothing is."""
    name = package.name
    licence = package.licence
    review = _review(name, rules)
    permissive = _permissive(licence, rules["permissive"])
    if review is None or (permissive and name not in rules["reviewed"]):
        if permissive:
            return None
        return f"the licence of {name} is {licence}: review it in scripts/licences.toml"
    if review["licence"] != licence:
        said = review["licence"]
        return f"{name} was reviewed under {said}, and {licence} is new: review it"
    only = review.get("only")
    places = sorted(package.brought_by - set(only or package.brought_by))
    if places:
        return f"{name} ({licence}) must not come with {', '.join(places)}"
    return None


def packages() -> list[Package]:
    """Every locked package, by name and version."""
    places = locked_places()
    licences = _licences(places)
    return [
        Package(name, version, licences[name, version], frozenset(brought_by))
        for (name, version), brought_by in sorted(places.items())
    ]


def locked_places() -> dict[Pin, set[str]]:
    """What brings each locked package."""
    places: dict[Pin, set[str]] = defaultdict(set)
    base = pins(ROOT / "requirements.lock")
    for pin in base:
        places[pin].add(BASE)
    extras = _extras_by_name()
    for pin in pins(ROOT / "requirements-dev.lock"):
        if pin not in base:
            places[pin] |= extras.get(pin[0], {DEVELOPMENT})
    for pin in pins(ROOT / "requirements-server.lock"):
        places[pin].add(SERVER_IMAGE)
    for image, (file, python) in IMAGES.items():
        for pin in pins(ROOT / "deploy/images" / file, python):
            places[pin].add(f"image {image}")
    return places


def pins(lock: Path, *pythons: str) -> set[Pin]:
    """The packages that a lock file has for Linux and any of these Pythons; by default,
    all that gpuyard supports.
    """
    return {
        pin
        for python in pythons or ("3.11", "3.12", "3.13", "3.14")
        for pin in _pins_of(lock, python)
    }


def _pins_of(lock: Path, python: str) -> set[Pin]:
    found: set[Pin] = set()
    here = {
        "sys_platform": "linux",
        "platform_system": "Linux",
        "os_name": "posix",
        "platform_machine": "x86_64",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "python_version": python,
        "python_full_version": f"{python}.0",
    }
    for line in lock.read_text().splitlines():
        match = PINNED.match(line)
        if not match:
            continue
        marker = match["marker"]
        if marker is None or Marker(marker).evaluate(here):
            found.add((canonicalize_name(match["name"]), match["version"]))
    return found


def _extras_by_name() -> dict[str, set[str]]:
    """The extras that a package comes with, from what the lock says brings it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    children = _children(ROOT / "requirements-dev.lock")
    found: dict[str, set[str]] = defaultdict(set)
    for extra, wanted in project["optional-dependencies"].items():
        if extra == "dev":
            continue
        names = [canonicalize_name(Requirement(one).name) for one in wanted]
        # `gpuyard[top]` in an extra is that extra's own matter.
        waiting = [name for name in names if name != "gpuyard"]
        seen: set[str] = set()
        while waiting:
            name = waiting.pop()
            if name not in seen:
                seen.add(name)
                waiting += children[name]
        for name in seen:
            found[name].add(f"extra {extra}")
    return found


def _children(lock: Path) -> dict[str, set[str]]:
    """The packages that each package brings, from the comments of the lock."""
    children: dict[str, set[str]] = defaultdict(set)
    name = ""
    for line in lock.read_text().splitlines():
        pinned = PINNED.match(line)
        via = VIA.match(line)
        if pinned:
            name = canonicalize_name(pinned["name"])
        elif via and name:
            children[canonicalize_name(via["parent"])].add(name)
    return children


def _licences(wanted: Iterable[Pin]) -> dict[Pin, str]:
    known = known_licences()
    known |= {
        pin: licence
        for pin in wanted
        if pin not in known and (licence := _of_installed(*pin))
    }
    missing = [pin for pin in wanted if pin not in known]
    return known | (_of_index(missing) if missing else {})


def known_licences() -> dict[Pin, str]:
    """The licences that the page has already."""
    rows = [ROW.match(line) for line in PAGE.read_text().splitlines()]
    return {
        (row["name"], row["version"]): row["licence"]
        for row in rows
        if row and (row["licence"] != UNKNOWN or _review(row["name"], RULES))
    }


def _of_installed(name: str, version: str) -> str | None:
    try:
        found = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return None
    if found["Version"] != version:
        return None
    return expression(
        found.get("License-Expression"),
        found.get_all("Classifier") or [],
        found.get("License"),
    )


def _of_index(wanted: Iterable[Pin]) -> dict[Pin, str]:
    """What the index says, through pip; it downloads metadata, and no packages where
    the index has metadata by itself.
    """
    with tempfile.TemporaryDirectory() as folder:
        names = [f"{name}=={version}" for name, version in wanted]
        report = Path(folder) / "report.json"
        # All of one name cannot be asked for together when two images differ.
        found: list[dict[str, Any]] = []
        while names:
            now = list({name.partition("==")[0]: name for name in names}.values())
            names = [name for name in names if name not in now]
            subprocess.run([*_PIP, "--report", report, "--target", folder, *now])
            found += json.loads(report.read_text())["install"]
    return {
        (canonicalize_name(one["name"]), one["version"]): expression(
            one.get("license_expression"),
            one.get("classifier", []),
            one.get("license"),
        )
        for one in (item["metadata"] for item in found)
    }


# A newer pip than the environment's may be needed: its report has the expression.
_PIP = [
    *(ROOT / ".venv/bin/uv", "run", "--quiet", "--no-project", "--with", "pip>=25"),
    *("python", "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"),
    *("--no-deps", "--only-binary", ":all:", "--ignore-requires-python"),
    *("--implementation", "cp", "--python-version", "3.12"),
    *[f"--platform=manylinux_2_{minor}_x86_64" for minor in range(36, 4, -1)],
    *[f"--platform=manylinux{old}_x86_64" for old in (2014, 2010, 1)],
]


def expression(stated: str | None, classifiers: Iterable[str], text: str | None) -> str:
    """The SPDX expression of a package's metadata: what it states, or what its
    classifier or short text means by `licences.toml`.
    """
    first_line = (text or "").strip().partition("\n")[0].strip()
    classes = [one for one in classifiers if one.startswith("License :: ")]
    texts = RULES["texts"]
    meant = [texts[one] for one in classes if one in texts]
    for said in (stated, first_line, " AND ".join(meant)):
        try:
            if said:
                return canonicalize_license_expression(texts.get(said, said))
        except InvalidLicenseExpression:
            continue
    return UNKNOWN


def _permissive(licence: str, permissive: Iterable[str]) -> bool:
    """Whether nothing in an expression needs a review. A choice counts by its best
    part, but only if the expression is nothing else.
    """
    known = set(permissive)
    parts = set(re.split(r" (?:AND|OR) |[()]", licence)) - {""}
    if parts <= known:
        return True
    simple = " AND " not in licence and "(" not in licence
    return simple and bool(parts & known)


def _review(name: str, rules: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The review of a package: under its name, or else under the longest pattern."""
    reviewed = rules["reviewed"]
    patterns = [one for one in reviewed if fnmatchcase(name, one)]
    exact_or_longest = max(
        patterns, key=lambda one: (one == name, len(one)), default=""
    )
    return reviewed.get(exact_or_longest)


def page(found: Iterable[Package]) -> str:
    """The page: what people wrote above the mark, and the tables."""
    head = PAGE.read_text().partition(MARK)[0]
    parts = {
        "Packages of gpuyard and its extras": False,
        "Packages of the other images": True,
    }
    lines = [
        "## Reviews",
        "",
        "| package | licence | only with | why |",
        "|---|---|---|---|",
    ]
    for name, review in RULES["reviewed"].items():
        only = ", ".join(review.get("only", ["all"]))
        lines += [f"| {name} | {review['licence']} | {only} | {review['why']} |"]
    for title, in_images in parts.items():
        lines += ["", f"## {title}", "", "| package | version | licence | with |"]
        lines += ["|---|---|---|---|"]
        for one in found:
            ours = {place for place in one.brought_by if _is_ours(place)}
            places = one.brought_by - ours if in_images else ours
            if places:
                said = ", ".join(sorted(places))
                lines += [f"| {one.name} | {one.version} | {one.licence} | {said} |"]
    return head + MARK + "\n".join(lines) + "\n"


def _is_ours(place: str) -> bool:
    return place == SERVER_IMAGE or not place.startswith("image ")


if __name__ == "__main__":
    sys.exit(main())
