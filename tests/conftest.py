"""What tests of any room may ask for."""

from tests.support.postgres import postgres

__all__ = ["postgres"]
