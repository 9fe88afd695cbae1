"""Sweeps: one program run many times with other arguments, driven over the client."""
