"""Kubernetes: a Job for each attempt."""
