"""Verification: synthetic jobs that prove that executors are what they claim to be.

How it works is described in docs/verification.md. The way through the modules:

- `classes`, `executors`, `generators`, `prompts`: what is verified, and with what.
- `pipelines/`: make series, draw workloads and have them answered, ahead of time.
- `batch`, `batch_samples`, `check`: one batch of checks behind one start barrier.
- `channels`, `hub`, `timed_reader`, `solver_jobs`, `protocol`, `answers`: the way to
  the solvers.
- `trusted_executor`, `trusted_changes`, `recheck`: the machine whose answers are taken
  as correct.
- `claims`, `verdict`, `receipts`, `evidence`: how a check is judged and proven.
- `fingerprints`, `tolerance`, `tolerance_limits`, `chance`, `tolerant_check`: how
  answers are compared where rounding differs.
- `trust`, `settlement`: what a verdict changes, here and in the instance.
- `database`, `tables`, `records/`: what is stored.
- `session`, `verify`, `preparation`, `calibration`, `tolerance_calibration`,
  `run_report`, `commands`, `commands_evidence`, `commands_calibrate`: the commands.
- `solver/`: the program that runs on the executor. It imports nothing of gpuyard.
"""
