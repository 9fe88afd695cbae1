"""What runs on the cluster: one model over many processes.

It imports nothing of ours, and is copied there.
"""
