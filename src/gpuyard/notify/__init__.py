"""Webhooks: who is told of what happens, at least once and in order."""
