"""Which workspace is meant: a project and a name, as one relative path below whatever holds them."""

from urllib.parse import quote, unquote

NOBODYS = "default"
"""The project of jobs that name none."""


def workspace_key(project: str | None, name: str) -> str:
    """`PROJECT/NAME`, where neither part leaves its place (`/`, `..`) nor hides (a dot in front)."""
    return f"{folder_name(project or NOBODYS)}/{folder_name(name)}"


def workspace_names(key: str) -> tuple[str, str]:
    """The project and the name; the inverse of `workspace_key`."""
    project, _, name = key.partition("/")
    return unquote(project), unquote(name)


def folder_name(name: str) -> str:
    """A name as that of a folder."""
    text = quote(name, safe=" ")
    return f"%2E{text[1:]}" if text.startswith(".") else text
