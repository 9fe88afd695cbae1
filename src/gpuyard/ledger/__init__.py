"""The ledger: the memory of gpuyard.

One journal of events, and state tables that are its fold.
"""
