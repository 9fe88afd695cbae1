"""Decides which models are loaded, and which GPU runs which item of a batch. All of it
is pure: no I/O, clock, randomness or threads.
"""
