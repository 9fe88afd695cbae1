"""Settings and the layout of a gpuyard home."""
