"""The documents hold no dead link, no orphan page, and no name that the code lacks."""

import html
import re
import runpy
import tomllib
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from pydantic import BaseModel, ValidationError
from typer.core import TyperGroup

from gpuyard.cli.main import app
from gpuyard.cli.plugins import PluginCommand
from gpuyard.config.settings import Settings
from gpuyard.domain.jobspec import JobSpec
from gpuyard.domain.reasons import Reason, RetryRule
from gpuyard.templates import names as templates
from tests.support.components import VARIABLE as WITHOUT

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SOURCE = ROOT / "src/gpuyard"
SITE = ROOT / "mkdocs.yml"
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    ROOT / "SECURITY.md",
    *sorted(DOCS.rglob("*.md")),
]
# `make docs` writes these pages from the code.
GENERATED = {
    "reference/commands.md",
    "reference/http.md",
    "reference/modules.md",
    "reference/settings.md",
}

each_page = pytest.mark.parametrize(
    "page", PAGES, ids=lambda page: str(page.relative_to(ROOT))
)


@cache
def text_of(page: Path) -> str:
    return page.read_text()


def without_code(text: str) -> str:
    """The text without blocks and spans of code."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`]*`", "", text)


def spans_of_code(text: str) -> list[str]:
    """What stands between single backquotes, outside blocks of code."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", text)]


def links_of(page: Path) -> list[str]:
    """The targets of the links of a page that stay in this repository."""
    targets = re.findall(r"\]\(([^)\s]+)\)", without_code(text_of(page)))
    return [target for target in targets if "://" not in target]


def anchors_of(page: Path) -> set[str]:
    """The anchors of a page's headings, as the site names them."""
    headings = re.findall(r"^#+ (.+)$", text_of(page), re.MULTILINE)
    plain = [re.sub(r"[^\w\s-]", "", heading.lower()) for heading in headings]
    return {re.sub(r"[\s-]+", "-", heading.strip()) for heading in plain}


# --- Links --------------------------------------------------------------------------


@each_page
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in links_of(page):
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), f"{page.name} links to {target}, which is not there"
        if anchor:
            assert anchor in anchors_of(found), f"{page.name} links to {target}"


def test_a_link_from_the_site_stays_in_the_site() -> None:
    """A page of the site cannot link to a file that the site does not have."""
    outside = {ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"}
    for page in DOCS.rglob("*.md"):
        for target in links_of(page):
            found = (page.parent / target.partition("#")[0]).resolve()
            assert found in outside or DOCS in (found, *found.parents), (
                f"{page.name}: {target}"
            )


def test_every_page_is_linked_from_another_page_and_is_in_the_site() -> None:
    linked = {
        (page.parent / target.partition("#")[0]).resolve()
        for page in PAGES
        for target in links_of(page)
        if not target.startswith("#")
    }
    listed = set(pages_of(yaml.safe_load(text_of(SITE))["nav"]))
    for page in DOCS.rglob("*.md"):
        name = str(page.relative_to(DOCS))
        assert page in linked, f"no page links to {name}"
        assert name in listed, f"mkdocs.yml does not list {name}"
    missing = {name for name in listed - GENERATED if not (DOCS / name).exists()}
    assert missing == {"contributing.md", "changelog.md"}


def pages_of(nav: Any) -> Iterator[str]:
    """The pages of a part of the site's navigation."""
    if isinstance(nav, str):
        yield nav
        return
    for part in nav.values() if isinstance(nav, dict) else nav:
        yield from pages_of(part)


# --- Names --------------------------------------------------------------------------


@cache
def commands() -> dict[str, set[str]]:
    """The options of each command, by its whole name: `gpuyard models pin`."""
    root = typer.main.get_group(app)
    found: dict[str, set[str]] = {}

    def collect(command: Any, context: Any) -> None:
        found[context.command_path] = {
            option
            for parameter in command.get_params(context)
            for option in (*parameter.opts, *parameter.secondary_opts)
        }
        if isinstance(command, TyperGroup):
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None
                if isinstance(inner, PluginCommand):
                    inner = inner.open()
                collect(
                    inner, inner.context_class(inner, info_name=name, parent=context)
                )

    collect(root, root.context_class(root, info_name="gpuyard"))
    return found


def commands_in(text: str) -> Iterator[list[str]]:
    """The words of each `gpuyard …` that a text shows, in code or in blocks."""
    blocks = re.findall(
        r"^```(?:console|sh|text)?\n(.*?)^```$", text, re.DOTALL | re.MULTILINE
    )
    lines = [line for block in blocks for line in block.splitlines()]
    for line in [*lines, *spans_of_code(text)]:
        for words in re.findall(r"(?:^|[$|(] ?)(gpuyard [a-z].*)", line):
            shown = re.split(r" -- |[|#&]|\) ", words)[0]
            yield shown.split()


@each_page
def test_every_command_exists_with_its_options(page: Path) -> None:
    for words in commands_in(text_of(page)):
        name = "gpuyard"
        for word in words[1:]:
            if f"{name} {word.rstrip(',)')}" not in commands():
                break
            name = f"{name} {word.rstrip(',)')}"
        assert name != "gpuyard", f"{page.name}: no command {' '.join(words)}"
        if name == "gpuyard sweep":
            name = "gpuyard sweep run"  # which is meant where no command is
        for word in words:
            if word in templates() or word.endswith(".ipynb"):
                break  # what follows goes to the template's program
            option = re.match(r"--[a-z][a-z-]*", word)
            if option:
                assert option[0] in commands()[name], f"{page.name}: {' '.join(words)}"


@cache
def words_of_the_code() -> set[str]:
    """Every word of the code and of what it reads, and of the names of its files."""
    folders = ("src", "benchmarks", "deploy", "examples")
    suffixes = {".py", ".toml", ".yaml", ".yml", ".sh", ".j2", ".in", ".md"}
    files = [
        file
        for folder in folders
        for file in (ROOT / folder).rglob("*")
        if file.is_file() and not {".built", ".venv-peers"} & {*file.parts}
    ]
    read = [file for file in files if file.suffix in suffixes or not file.suffix]
    texts = [file.read_text(errors="replace") for file in read]
    names = [str(file) for file in files]
    project = text_of(ROOT / "pyproject.toml")
    return set(re.findall(r"\w+", "\n".join([*texts, *names, project])))


def is_known(name: str) -> bool:
    """Does the code have this name? A case of the conformance suite is a function
    `check_…`; Prometheus adds `_total` to a counter.
    """
    name = name.replace("acme", "mycloud")  # the template's name, and the guide's
    names = (name, f"check_{name}", name.removesuffix("_total"))
    return any(word in words_of_the_code() for word in names)


@each_page
def test_every_name_in_snake_case_is_known_to_the_code(page: Path) -> None:
    """Reasons, settings, fields and functions: `attempt_lost`, `max_pending`, …"""
    for span in spans_of_code(text_of(page)):
        for name in re.findall(r"(?<![\w/.-])[a-z]+(?:_[a-z0-9]+)+(?![\w/-])", span):
            if name.startswith("test_"):
                continue  # test_reliability.py looks at these
            assert is_known(name), f"{page.name} names `{name}`; the code does not"


def test_the_guide_to_trouble_lists_every_reason_and_whether_it_is_tried_again() -> (
    None
):
    rules = {
        RetryRule.NEVER: "no",
        RetryRule.COUNTED: "as `retry_count` allows",
        RetryRule.FREE: "always, for free",
    }
    row = r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \|$"
    rows = re.findall(row, text_of(DOCS / "guides/trouble.md"), re.MULTILINE)
    reasons = [reason for reason in Reason if reason is not Reason.OTHER]
    assert rows == [(reason.value, rules[reason.retry]) for reason in reasons]


@each_page
def test_every_environment_variable_is_known_to_the_code(page: Path) -> None:
    for name in re.findall(r"\bGPUYARD_[A-Z0-9_]+\b", text_of(page)):
        section = name.removeprefix("GPUYARD_").partition("__")[0].lower()
        of_dataset = name.startswith("GPUYARD_DATASET_")  # and a name of somebody's
        known = section in Settings.model_fields or is_known(name) or name == WITHOUT
        known = known or of_dataset
        assert known, f"{page.name} names {name}"


@each_page
def test_every_setting_exists(page: Path) -> None:
    """`[section] name` in prose, and whole sections in blocks of TOML."""
    for section, name in re.findall(r"`\[(\w+)\] (\w+)", text_of(page)):
        kind = Settings.model_fields.get(section)
        assert kind or section in JobSpec.model_fields, f"{page.name}: [{section}]"
        fields = kind.annotation if kind else None
        if isinstance(fields, type) and issubclass(fields, BaseModel):
            assert name in fields.model_fields, f"{page.name}: [{section}] {name}"


@pytest.mark.parametrize(
    ("page", "block"),
    [
        pytest.param(page, block, id=f"{page.stem}-{number}")
        for page in PAGES
        for number, block in enumerate(
            re.findall(
                r"^```toml\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE
            )
        )
    ],
)
def test_every_block_of_settings_is_accepted(page: Path, block: str) -> None:
    found = tomllib.loads(block.replace("…", ""))
    for section, content in found.items():
        kind = Settings.model_fields.get(section)
        fields = kind.annotation if kind else None
        is_section = isinstance(fields, type) and issubclass(fields, BaseModel)
        if is_section and isinstance(content, dict):
            try:
                fields.model_validate(content)
            except ValidationError as error:
                raise AssertionError(f"{page.name}: {error}") from None


# What a target makes.
MADE = {
    "benchmarks/.venv-peers",
    "build/gpuyard.cdx.json",
    "build/site",
    "server/web_files",
}


# --- Files --------------------------------------------------------------------------


def file_named(path: str) -> Path | None:
    """The file or folder of a path, as the documents write it: from the root, from
    `src/gpuyard`, from `docs` or from the template of a provider.
    """
    for base in (ROOT, SOURCE, DOCS, SOURCE / "templates/provider"):
        found = base / path.replace("gpuyard_acme", "gpuyard_mycloud")
        if found.exists():
            return found
    return None


@each_page
def test_every_path_exists(page: Path) -> None:
    """`controller/core.py`, `deploy/kubernetes/rbac.yaml`, `docs/guides/`, …"""
    folders = {path.name for base in (ROOT, SOURCE) for path in base.iterdir()}
    for span in spans_of_code(text_of(page)):
        path = re.split(r"[:\s]", span)[0].rstrip("/")
        if re.search(r"[*{}$<>…A-Z]", path) and not path.endswith(".md"):
            continue
        first, _, rest = path.partition("/")
        if rest and first in folders and path not in MADE:
            assert file_named(path), f"{page.name} names {path}, which is not there"


@each_page
def test_every_function_that_is_named_with_its_file_exists(page: Path) -> None:
    """`controller/core.py:Core.emit`: the class and the function are in the file."""
    for span in spans_of_code(text_of(page)):
        named = re.fullmatch(r"([\w/]+\.py):([\w.]+)", span)
        if named is None:
            continue
        file = file_named(named[1])
        assert file, f"{page.name} names {named[1]}"
        for name in named[2].split("."):
            defined = rf"^\s*(?:async )?(?:def|class) {name}\b"
            assert re.search(defined, text_of(file), re.MULTILINE), (
                f"{page.name}: {span}"
            )


def contract(begins: str, ends: str) -> set[str]:
    """The names that a paragraph of *Contracts* lists."""
    text = text_of(DOCS / "architecture.md")
    paragraph = text.partition(f"- **{begins}**")[2].partition(f"- **{ends}**")[0]
    return set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]*)`", paragraph))))


def test_the_contracts_name_every_command_and_every_field_of_a_job() -> None:
    commands = typer.main.get_command(app)
    assert isinstance(commands, TyperGroup)
    shown = {name for name, made in commands.commands.items() if not made.hidden}
    assert shown - contract("Command", "Exit codes") == set()
    assert set(JobSpec.model_fields) - contract("JobSpec", "Array") == set()


def test_the_picture_shows_the_commands_that_are_recorded() -> None:
    recorder = runpy.run_path(str(ROOT / "scripts" / "record-readme.py"))
    picture = (ROOT / "docs" / "assets" / "terminal.svg").read_text()
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", picture)
    plain = [html.unescape(text).replace("\N{NO-BREAK SPACE}", " ") for text in texts]
    # A prompt is a text of its own, before that of its command.
    shown = [command for prompt, command in pairwise(plain) if prompt == "$ "]
    assert shown == recorder["COMMANDS"]


def test_the_picture_is_described_alike_wherever_it_is_shown() -> None:
    pages = (ROOT / "README.md", ROOT / "docs" / "index.md")
    described = [
        re.findall(r"!\[(.+)\]\(.*terminal.svg\)", p.read_text()) for p in pages
    ]
    assert described[0] == described[1] != []
