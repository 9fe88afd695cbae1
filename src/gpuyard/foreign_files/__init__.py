"""Reads the job files of other tools: batch scripts of Slurm and tasks of SkyPilot.

Each becomes the body of one of our jobs. What gpuyard cannot do as the file says it is
an error that names the place; what makes no difference to the results is a note.
"""
