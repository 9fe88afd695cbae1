"""The wing of studies, as the command finds it."""

from gpuyard.client.wing import Wing

wing = Wing("study", "Compare ways of splitting a large model over a cluster.", "gpuyard.studies.commands_run")
