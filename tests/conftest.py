"""What tests of any room may ask for."""

import signal

from tests.support.postgres import postgres

__all__ = ["postgres"]

# Tests that run in the background of a shell ignore Ctrl-C, and so would every program they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
