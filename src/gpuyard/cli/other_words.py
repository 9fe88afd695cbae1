"""What other tools call our commands, so that who types their word is told ours."""

_OURS = {
    "curves": "show",
    "delete": "cancel",
    "describe": "show",
    "info": "show",
    "inspect": "show",
    "kill": "cancel",
    "launch": "run",
    "list": "jobs",
    "log": "logs",
    "ls": "jobs",
    "metrics": "show",
    "monitor": "top",
    "ps": "jobs",
    "queue": "jobs",
    "requeue": "resume",
    "restart": "resume",
    "retry": "resume",
    "rm": "cancel",
    "sbatch": "submit",
    "scancel": "cancel",
    "serve": "up",
    "shell": "ssh",
    "shutdown": "down",
    "sinfo": "nodes",
    "squeue": "jobs",
    "srun": "run",
    "start": "run",
    "stat": "jobs",
    "status": "jobs",
    "stop": "cancel",
    "sub": "submit",
    "tail": "logs -f",
}


def our_word(word: str) -> str | None:
    """Our command for what `word` means elsewhere, such as `jobs` for `ps`."""
    return _OURS.get(word)
