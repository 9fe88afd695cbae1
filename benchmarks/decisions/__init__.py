"""Measurements behind docs/decisions.md; run each with `python -m`."""
