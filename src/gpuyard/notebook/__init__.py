"""Jobs from notebooks: the magics `%%gpuyard` and `%gpuyard` of IPython.

A cell becomes a script, which the command `gpuyard run` submits: so a cell has the
options of that. Then the job is followed over the client.
"""
