"""The soak: an instance of real processes under load and `kill -9`, and every promise
checked at its end.
"""
