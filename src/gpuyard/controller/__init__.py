"""The controller: observe, decide, act, record."""
