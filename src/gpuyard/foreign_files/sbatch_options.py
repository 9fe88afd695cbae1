"""The options of `sbatch`: which gpuyard reads, which make no difference to a job here,
and which it must refuse. Names are those of Slurm's manual.
"""

SHORT_NAMES = {
    "A": "account",
    "a": "array",
    "b": "begin",
    "B": "extra-node-info",
    "C": "constraint",
    "c": "cpus-per-task",
    "D": "chdir",
    "d": "dependency",
    "e": "error",
    "F": "nodefile",
    "G": "gpus",
    "H": "hold",
    "i": "input",
    "J": "job-name",
    "k": "no-kill",
    "L": "licenses",
    "M": "clusters",
    "m": "distribution",
    "N": "nodes",
    "n": "ntasks",
    "O": "overcommit",
    "o": "output",
    "p": "partition",
    "Q": "quiet",
    "q": "qos",
    "S": "core-spec",
    "s": "oversubscribe",
    "t": "time",
    "v": "verbose",
    "W": "wait",
    "w": "nodelist",
    "x": "exclude",
}

READ = frozenset(
    {
        "array",
        "chdir",
        "comment",
        "cpus-per-gpu",
        "cpus-per-task",
        "dependency",
        "export",
        "gpus",
        "gpus-per-node",
        "gpus-per-task",
        "gres",
        "hold",
        "input",
        "job-name",
        "mem",
        "mem-per-cpu",
        "mem-per-gpu",
        "nodes",
        "ntasks",
        "ntasks-per-node",
        "signal",
        "time",
    }
)
"""What `sbatch.py` turns into fields of a job."""

ONLY_ON_SLURM = {
    "account": "account",
    "constraint": "constraint",
    "partition": "partition",
    "qos": "qos",
}
"""Options that are passed on, by their name in `provider_options`."""

_OUTPUT = "gpuyard keeps the output: `gpuyard logs JOB`"
_MAIL = "`gpuyard run --notify mail:ana@example.org` tells of the end of a job"
_CORES = "gpuyard leaves it to the system which cores a program runs on"
_OWN_GPUS = "a GPU is never shared with another job"
_CALLER = "it concerns the call of sbatch"
_SLURM = "it concerns how Slurm plans or counts"

UNUSED = {
    "acctg-freq": _SLURM,
    "contiguous": _SLURM,
    "cores-per-socket": _CORES,
    "cpu-bind": _CORES,
    "cpu-freq": _SLURM,
    "delay-boot": _SLURM,
    "distribution": _CORES,
    "error": _OUTPUT,
    "exclusive": f"other jobs may use the node, too; {_OWN_GPUS}",
    "extra-node-info": _CORES,
    "get-user-env": "the job has the environment of this shell",
    "gpu-bind": "each task sees all GPUs of the job",
    "gpu-freq": _SLURM,
    "hint": _CORES,
    "ignore-pbs": _CALLER,
    "kill-on-invalid-dep": "a job whose condition cannot come true fails",
    "mail-type": _MAIL,
    "mail-user": _MAIL,
    "mem-bind": _CORES,
    "mincpus": _SLURM,
    "monitor": _SLURM,
    "nice": "see `gpuyard run --priority`",
    "no-kill": "a job on several nodes ends when one of them is lost",
    "no-requeue": "a job is tried again only where `retry_count` says so",
    "ntasks-per-core": _CORES,
    "ntasks-per-socket": _CORES,
    "open-mode": _OUTPUT,
    "output": _OUTPUT,
    "overcommit": _SLURM,
    "oversubscribe": _OWN_GPUS,
    "parsable": _CALLER,
    "power": _SLURM,
    "prefer": _SLURM,
    "priority": "see `gpuyard run --priority`",
    "profile": _SLURM,
    "propagate": "limits of this shell stay here",
    "quiet": _CALLER,
    "reboot": _SLURM,
    "requeue": "what loses its place goes back to the queue; see `--retries`",
    "sockets-per-node": _CORES,
    "spread-job": _SLURM,
    "stepmgr": _SLURM,
    "switches": _SLURM,
    "thread-spec": _CORES,
    "threads-per-core": _CORES,
    "time-min": "the job gets the whole time that it asks for",
    "tmp": "gpuyard does not book room on disks",
    "tres-bind": _CORES,
    "use-min-nodes": _SLURM,
    "verbose": _CALLER,
    "wait": "`gpuyard wait JOB` waits for the end",
    "wait-all-nodes": "all nodes begin together",
    "wckey": _SLURM,
}
"""Options without which a job has the same result, and why they are not used."""

_CHOOSES = "remove it: gpuyard chooses the nodes"
REFUSED = {
    "batch": "remove it: all nodes of a job are alike",
    "bb": "remove it: gpuyard knows no burst buffers",
    "bbf": "remove it: gpuyard knows no burst buffers",
    "begin": "remove it, and see `gpuyard schedule`",
    "cluster-constraint": _CHOOSES,
    "clusters": "remove it, and name a provider with `gpuyard run --provider`",
    "container": "remove it, and give the image with `gpuyard run --image`",
    "container-id": "remove it, and give the image with `gpuyard run --image`",
    "core-spec": "remove it, and ask for cores with --cpus-per-task",
    "deadline": (
        "remove it, and give the time with `gpuyard run --deadline`, which warns and"
        " ends nothing; --time limits the run"
    ),
    "exclude": _CHOOSES,
    "export-file": "remove it, and use --export",
    "gid": "remove it: a job runs as who submits it",
    "gres-flags": "remove it: gpuyard binds no cores to GPUs",
    "licenses": "remove it: gpuyard knows no licenses",
    "mcs-label": "remove it, and see `gpuyard project`",
    "network": "remove it: gpuyard configures no networks",
    "nodefile": _CHOOSES,
    "nodelist": _CHOOSES,
    "ntasks-per-gpu": "give --ntasks-per-node instead",
    "reservation": "remove it, and see `gpuyard reservations`",
    "segment": _CHOOSES,
    "test-only": "remove it: `gpuyard estimate` says what would happen",
    "tres-per-task": "give --gpus-per-task and --cpus-per-task instead",
    "uid": "remove it: a job runs as who submits it",
    "wrap": "remove it: it belongs to a call of sbatch without a script",
}
"""Options that gpuyard cannot do, and what people can do instead."""

FLAGS = frozenset(
    {
        "contiguous",
        "hold",
        "ignore-pbs",
        "no-requeue",
        "overcommit",
        "oversubscribe",
        "parsable",
        "quiet",
        "reboot",
        "requeue",
        "spread-job",
        "stepmgr",
        "test-only",
        "use-min-nodes",
        "verbose",
        "wait",
    }
)
"""Options without a value."""
OPTIONAL_VALUES = frozenset(
    {"exclusive", "get-user-env", "nice", "no-kill", "propagate"}
)
"""Options whose value, if they have one, stands behind a `=` in the same word."""
KNOWN = READ | ONLY_ON_SLURM.keys() | UNUSED.keys() | REFUSED.keys()
