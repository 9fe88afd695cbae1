"""The plugin of studies, as the command finds it."""

from gpuyard.client.plugin import Plugin

plugin = Plugin(
    "study",
    "Compare ways of splitting a large model over a cluster.",
    "gpuyard.studies.commands_run",
)
