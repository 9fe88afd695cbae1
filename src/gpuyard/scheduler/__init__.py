"""The scheduler: decides which job starts where, and explains why the others wait.

`observe` folds events into a `View`, `decide` returns actions for it, and `why`
explains a waiting job. All of it is pure: no I/O, clock, randomness or threads.
"""
