"""The scripts that come with gpuyard, a file each.

They run in other people's environments (see `node/items.py`).
"""
