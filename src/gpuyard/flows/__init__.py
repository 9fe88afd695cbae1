"""Flows: steps that need one another, of which only those run that have changed."""
