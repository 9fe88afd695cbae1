"""The name of the provider whose nodes have agents of gpuyard."""

OWN_NODES = "local"
"""A job without a provider may run there; its program is a process of a host of ours,
not of an external queue.
"""
