"""The command `gpuyard`.

Modules import what is slow inside their functions: `gpuyard --help` must be instant.
"""
