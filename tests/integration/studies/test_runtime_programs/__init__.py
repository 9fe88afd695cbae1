"""What the tests of the runtime run and share."""
