"""What the configuration file of a launcher says, as `accelerate launch` takes one."""

# The values of a followed program can be anything.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from collections.abc import Mapping, Sequence
from typing import Any

from gpuyard.insight.needs.config_files import parsed_config
from gpuyard.insight.needs.sources import Sources
from gpuyard.insight.needs.values import Place, Thing, Value, whole

_OPTIONS = ("--config_file", "--config-file")


def launch_config(sources: Sources, launcher: Sequence[str]) -> Thing | None:
    """The configuration that the words of a launcher name, in the words of a trainer;
    None without such a file.
    """
    path = _path_in(launcher)
    text = sources.text(path) if path else None
    config = parsed_config(text) if text is not None else None
    if not path or not isinstance(config, dict):
        return None
    made = Thing("gpuyard.LaunchConfig", Place(path, 1))
    made.keywords = {
        "num_processes": config.get("num_processes"),
        "num_machines": config.get("num_machines"),
        "mixed_precision": config.get("mixed_precision"),
        **_shared_out(config),
    }
    return made


def _path_in(launcher: Sequence[str]) -> str | None:
    for at, word in enumerate(launcher):
        (option, equals, value) = word.partition("=")
        if option in _OPTIONS:
            return value if equals else next(iter(launcher[at + 1 : at + 2]), None)
    return None


def _shared_out(config: Mapping[Value, Value]) -> dict[str, Any]:
    """What the GPUs share out."""
    kind = str(config.get("distributed_type")).upper()
    deepspeed = config.get("deepspeed_config")
    if kind == "DEEPSPEED" and isinstance(deepspeed, dict):
        stage = whole(deepspeed.get("zero_stage"))
        return {"config": {"zero_optimization": {"stage": stage or 0}}}
    return {"fsdp": "full_shard"} if kind == "FSDP" else {}
