"""Arguments and options that many commands have."""

from typing import Annotated

import typer

from gpuyard.cli import suggest

Reference = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="An id, the end of one, or a name; of a task of an array: ARRAY_7.",
        autocompletion=suggest.jobs,
    ),
]
EndedReference = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="An id, the end of one, or a name.",
        autocompletion=suggest.ended_jobs,
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="One JSON document, for programs.")
]
