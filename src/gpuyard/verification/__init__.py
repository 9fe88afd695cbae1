"""Verification: synthetic jobs that prove whether an executor is what it claims, for each class of GPU."""
