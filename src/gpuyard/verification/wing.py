"""The wing of verification, as the command finds it."""

from gpuyard.client.wing import Wing

wing = Wing("verify", "Prove that GPU executors are what they claim.", "gpuyard.verification.commands_look")
