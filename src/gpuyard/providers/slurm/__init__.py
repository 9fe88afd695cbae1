"""Slurm: jobs are submitted with `sbatch` and asked after with one `squeue` for all of them."""
