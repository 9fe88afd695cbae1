"""Slurm: `sbatch` submits jobs, and one `squeue` lists the state of all of them."""
