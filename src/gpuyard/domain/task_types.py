"""The types of the seed document's tasks."""

from typing import Literal

LlmTaskType = Literal["parse", "transform", "generate", "execute", "decide"]
ScriptTaskType = Literal["transcribe", "embed", "process"]
