"""`gpuyard completion`: the script by which a shell completes words.

The script calls `gpuyard __complete SHELL …`, which `answer` carries out. Bash gives
the line as it was typed, because it has taken the words apart at each `:` and `=`; zsh
and fish give the words. Bash gets what to insert, quoted; zsh and fish quote
themselves.
"""

import re
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, cast

import typer

_BASH = r"""# gpuyard completes words in bash: source this file.
_gpuyard_completion() {
    local found
    COMPREPLY=()
    while IFS= read -r found; do
        COMPREPLY+=("$found")
    done < <("$1" __complete bash "${COMP_LINE:0:COMP_POINT}" "$COMP_WORDBREAKS" \
        2>/dev/null)
    if [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *[=:] ]]; then
        compopt -o nospace
    fi
}
complete -o default -F _gpuyard_completion gpuyard
"""
_ZSH = r"""#compdef gpuyard
# gpuyard completes words in zsh: this file is _gpuyard in a folder of fpath.
_gpuyard() {
    local -a found ending
    found=("${(@f)$("${(@Q)words[1]}" __complete zsh "${(@Q)words[1,CURRENT]}" \
        2>/dev/null)}")
    [[ ${found[1]} == *= ]] && ending=(-S '')
    if [[ -n ${found[1]} ]]; then
        _describe -V gpuyard found "${(@)ending}"
    else
        _files
    fi
}
# The first call of a function that zsh loads runs this file as its body.
if [[ ${funcstack[1]} == _gpuyard ]]; then
    _gpuyard
else
    compdef _gpuyard gpuyard
fi
"""
_FISH = r"""# gpuyard completes words in fish: ~/.config/fish/completions/gpuyard.fish.
function __gpuyard_find
    set -l words (commandline -opc) (commandline -ct | string unescape)
    test (count $words) -gt 1; or set -a words ''
    set -g __gpuyard_found (gpuyard __complete fish $words 2>/dev/null)
    test -n "$__gpuyard_found"
end
complete -c gpuyard -f -n __gpuyard_find -a '$__gpuyard_found'
"""


class Shell(StrEnum):
    """A shell that has a script."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


_SCRIPTS = {Shell.BASH: _BASH, Shell.ZSH: _ZSH, Shell.FISH: _FISH}
# Where the shell finds it, and the line in a file of the shell that it needs for that.
_PLACES = {
    Shell.BASH: "~/.bash_completions/gpuyard.sh",
    Shell.ZSH: "~/.zfunc/_gpuyard",
    Shell.FISH: "~/.config/fish/completions/gpuyard.fish",
}
_LINES = {
    Shell.BASH: ("~/.bashrc", "source ~/.bash_completions/gpuyard.sh"),
    Shell.ZSH: ("~/.zshrc", "fpath+=~/.zfunc; autoload -Uz compinit; compinit"),
}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(completion)


def completion(
    shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
    install: Annotated[
        bool,
        typer.Option(
            "--install", help="Write it where the shell finds it, for new shells."
        ),
    ] = False,
) -> None:
    """Print the script by which a shell completes commands, options, jobs and so on."""
    if not install:
        typer.echo(_SCRIPTS[shell], nl=False)
        return
    script = Path(_PLACES[shell]).expanduser()
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(_SCRIPTS[shell])
    typer.echo(f"{script} is written; new shells complete gpuyard's words")
    if shell in _LINES:
        file, line = _LINES[shell]
        _add_line(Path(file).expanduser(), line)


def _add_line(file: Path, line: str) -> None:
    before = file.read_text() if file.exists() else ""
    if line in before.splitlines():
        return
    ending = "" if not before or before.endswith("\n") else "\n"
    file.write_text(f"{before}{ending}{line}\n")
    typer.echo(f"{file} now has the line: {line}")


# --- What the script calls ----------------------------------------------------------


def answer(words: Sequence[str]) -> None:
    """Print what the shell may insert, a line each; `words` follow `__complete`."""
    shell = Shell(words[0])
    if shell is Shell.BASH:
        line = EditedLine.read(words[1])
        values = (value for value, _ in suggestions(line.words))
        found = [line.insertion(value, words[2]) for value in values]
    elif shell is Shell.ZSH:
        found = [_described(*one) for one in suggestions(words[1:])]
    else:
        found = ["\t".join(one).rstrip("\t") for one in suggestions(words[1:])]
    sys.stdout.write("".join(f"{one}\n" for one in found))


def suggestions(words: Sequence[str]) -> list[tuple[str, str]]:
    """What may stand in place of the last word, the first being `gpuyard` itself."""
    # Typer brings its own Click along, and only this class of both of them.
    from typer._completion_classes import BashComplete

    from gpuyard.cli.main import app

    group = typer.main.get_command(app)
    completer = cast(Any, BashComplete)(group, {}, "gpuyard", "")
    found = completer.get_completions(list(words[1:-1]), words[-1])
    return [(str(item.value), _one_line(item.help or "")) for item in found]


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _described(value: str, about: str) -> str:
    """As zsh's `_describe` takes it."""
    escaped = value.replace("\\", "\\\\").replace(":", "\\:")
    return f"{escaped}:{about}" if about else escaped


class EditedLine:
    """A line of bash up to the cursor: its words, and how the last one is quoted."""

    def __init__(self, words: list[str], quote: str) -> None:
        self.words = words
        self.quote = quote

    @classmethod
    def read(cls, typed: str) -> "EditedLine":
        """Take the words apart as bash does; the last one may be open."""
        words: list[str] = []
        word: str | None = None
        quote = ""
        escaped = False
        for character in typed:
            if escaped:
                word = (word or "") + character
                escaped = False
            elif character == "\\" and quote != "'":
                word = word or ""
                escaped = True
            elif quote and character == quote:
                quote = ""
            elif quote:
                word = (word or "") + character
            elif character in "'\"":
                word = word or ""
                quote = character
            elif character in " \t\n":
                words += [] if word is None else [word]
                word = None
            else:
                word = (word or "") + character
        return cls([*words, word or ""], quote)

    def insertion(self, value: str, breaks: str) -> str:
        """What bash puts in place of the last part of the last word: it takes words
        apart at `breaks`, too.
        """
        if self.quote == "'":
            return value.replace("'", "'\\''")
        if self.quote:
            return re.sub(r'([\\"$`])', r"\\\1", value)
        begun = _escaped(self.words[-1])
        ends = [begun.rfind(mark) for mark in breaks if mark in ":=@"]
        return _escaped(value)[max([*ends, -1]) + 1 :]


def _escaped(text: str) -> str:
    return re.sub(r"([^\w@%+=:,./-])", r"\\\1", text)
