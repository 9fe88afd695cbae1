"""Reads what a host has: its GPUs (by NVML, `nvidia-smi` or AMD's library), processors,
memory and identity.
"""
