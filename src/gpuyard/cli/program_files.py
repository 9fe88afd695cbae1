"""Reads the files of a program that a person names: a script, a notebook, a folder, or
a command that starts one.
"""

import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from gpuyard.cli.launch_scripts import commands_in, script_of
from gpuyard.domain.errors import InvalidInputError

_ENDINGS = (".py", ".yaml", ".yml", ".json", ".toml", ".sh", ".slurm", ".sbatch")
_SKIPPED = frozenset(
    {"__pycache__", "node_modules", "site-packages", "venv", "env", "wandb", "build"}
    | {"dist", "checkpoints", "mlruns", "runs", "outputs", "logs"}
)
_MOST_FILES = 2_000
_MOST_SEEN = 50_000
_DEEPEST = 8
# Bytes of one file, and of all.
_LONGEST = 2_000_000
_LONGEST_CONFIG = 200_000
_ALL_BYTES = 40_000_000
_LONGEST_NAME = 500
_MOST_WORDS = 200
_MOST_LISTED = 200
_MOST_CONFIGS = 500
_IMPORTED = re.compile(r"^[ \t]*(?:from|import)[ \t]+([A-Za-z_]\w*)", re.MULTILINE)
_IMPORTED_MODULE = re.compile(r"^[ \t]*(?:from|import)[ \t]+(\w[\w.]*)", re.MULTILINE)
_MOST_IMPORTED = 50
_MOST_ABOVE = 4
# They are known, and what they do for a program is not read off their own code.
_LIBRARIES = frozenset(
    {"torch", "torchvision", "torchaudio", "torchtext", "tensorflow", "keras", "jax"}
    | {"flax", "haiku", "optax", "timm", "transformers", "diffusers", "accelerate"}
    | {"datasets", "peft", "trl", "sentence_transformers", "setfit", "open_clip"}
    | {"pytorch_lightning", "lightning", "ignite", "torch_geometric", "ultralytics"}
    | {"stable_baselines3", "gymnasium", "numpy", "sklearn", "deepspeed", "unsloth"}
    | {"torchtune", "litgpt", "monai", "fastai", "xgboost", "lightgbm", "catboost"}
)
_TOP_OF_PROJECT = (".git", "pyproject.toml", "setup.py")
_LIKELY = (
    "train.py",
    "main.py",
    "run.py",
    "finetune.py",
    "fine_tune.py",
    "__main__.py",
)
_INTERPRETER = re.compile(r"(python|python3|python3\.\d+|pypy3?|uv|poetry|run|conda)")
_TRAINS = re.compile(r"train|tune|sft|main|run")
_LAUNCHERS = (
    "torchrun",
    "accelerate",
    "deepspeed",
    "mpirun",
    "horovodrun",
    "composer",
    "colossalai",
)
_LAUNCHER_MODULES = ("torch.distributed", "accelerate.", "deepspeed.")
_CONFIG_ENDINGS = (".yaml", ".yml", ".json", ".toml")
_HYDRA_FOLDER = re.compile(
    r"config_path\s*=\s*[\"']((?:\.\./){1,4}[\w./-]{1,100})[\"']"
)


@dataclass(frozen=True, slots=True)
class ProgramFiles:
    """The texts of a program by path, the file that is run, its arguments, and the
    words before it. `path` is where that file is.
    """

    texts: Mapping[str, str]
    entry: str
    arguments: tuple[str, ...]
    launcher: tuple[str, ...]
    path: Path


def names_program(words: Sequence[str]) -> bool:
    """Whether the words of a command start a Python program."""
    is_launched = bool(words) and _is_launcher(words[0])
    return any(
        word.endswith((".py", ".ipynb"))
        or word == "-m"
        or (word == "--module" and is_launched)
        for word in words
    )


def read_program(words: Sequence[str], folder: Path) -> ProgramFiles:
    """The program that the words of a command mean, seen from `folder`;
    InvalidInputError if there is none.
    """
    script = script_of(words, folder)
    launched = _launched_by_script(words, folder)
    command = _split(launched)
    if script is not None and launched == words:
        fault = f"{script.name} starts no Python program that can be found"
        raise InvalidInputError.of("PATH", fault, "name the program itself")
    tool = _tool(command, folder)
    if tool is not None:
        return tool
    path = folder / command.program
    if command.is_module:
        path = _module_path(folder, command.program)
    if not _is_there(path):
        fault = f"there is no file {str(path)[:_LONGEST_NAME]}"
        raise InvalidInputError.of(
            "PATH", fault, "name a script, a notebook or a folder"
        )
    if path.is_dir():
        path = _entry_of(path)
    root = folder if command.is_module else path.parent
    entry = path.relative_to(root).as_posix()
    texts = dict(_texts(root))
    texts[entry] = _entry_text(path)
    texts |= _configs_above(texts[entry], root)
    for package in _packages_beside(texts[entry], root):
        found = _texts(package, _MOST_FILES - len(texts))
        texts |= {f"{package.name}/{name}": text for name, text in found}
    texts |= _named_configs(command, folder)
    return ProgramFiles(texts, entry, command.arguments, command.launcher, path)


def _is_there(path: Path) -> bool:
    """Whether it is a regular file or a folder: others may never end."""
    try:
        return path.is_file() or path.is_dir()
    except (OSError, ValueError):
        return False


def _tool(command: "_CommandParts", folder: Path) -> ProgramFiles | None:
    """What is read in place of a command of a library; None for any other command."""
    from gpuyard.insight.needs.tools import program_of_tool

    path = folder / command.program
    text = program_of_tool([command.program, *command.arguments])
    if text is None or command.is_module or _is_there(path):
        return None
    entry = Path(command.program).name
    texts = {entry: text, **_named_configs(command, folder)}
    return ProgramFiles(texts, entry, command.arguments, command.launcher, path)


def program_path(words: Sequence[str], folder: Path) -> Path | None:
    """The file that the words of a command start; None if there is none."""
    words = _launched_by_script(words, folder)
    if not names_program(words):
        return None
    command = _split(words)
    path = folder / command.program
    if command.is_module:
        path = _module_path(folder, command.program)
    return path if _is_there(path) and not path.is_dir() else None


def _launched_by_script(words: Sequence[str], folder: Path) -> Sequence[str]:
    """The command that starts the program, also where a shell script has it."""
    script = script_of(words, folder)
    if script is None:
        return words
    commands = islice(commands_in(script, words), _MOST_LISTED)
    found = [each for each in commands if names_program(each) or _is_tool(each)]
    launched = [each for each in found if any(map(_is_launcher, each))]
    trained = [each for each in found if _TRAINS.search(" ".join(each))]
    return next(iter([*launched, *trained, *found]), words)


def _is_tool(words: Sequence[str]) -> bool:
    from gpuyard.insight.needs.tools import program_of_tool

    return program_of_tool(words) is not None


def _named_configs(command: "_CommandParts", folder: Path) -> dict[str, str]:
    """The configuration files that the words of a command name: they mean the folder
    where it is given, wherever the program is.
    """
    found: dict[str, str] = {}
    for word in (*command.launcher, *command.arguments)[:_MOST_WORDS]:
        name = word.rpartition("=")[2] if word.startswith("-") else word
        if not name.endswith(_CONFIG_ENDINGS) or len(name) > _LONGEST_NAME:
            continue
        path = folder / name
        is_file = _is_there(path) and not path.is_dir()
        text = _small_text(path) if is_file else None
        if text is not None:
            found[name.removeprefix("./")] = text
    return found


def _configs_above(text: str, root: Path) -> dict[str, str]:
    """The configurations of Hydra in a folder above the program, such as `../configs`,
    by their paths as if that folder were the program's own.
    """
    found = _HYDRA_FOLDER.search(text)
    if found is None:
        return {}
    folder = root / found[1]
    name = re.sub(r"^(\.\./)+", "", found[1]).strip("/")
    if ".." in name or not folder.is_dir() or folder.is_symlink():
        return {}
    texts = _texts(folder, _MOST_CONFIGS)
    return {f"{name}/{path}": text for path, text in texts}


def _small_text(path: Path) -> str | None:
    """A text of a usual length; None for any other file."""
    try:
        if path.stat().st_size > _LONGEST_CONFIG:
            return None
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def own_modules(text: str, root: Path) -> list[Path]:
    """The files that a program imports and that lie in its own folder."""
    names = _IMPORTED_MODULE.findall(text)[:_MOST_IMPORTED]
    paths = [root.joinpath(*name.split(".")).with_suffix(".py") for name in names]
    return [path for path in paths if path.is_file()]


@dataclass(frozen=True, slots=True)
class _CommandParts:
    """The words of a command: those before its program, the program, and those behind
    it. `is_module`: the program is the name of a module, behind `-m`.
    """

    launcher: tuple[str, ...]
    program: str
    arguments: tuple[str, ...]
    is_module: bool


def _split(words: Sequence[str]) -> _CommandParts:
    """Find the program in a command; InvalidInputError if there is none."""
    place = _place_of_program(words)
    if place is None:
        raise InvalidInputError.of(
            "PATH", "names no program", "name a script such as train.py"
        )
    is_module = place > 0 and words[place - 1] in ("-m", "--module")
    end_of_launcher = place - 1 if is_module else place
    return _CommandParts(
        launcher=tuple(words[:end_of_launcher]),
        program=words[place],
        arguments=tuple(words[place + 1 :]),
        is_module=is_module,
    )


def _place_of_program(words: Sequence[str]) -> int | None:
    """Which of the words is the program: a module, a script, or else the first word
    that is neither an option nor an interpreter.
    """
    is_launched = any(_is_launcher(word) for word in words)
    for place, word in enumerate(words):
        following = words[place + 1] if place + 1 < len(words) else ""
        is_module = word == "-m" or (word == "--module" and is_launched)
        if is_module and following and not _is_launcher(following):
            return place + 1
        if word.endswith((".py", ".ipynb")):
            return place
        is_option = word.startswith("-")
        is_interpreter = _INTERPRETER.fullmatch(Path(word).name) is not None
        if not (is_launched or is_option or is_interpreter):
            return place
    return None


def _is_launcher(word: str) -> bool:
    """Whether it is a program or a module that starts the processes of another."""
    return Path(word).name in _LAUNCHERS or word.startswith(_LAUNCHER_MODULES)


def _module_path(folder: Path, module: str) -> Path:
    parts = module.split(".")
    bases = [folder.joinpath(*parts), folder.joinpath("src", *parts)]
    paths = [
        base / "__main__.py" if base.is_dir() else base.with_suffix(".py")
        for base in bases
    ]
    return next((path for path in paths if path.is_file()), paths[0])


def _entry_of(folder: Path) -> Path:
    """The program of a folder: what its `pyproject.toml` starts, or the file with the
    usual name, or the only one.
    """
    declared = _declared(folder)
    if declared is not None:
        return declared
    for name in _LIKELY:
        if (folder / name).is_file():
            return folder / name
    programs = sorted(folder.glob("*.py")) + sorted(folder.glob("*.ipynb"))
    likely = [path for path in programs if "train" in path.name]
    if len(likely) == 1 or len(programs) == 1:
        return (likely or programs)[0]
    names = ", ".join(path.name for path in programs[:8]) or "none"
    fault = f"does not say which program of {folder} is meant"
    raise InvalidInputError.of("PATH", fault, f"name one; there are: {names}")


def _declared(folder: Path) -> Path | None:
    try:
        text = (folder / "pyproject.toml").read_text(encoding="utf-8")
        project: Any = tomllib.loads(text).get("project", {})
        targets: list[Any] = list(project.get("scripts", {}).values())
    except (OSError, ValueError, AttributeError):
        return None
    for target in targets:
        module = str(target).partition(":")[0].replace(".", "/")
        for base in (folder, folder / "src"):
            path = base / f"{module}.py"
            if path.is_file():
                return path
    return None


def _entry_text(path: Path) -> str:
    try:
        size = path.stat().st_size
        if size > 10 * _LONGEST:
            fault = f"{path.name} has {size / 1e6:.0f} MB"
            remedy = "name the program itself, without its data"
            raise InvalidInputError.of("PATH", fault, remedy)
        content = path.read_bytes()
    except OSError as error:
        fault = f"{path} cannot be read: {error.strerror}"
        raise InvalidInputError.of("PATH", fault, "check the path") from None
    try:
        return content.decode()
    except UnicodeDecodeError:
        fault = f"{path.name} is not UTF-8 text"
        raise InvalidInputError.of("PATH", fault, "name a Python program") from None


def _packages_beside(text: str, root: Path) -> Iterator[Path]:
    """The packages that a program imports and that lie in a folder above its own, as
    they do in a project whose programs have a folder to themselves.
    """
    names = sorted(set(_IMPORTED.findall(text)) - _LIBRARIES)
    here = {name for name in names if _is_module(root, name)}
    for folder in list(root.absolute().parents)[:_MOST_ABOVE]:
        if folder == Path.home() or folder == Path(folder.anchor):
            return
        for name in names:
            for package in (folder / name, folder / "src" / name):
                if name not in here and (package / "__init__.py").is_file():
                    here.add(name)
                    yield package
        if any((folder / name).exists() for name in _TOP_OF_PROJECT):
            return


def _is_module(folder: Path, name: str) -> bool:
    return (folder / name).is_dir() or (folder / f"{name}.py").is_file()


def _texts(root: Path, most: int = _MOST_FILES) -> Iterator[tuple[str, str]]:
    """The texts of at most so many files that a program may read or import."""
    left = _ALL_BYTES
    found = 0
    for path, size in _files(root):
        if found >= most or size > left:
            return
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        left -= size
        found += 1
        yield path.relative_to(root).as_posix(), text


def _files(root: Path) -> Iterator[tuple[Path, int]]:
    """Regular files with a fitting name, nearest first, and their sizes."""
    seen = 0
    waiting = [(root, 0)]
    while waiting:
        (folder, depth) = waiting.pop(0)
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            seen += 1
            if seen > _MOST_SEEN:
                return
            if entry.is_dir(follow_symlinks=False):
                is_plain = not entry.name.startswith(".") and entry.name not in _SKIPPED
                if is_plain and depth < _DEEPEST:
                    waiting.append((Path(entry.path), depth + 1))
            elif entry.name.endswith(_ENDINGS) and entry.is_file(follow_symlinks=False):
                size = entry.stat(follow_symlinks=False).st_size
                limit = _LONGEST if entry.name.endswith(".py") else _LONGEST_CONFIG
                if size <= limit:
                    yield Path(entry.path), size
