"""The brain: which job starts where, and why the others wait. Pure: no I/O, no clock, no randomness, no threads.

`observe` folds events into a `View`, `decide` reads it and answers with actions, `why` explains a job that waits.
"""
