"""The solver: runs on the executor, with the standard library and nothing of ours."""
