"""Verification: synthetic jobs that prove, class by class, that an executor is what it claims."""
