"""What runs on a GPU host: the keeper, the agent, the launcher of processes, model
servers and script workers.
"""
