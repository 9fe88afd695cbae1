"""Insight: reads what a training program prints and says how far it is.

No I/O and no clock; times are passed in.
"""
