"""Which modules a Python source imports, read from its syntax tree: a word in a comment or a string is no import."""

import ast
import re
import warnings

_STRING = re.compile(r"\"\"\".*?\"\"\"|'''.*?'''", re.DOTALL)
_MAGIC = re.compile(r"^([ \t]*)[%!].*$", re.MULTILINE)  # a notebook's: `%matplotlib inline`, `!pip install …`
_FROM = re.compile(r"from\s+(\w+)[\w.]*\s+import\b")
_IMPORTERS = frozenset({"__import__", "import_module"})


def imported(source: str) -> frozenset[str]:
    """The top-level names of the modules that `source` imports, wherever it does: `torch` for `import torch.nn as nn`.

    `importlib.import_module("torch")` and `__import__("torch")` count, relative imports do not. A source that is not
    Python 3 as a whole (a notebook's cell, Python 2) is read line by line, as far as it can be. Never raises.
    """
    source = source.removeprefix("\ufeff")
    for text in (source, _MAGIC.sub(r"\1pass", source)):
        tree = _parsed(text)
        if tree is not None:
            return frozenset(_names(tree))
    lines = _STRING.sub("''", source).splitlines()
    return frozenset(name for line in lines if "import" in line for name in _names_of_line(line.strip()))


def _parsed(text: str) -> ast.Module | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what Python thinks of the user's escapes is not for our log
        try:
            return ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: nested too deeply for it
            return None


def _names_of_line(line: str) -> set[str]:
    tree = _parsed(line)
    if tree is not None:
        return _names(tree)
    start = _FROM.match(line)  # whose names go on over several lines
    return {start[1]} if start and start[1].isidentifier() else set()


def _names(tree: ast.Module) -> set[str]:
    modules: list[str] = []
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                modules += [alias.name for alias in node.names]
            case ast.ImportFrom(module=str(module), level=0):
                modules.append(module)
            case ast.Call():
                modules += _called(node)
            case _:
                pass
    return {name for module in modules if (name := module.partition(".")[0]).isidentifier()}


def _called(call: ast.Call) -> list[str]:
    """The module that a call imports, where it says so in so many words."""
    match call.func:
        case ast.Name(id=function) | ast.Attribute(attr=function) if function in _IMPORTERS:
            arguments = call.args[:1] or [keyword.value for keyword in call.keywords if keyword.arg == "name"]
            return [a.value for a in arguments if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        case _:
            return []
