"""Which workspace is meant: a project and a name, as one relative path below whatever holds them."""

from urllib.parse import quote, unquote

NOBODYS = "default"
"""The project of jobs that name none."""


def workspace_key(project: str | None, name: str) -> str:
    """`PROJECT/NAME`, where neither part leaves its place (`/`, `..`) nor hides (a dot in front)."""
    return f"{_quoted(project or NOBODYS)}/{_quoted(name)}"


def workspace_names(key: str) -> tuple[str, str]:
    """The project and the name; the inverse of `workspace_key`."""
    project, _, name = key.partition("/")
    return unquote(project), unquote(name)


def _quoted(name: str) -> str:
    text = quote(name, safe=" ")
    return f"%2E{text[1:]}" if text.startswith(".") else text
