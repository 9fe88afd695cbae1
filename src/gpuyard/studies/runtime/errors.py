"""The error that ends a run with a message instead of a traceback."""


class RunError(Exception):
    """The run cannot go on; the message says what is wrong and where."""
