"""What ends a run with a sentence instead of a traceback."""


class RunError(Exception):
    """The run cannot go on; its text tells a person what is wrong and where."""
