"""The key of a workspace: its project and its name, as a relative path."""

from urllib.parse import quote, unquote

DEFAULT_PROJECT = "default"
"""The project of jobs that name none."""


def workspace_key(project: str | None, name: str) -> str:
    """`PROJECT/NAME`, with `/` and a leading dot escaped: neither part can lead
    elsewhere (`..`) or be hidden.
    """
    return f"{folder_name(project or DEFAULT_PROJECT)}/{folder_name(name)}"


def workspace_names(key: str) -> tuple[str, str]:
    """The project and the name; the inverse of `workspace_key`."""
    project, _, name = key.partition("/")
    return unquote(project), unquote(name)


def folder_name(name: str) -> str:
    """The name escaped for a folder."""
    text = quote(name, safe=" ")
    return f"%2E{text[1:]}" if text.startswith(".") else text
