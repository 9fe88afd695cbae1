"""The OpenAI-compatible entrance: requests wait in memory and are passed on to resident
models.
"""
