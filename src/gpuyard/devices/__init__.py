"""What a host has: its GPUs (NVML, or `nvidia-smi` where NVML fails), processors, memory and identity."""
