"""Runs one attempt where no agent of gpuyard is: in a Slurm step, in a pod, on a rented
machine.

`python3 runner.pyz DIR` runs what `DIR/order.json` describes, once. It writes what the
provider reads: `log`, `started.json`, `checkpoints.json` and, last of all, `exit.json`.
`python3 runner.pyz DIR --share` runs one node's share of a job on several nodes, under
the launcher that the first runner started. It writes none of these files.
`python3 runner.pyz DIR --beside MARK COMMAND…` runs a command beside the program, with
its environment, in its folder; `beside-MARK.json` tells its exit code.

It runs in the environment of the machine: the standard library only, any Python from
3.6 on. `providers/runner_archive.py` packs these modules into one file, `runner.pyz`,
and that is copied to the machine. The runner parses no output. If `DIR/work.tar`
exists, it holds the job's own folder.

The order: `command`, `workdir`, `environment`, `gpus` (true when it was given any),
`stdin` (true when there is a file of that name), `timeout_s`, `grace_s`, `checkpoint`
(`path`, `signal`, `every_s`), `ids` (the variables that gpuyard sets), `limit_s` (when
the external queue ends it), `watch` (true where no signals arrive), `retries` (how many
more times a program runs that fails by itself; its times count from the first run).
`secrets.json` has more variables, if there are any. The runner removes it once it has
read it, and hides the values in the log.
"""
