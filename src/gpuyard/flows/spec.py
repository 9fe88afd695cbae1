"""What a flow is: its steps, what they need, read and write."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from graphlib import CycleError, TopologicalSorter
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Self, cast

from pydantic import AfterValidator, Field, ValidationError, model_validator

from gpuyard.client.bodies import OTHER_FORMS
from gpuyard.domain.errors import Fault, InvalidInputError, quoted
from gpuyard.domain.spec_values import Name, Text
from gpuyard.domain.strict_model import StrictModel
from gpuyard.domain.validation import faults_of, parse_spec

# What a step has besides the fields of a job, and what of a job is the flow's.
_OWN = ("needs", "inputs", "outputs", "carry")
_NOT_OF_A_STEP = (
    "array",
    "schedule",
    "depends_on",
    "depends_on_any",
    "depends_on_failed",
    "held",
    "idempotency_key",
    "interactive",
    "live",
    "workdir",
)


def _inside(value: str) -> str:
    path = PurePosixPath(value)
    if not value or path.is_absolute() or ".." in path.parts:
        raise ValueError(
            f"{quoted(value)} is not below the flow's folder; write a path relative to"
            " it, without '..'"
        )
    return str(path)


def _below(value: str) -> str:
    if value == ".":
        raise ValueError(
            "'.' is the folder of the flow itself; name what the step writes in it"
        )
    return value


InFolder = Annotated[Text, AfterValidator(_inside)]
BelowFolder = Annotated[InFolder, AfterValidator(_below)]


class Step(StrictModel):
    """A step: its `job` (a JobSpec's JSON), and what it reads and writes in the flow's
    folder. `inputs` may be patterns, and both may be folders. With `carry`, it runs in
    a folder of its own, to which its inputs are carried, and its outputs from there.
    """

    needs: tuple[Name, ...] = ()
    inputs: tuple[InFolder, ...] = ()
    outputs: tuple[BelowFolder, ...] = ()
    carry: Annotated[bool, Field(strict=True)] = False
    job: dict[str, Any]

    @model_validator(mode="after")
    def _runs_a_program(self) -> Self:
        words = self.job.get("command")
        texts: Sequence[Any] = (
            cast("list[Any]", words) if isinstance(words, list) else ()
        )
        if not texts or not all(isinstance(word, str) for word in texts):
            raise ValueError(
                '@command@is missing, or no list of words; write ["python3", "x.py"]'
            )
        for field in _NOT_OF_A_STEP:
            if field in self.job:
                raise ValueError(f"@{field}@does not belong in a step; leave it out")
        return self


class Flow(StrictModel):
    """A flow. `steps` stand in an order in which they may run."""

    name: Annotated[Name, Field(max_length=100)]
    steps: dict[Name, Step]


def parse(document: Any, default_name: str) -> Flow:
    """The flow that a file holds; InvalidInputError names the step and the field."""
    if not isinstance(document, Mapping):
        raise InvalidInputError.of("flow", "is no table", "write [steps.NAME] tables")
    given = cast("Mapping[str, Any]", document)
    for field in given:
        if field not in ("name", "steps", "carry"):
            remedy = "known: name, carry, steps"
            raise InvalidInputError.of(field, "is not a field", remedy)
    tables = given.get("steps")
    if not isinstance(tables, Mapping) or not tables:
        remedy = "write a table [steps.NAME] for each step"
        raise InvalidInputError.of("steps", "is missing", remedy)
    carry = given.get("carry", False)
    if not isinstance(carry, bool):
        raise InvalidInputError.of("carry", "is not true or false", "write true")
    steps = {
        str(name): _step(str(name), table, carry)
        for name, table in cast("Mapping[Any, Any]", tables).items()
    }
    complete = _with_needs(steps)
    order = _order(complete)
    name = given.get("name", default_name)
    return _valid(
        "", Flow, {"name": name, "steps": {one: complete[one] for one in order}}
    )


def _step(name: str, table: Any, carry: bool) -> Step:
    if not isinstance(table, Mapping):
        raise InvalidInputError.of(f"steps.{name}", "is no table", "give it a command")
    given = cast("Mapping[str, Any]", table)
    own = {field: given[field] for field in _OWN if field in given}
    own.setdefault("carry", carry)
    job = {field: value for field, value in given.items() if field not in _OWN}
    step = _valid(f"steps.{name}.", Step, {**own, "job": job})
    if not OTHER_FORMS & set(job):
        with naming_step(name):
            # What its deadline means is known when it is submitted.
            parse_spec({key: job[key] for key in job if key != "deadline"})
    return step


@contextmanager
def naming_step(name: str) -> Generator[None]:
    """Let an InvalidInputError about the job of a step name the step."""
    try:
        yield
    except InvalidInputError as error:
        faults = [
            Fault(f"steps.{name}.{fault.field}", fault.fault, fault.remedy)
            for fault in error.faults
        ]
        raise InvalidInputError(faults) from None


def _valid(prefix: str, model: Any, fields: Mapping[str, Any]) -> Any:
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        faults = [
            Fault(f"{prefix}{fault.field}", fault.fault, fault.remedy)
            for fault in faults_of(error, model)
        ]
        raise InvalidInputError(faults) from None


def _with_needs(steps: Mapping[str, Step]) -> dict[str, Step]:
    """The steps, each with those as needs whose outputs it reads; its own do not
    count, unless it names one as its input.
    """
    writers: dict[str, str] = {}
    for name, step in steps.items():
        for output in step.outputs:
            if output in writers:
                fault = f"has {output}, which {writers[output]} writes, too"
                remedy = "let each file be the output of one step"
                raise InvalidInputError.of(f"steps.{name}.outputs", fault, remedy)
            writers[output] = name
    complete: dict[str, Step] = {}
    for name, step in steps.items():
        for need in step.needs:
            if need not in steps:
                remedy = f"there are {', '.join(steps)}"
                fault = f"names {quoted(need)}, which is no step"
                raise InvalidInputError.of(f"steps.{name}.needs", fault, remedy)
        read = [
            writer
            for path in step.inputs
            for output, writer in writers.items()
            if path == output or (writer != name and reads(path, output))
        ]
        needs = tuple(dict.fromkeys([*step.needs, *read]))
        complete[name] = step.model_copy(update={"needs": needs})
    return complete


def reads(path: str, output: str) -> bool:
    """Whether an input, which may be a pattern, means this output, something in it, or
    a folder that has it.
    """
    both = zip(PurePosixPath(path).parts, PurePosixPath(output).parts, strict=False)
    for wanted, written in both:
        if wanted == "**":
            return True
        if wanted != written and not fnmatchcase(written, wanted):
            return False
    return True


def _order(steps: Mapping[str, Step]) -> list[str]:
    """Their names, each after what it needs; InvalidInputError for a cycle."""
    graph = {name: step.needs for name, step in steps.items()}
    try:
        return [*TopologicalSorter(graph).static_order()]
    except CycleError as error:
        circle: list[str] = error.args[1]
        fault = f"need one another in a circle: {' → '.join(reversed(circle))}"
        raise InvalidInputError.of("steps", fault, "take one need away") from None


def files_in_command(step: Step, folder: Path) -> list[str]:
    """Words of its command that are files of the flow's folder, such as its script."""
    words: list[str] = step.job["command"]
    return [
        word
        for word in words
        if not Path(word).is_absolute()
        and ".." not in Path(word).parts
        and len(word) < 1000
        and (folder / word).is_file()
    ]
