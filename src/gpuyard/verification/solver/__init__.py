"""What runs on the executor. It imports nothing of ours, is copied there, and needs Python 3.9 or newer."""
