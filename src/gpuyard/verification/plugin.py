"""Registers `gpuyard verify` with the command line."""

from gpuyard.client.plugin import Plugin

plugin = Plugin(
    "verify",
    "Prove that GPU executors are what they claim.",
    "gpuyard.verification.commands_calibrate",
)
