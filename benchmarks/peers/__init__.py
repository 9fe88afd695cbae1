"""The same work on systems of the same kind: no-op processes on two slots, each system
as fast as it lets itself be.

The modules `run_*.py` run in an environment of their own (`requirements.txt`) and print
the seconds they took.
"""
