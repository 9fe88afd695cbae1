"""Webhooks and e-mails: who is told of what happens, at least once and in order."""
