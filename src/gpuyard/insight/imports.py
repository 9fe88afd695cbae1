"""Finds the modules that a Python source imports, from its syntax tree, so that a word
in a comment or a string does not count.
"""

import ast
import re
import warnings

_STRING = re.compile(r"\"\"\".*?\"\"\"|'''.*?'''", re.DOTALL)
# Commands of a notebook: `%matplotlib inline`, `!pip install …`.
_MAGIC = re.compile(r"^([ \t]*)[%!].*$", re.MULTILINE)
_FROM = re.compile(r"from\s+(\w+)[\w.]*\s+import\b")
_IMPORTERS = frozenset({"__import__", "import_module"})


def imported(source: str) -> frozenset[str]:
    """The top-level names of the modules that `source` imports anywhere: `torch` for
    `import torch.nn as nn`.

    `importlib.import_module("torch")` and `__import__("torch")` count, relative imports
    do not. A source that is not valid Python 3 as a whole (a notebook's cell, Python 2)
    is read line by line, as far as possible. Never raises.
    """
    source = source.removeprefix("\ufeff")
    for text in (source, _MAGIC.sub(r"\1pass", source)):
        tree = _parsed(text)
        if tree is not None:
            return frozenset(_names(tree))
    names: set[str] = set()
    lines = _STRING.sub("''", source).splitlines()
    for line in lines:
        if "import" in line:
            names |= _names_of_line(line.strip())
    return frozenset(names)


def _parsed(text: str) -> ast.Module | None:
    with warnings.catch_warnings():
        # Warnings about the user's code do not belong in our log.
        warnings.simplefilter("ignore")
        try:
            return ast.parse(text)
        # The last two: the code is nested too deeply.
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None


def _names_of_line(line: str) -> set[str]:
    tree = _parsed(line)
    if tree is not None:
        return _names(tree)
    start = _FROM.match(line)  # its names continue on the next lines
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
    names = {module.partition(".")[0] for module in modules}
    return {name for name in names if name.isidentifier()}


def _called(call: ast.Call) -> list[str]:
    """The module that a call imports, if it is given as a literal string."""
    match call.func:
        case ast.Name(id=function) | ast.Attribute(attr=function):
            pass
        case _:
            return []
    if function not in _IMPORTERS:
        return []
    arguments = call.args[:1]
    if not arguments:
        named = [keyword for keyword in call.keywords if keyword.arg == "name"]
        arguments = [keyword.value for keyword in named]
    literals = [item.value for item in arguments if isinstance(item, ast.Constant)]
    return [value for value in literals if isinstance(value, str)]
