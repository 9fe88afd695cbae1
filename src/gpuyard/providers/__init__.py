"""Providers run attempts: on this host, in containers, on Slurm, Kubernetes or a cloud.

All implement the interface in `base`.
"""
