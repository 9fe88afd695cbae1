"""Needs: reads a training program and says what it needs, without running it.

The stages: `sources` (texts and syntax trees), `interpreter` (follows the program with
the values that are known), `facts` (models, optimisers, data, batch, precision, GPUs),
`memory` and `run_time` (what these cost), `recommend` (the size to take, and why).
"""
