"""The options of `gpuyard run`, by what they are about."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from click import UsageError, get_current_context

from gpuyard.cli import suggest
from gpuyard.cli.options import (
    CpusOption,
    DatasetOption,
    DeadlineOption,
    GpuClassOption,
    GpuMemoryOption,
    GpusOption,
    ImageOption,
    MaxPriceOption,
    MemoryOption,
    NodesOption,
    PackagesOption,
    ProviderOption,
    QuarantinedOption,
    RegionOption,
    SecretOption,
    SpotOption,
    TierOption,
    TimeoutOption,
    WorkdirOption,
    WorkspaceOption,
)
from gpuyard.cli.schedules import (
    OverlapOption,
    StartingDeadlineOption,
    TimeZoneOption,
)
from gpuyard.domain.errors import InvalidInputError

Command = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="COMMAND…", help="A program, a .py or .sh file, or a template's name."
    ),
]
NameOption = Annotated[
    str | None, typer.Option(help="Its name, for `jobs`, `logs` and so on.")
]

# --- how it ends, and what follows ---

RetriesOption = Annotated[
    int | None, typer.Option(help="Try again so often when it fails or times out.")
]
RetryOnOption = Annotated[
    str | None,
    typer.Option(
        help="Try again only after these: timeout,failure,lost; default: all."
    ),
]
LogLimitOption = Annotated[
    str | None,
    typer.Option(
        help="Keep only the end of its output, so many gigabytes, or such as 200MB."
    ),
]
PriorityOption = Annotated[
    int | None, typer.Option(help="1 to 5; 5 is urgent, 3 the default.")
]

# --- what its program gets ---

EnvOption = Annotated[
    list[str] | None,
    typer.Option(help="NAME=VALUE, or NAME to pass this shell's value."),
]
CleanEnvOption = Annotated[
    bool,
    typer.Option(
        "--clean-env",
        help="Take only PATH, LANG and the active Python from this shell; the rest"
        " is the server's.",
    ),
]
SeedOption = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=2**32 - 1,
        help="For its random numbers, as $GPUYARD_SEED and $PYTHONHASHSEED.",
    ),
]
LiveOption = Annotated[
    bool,
    typer.Option(
        "--live",
        help="It runs the code as it is when it starts, not as it is now.",
    ),
]
StdinOption = Annotated[
    Path | None,
    typer.Option(help="A file for its standard input; `-`: this command's own."),
]
InteractiveOption = Annotated[
    bool,
    typer.Option(
        "--interactive",
        "-i",
        help="Its input stays open: it gets what is typed here, and in `gpuyard"
        " attach`.",
    ),
]

GitOption = Annotated[
    str | None,
    typer.Option(
        metavar="URL[@REF]",
        help="Run it in this commit of a git repository; without COMMAND, what its"
        " job.toml says.",
    ),
]

# --- what it leaves ---

ArtifactsOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Pattern of files to keep once it has completed, such as 'out/*.pt';"
        " repeat it for more."
    ),
]
ArtifactsAlwaysOption = Annotated[
    bool,
    typer.Option("--artifacts-always", help="Keep them also if it does not complete."),
]

# --- its checkpoints ---

CheckpointOption = Annotated[
    str | None, typer.Option(help="Pattern of its checkpoints, such as 'out/*.pt'.")
]
ResumeArgsOption = Annotated[
    str | None,
    typer.Option(
        help="Added to the command when it goes on from a checkpoint, such as"
        " '--resume {path}'."
    ),
]
CheckpointSignalOption = Annotated[
    str | None,
    typer.Option(
        help="Signal that makes it save, such as USR1.",
        autocompletion=suggest.signals,
    ),
]
GraceOption = Annotated[
    str | None, typer.Option(help="Time to save before it is ended; default 30s.")
]

# --- what it waits for ---

AfterOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Only after this job has completed.", autocompletion=suggest.jobs
    ),
]
AfterFailedOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Only after this job has ended without being completed.",
        autocompletion=suggest.jobs,
    ),
]
AfterAnyOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Only after this job has ended in any way.",
        autocompletion=suggest.jobs,
    ),
]
HoldOption = Annotated[
    bool,
    typer.Option("--hold", help="Let it not start before `gpuyard release`."),
]

# --- how it is found again ---

ProjectOption = Annotated[
    str | None,
    typer.Option(
        help="The project that it belongs to.", autocompletion=suggest.projects
    ),
]
LabelOption = Annotated[
    list[str] | None,
    typer.Option(
        help="NAME=VALUE, for finding it again.", autocompletion=suggest.labels
    ),
]

NotifyOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ADDRESS",
        help="Whom to tell when it has ended: https://…, slack:https://… or"
        " mail:ana@example.org; repeat for more; none for nobody.",
    ),
]

# --- where it may run ---

PreemptibleOption = Annotated[
    bool,
    typer.Option(
        "--preemptible", help="It may have to make room for a more urgent job."
    ),
]
StrategyOption = Annotated[
    str | None,
    typer.Option(
        help="Which offer is best: cost, performance, availability or balanced.",
        autocompletion=suggest.strategies,
    ),
]

# --- once, many times, or at certain times ---

IdempotencyKeyOption = Annotated[
    str | None,
    typer.Option(help="A key of your own: used twice, it makes one job."),
]
ArrayOption = Annotated[
    str | None,
    typer.Option(
        help="Once for each of these indices, such as 0-9, 0-9:3 or 1,4,7-9, with"
        " {i} or $GPUYARD_ARRAY_INDEX for the index; 0-1999%20 runs 20 at once."
    ),
]
ScheduleOption = Annotated[
    str | None,
    typer.Option(
        help="Not now, but at these times: '0 3 * * *' or @daily; see `gpuyard"
        " schedule`."
    ),
]

# --- what the command itself does ---

DetachOption = Annotated[
    bool, typer.Option("--detach", "-d", help="Print the job's id and leave.")
]
YesOption = Annotated[
    bool,
    typer.Option("--yes", "-y", help="Do not ask, whatever it may cost."),
]
AsJsonOption = Annotated[
    bool, typer.Option("--json", help="Print the job as JSON and leave.")
]


def _is_of_python(module: str | None) -> None:
    """Somebody means `python -m MODULE`."""
    if module is not None:
        remedy = f"write `gpuyard run python -m {module}`"
        raise InvalidInputError.of("-m", "is an option of Python", remedy)


def _has_no_terminal(wanted: bool) -> None:
    """Somebody writes -it, as with `docker run`."""
    if wanted:
        fault = "asks for a terminal, and jobs get a pipe"
        remedy = (
            "write -i alone; for a terminal, start a shell beside the job: `gpuyard"
            " exec -t JOB -- bash`"
        )
        raise InvalidInputError.of("-t", fault, remedy)


# Options of other programs, with a remedy in their errors.
PythonModuleOption = Annotated[
    str | None,
    typer.Option("-m", hidden=True, is_eager=True, callback=_is_of_python),
]
TerminalOption = Annotated[
    bool,
    typer.Option("-t", hidden=True, is_eager=True, callback=_has_no_terminal),
]


@dataclass(kw_only=True)
class RunOptions:
    """What a person wrote after `gpuyard run`; the help lists them in this order."""

    command: Command = None
    name: NameOption = None

    gpus: GpusOption = None
    gpu_memory: GpuMemoryOption = None
    gpu_class: GpuClassOption = None
    cpus: CpusOption = None
    memory: MemoryOption = None
    nodes: NodesOption = None
    image: ImageOption = None
    tier: TierOption = None

    timeout: TimeoutOption = None
    retries: RetriesOption = None
    retry_on: RetryOnOption = None
    log_limit_gb: LogLimitOption = None
    priority: PriorityOption = None
    deadline: DeadlineOption = None

    env: EnvOption = None
    clean_env: CleanEnvOption = False
    seed: SeedOption = None
    live: LiveOption = False
    secret: SecretOption = None
    stdin: StdinOption = None
    interactive: InteractiveOption = False
    workdir: WorkdirOption = None
    git: GitOption = None

    artifacts: ArtifactsOption = None
    artifacts_always: ArtifactsAlwaysOption = False
    checkpoint: CheckpointOption = None
    resume_args: ResumeArgsOption = None
    checkpoint_signal: CheckpointSignalOption = None
    grace: GraceOption = None

    after: AfterOption = None
    after_failed: AfterFailedOption = None
    after_any: AfterAnyOption = None
    hold: HoldOption = False

    project: ProjectOption = None
    label: LabelOption = None
    notify: NotifyOption = None

    provider: ProviderOption = None
    region: RegionOption = None
    allow_quarantined: QuarantinedOption = False
    workspace: WorkspaceOption = None
    dataset: DatasetOption = None
    packages: PackagesOption = None
    max_price: MaxPriceOption = None
    spot: SpotOption = False
    preemptible: PreemptibleOption = False
    strategy: StrategyOption = None

    idempotency_key: IdempotencyKeyOption = None
    array: ArrayOption = None
    schedule: ScheduleOption = None
    timezone: TimeZoneOption = None
    overlap: OverlapOption = None
    starting_deadline: StartingDeadlineOption = None

    detach: DetachOption = False
    yes: YesOption = False
    as_json: AsJsonOption = False
    module: PythonModuleOption = None
    tty: TerminalOption = False

    @property
    def words(self) -> list[str]:
        """The words of the command; the error of a missing argument without any."""
        if not self.command and self.git is None:
            context = get_current_context(silent=True)
            raise UsageError("Missing argument 'COMMAND…'.", context)
        return self.command or []

    @property
    def follows(self) -> bool:
        """Whether the command stays until the job has ended."""
        return not (self.detach or self.as_json or self.schedule is not None)
