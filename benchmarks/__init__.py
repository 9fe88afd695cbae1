"""How fast gpuyard is, each figure beside the floor of the same run; `python -m
benchmarks --help`.
"""
