"""The OpenAPI document: FastAPI's, plus the schemas that it cannot derive."""

from typing import Any

from fastapi import FastAPI
from pydantic.json_schema import models_json_schema

from gpuyard.domain.arrays import ArraySpec
from gpuyard.domain.jobconfig import JobConfig
from gpuyard.domain.jobspec import JobSpec
from gpuyard.domain.schedules import ScheduleSpec
from gpuyard.gateway import openai
from gpuyard.server.problems import MEDIA_TYPE, Problem

Responses = dict[int | str, dict[str, Any]]
_REF = "#/components/schemas/"
# Bodies that a route reads by itself, and the form of every error.
_, _BODIES = models_json_schema(
    [
        (JobSpec, "validation"),
        (JobConfig, "validation"),
        (ArraySpec, "validation"),
        (ScheduleSpec, "validation"),
        (Problem, "serialization"),
    ],
    ref_template=_REF + "{model}",
)
PROBLEMS: Responses = {
    "default": {
        "description": "An error (RFC 9457)",
        "content": {MEDIA_TYPE: {"schema": {"$ref": _REF + "Problem"}}},
    }
}

_OPENAI_ERROR = {
    "description": "An error in OpenAI's form",
    "content": {"application/json": {"schema": {"type": "object"}}},
}


def json_body(*models: str) -> dict[str, Any]:
    """A request body that is one of these schemas, or a list of them."""
    one = {"anyOf": [{"$ref": _REF + name} for name in models]}
    return _body({"anyOf": [one, {"type": "array", "items": one}]})


def one_json_body(model: str) -> dict[str, Any]:
    """A request body of this schema."""
    return _body({"$ref": _REF + model})


def _body(schema: dict[str, Any]) -> dict[str, Any]:
    return {
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": schema}},
        }
    }


def one_of(*models: str) -> dict[str, Any]:
    """A JSON answer that is one of these schemas."""
    return {
        "content": {
            "application/json": {
                "schema": {"anyOf": [{"$ref": _REF + name} for name in models]}
            }
        }
    }


def text(*media_types: str) -> Responses:
    """An answer that is not JSON."""
    schema = {"schema": {"type": "string"}}
    return {200: {"content": dict.fromkeys(media_types, schema)}}


class GpuyardApi(FastAPI):
    """FastAPI with the schemas of bodies that routes read by themselves."""

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document."""
        document = super().openapi()
        document["components"]["schemas"] |= _BODIES["$defs"]
        for path, operations in document["paths"].items():
            if path.startswith(f"{openai.PREFIX}/"):
                for operation in operations.values():
                    operation["responses"]["default"] = _OPENAI_ERROR
        return document
