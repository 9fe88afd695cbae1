"""`/api/v1/templates`: programs to start from, with all that a job of them needs."""

import base64
import tomllib
from typing import Any

from pydantic import BaseModel

from gpuyard import templates as catalogue
from gpuyard.domain.errors import NotFoundError
from gpuyard.server.api_router import api_router
from gpuyard.storage.place import in_background

router = api_router("/templates", tag="templates")


class TemplateSummary(BaseModel):
    """A template's name, and what it is in one line."""

    name: str
    description: str


class TemplatePage(BaseModel):
    """The templates by name."""

    items: list[TemplateSummary]
    next: str | None = None


class TemplateContent(TemplateSummary):
    """A template: `spec` is a JobSpec of its small size, `files` are the texts of its
    program by path, and `binary` the others, in base64.
    """

    spec: dict[str, Any]
    files: dict[str, str]
    binary: dict[str, str]


@router.get("")
async def list_templates() -> TemplatePage:
    """The templates."""
    found = await in_background(_summaries)
    return TemplatePage(items=found)


@router.get("/{name}")
async def show_template(name: str) -> TemplateContent:
    """One template with its files."""
    if name not in catalogue.names():
        raise NotFoundError(
            f"There is no template {name!r}.", "`gpuyard templates` lists them."
        )
    return await in_background(_template, name)


def _summaries() -> list[TemplateSummary]:
    return [
        TemplateSummary(name=name, description=catalogue.describe(name))
        for name in catalogue.names()
    ]


def _template(name: str) -> TemplateContent:
    files: dict[str, str] = {}
    binary: dict[str, str] = {}
    for path, content in catalogue.program_files(name).items():
        try:
            files[path] = content.decode()
        except UnicodeDecodeError:
            binary[path] = base64.b64encode(content).decode()
    return TemplateContent(
        name=name,
        description=catalogue.describe(name),
        spec=tomllib.loads(catalogue.job_file(name).read_text(encoding="utf-8")),
        files=files,
        binary=binary,
    )
