"""Data that jobs read and leave: blobs, checkpoints."""
