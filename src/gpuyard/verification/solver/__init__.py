"""What runs on an executor's machine: Python's standard library, and nothing of ours."""
