"""gpuyard runs jobs on mycloud."""
