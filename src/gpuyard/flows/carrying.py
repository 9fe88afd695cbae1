"""Passes the files of a flow on between machines.

A step that is carried runs in a folder of its own, wherever that is. What it reads is a
dataset, so it comes there in parts that are checked and kept; what it writes is saved
as artifacts and fetched into the folder of the flow.
"""

import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from glob import escape
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any

from gpuyard.client.sync import Client
from gpuyard.domain.artifacts import Artifact
from gpuyard.domain.dataset_names import DatasetReference
from gpuyard.domain.datasets import Dataset
from gpuyard.domain.errors import GpuyardError
from gpuyard.domain.jobs import Job
from gpuyard.domain.states import JobState
from gpuyard.domain.workspaces import DEFAULT_PROJECT
from gpuyard.flows.contents import digest_of, short_digest
from gpuyard.flows.spec import Step

# A program may change small inputs, and the modules that Python compiles are small. In
# blocks of 512 bytes: 16 MB.
_LARGEST_COPIED = 32_768
_LAY_OUT = """\
set -e
here=$PWD
cd "${variable}"
find . -type d | while IFS= read -r it; do mkdir -p "$here/$it"; done
find . -type f ! -size +{blocks} | while IFS= read -r it; do
    cp "$it" "$here/$it"
    chmod u+w "$here/$it"
done
find . -type f -size +{blocks} | while IFS= read -r it; do
    ln -sf "$PWD/$it" "$here/$it"
done
cd "$here"
"""


@dataclass(slots=True)
class Carrier:
    """Carries for the flow in `folder`; `place` tells it from its copies elsewhere."""

    client: Client
    folder: Path
    place: str

    def job(self, name: str, step: Step, files: Sequence[str]) -> dict[str, Any]:
        """What the job of a step has besides what its table says, when it reads these
        files, by their paths in the folder. They are stored for it.
        """
        job = step.job
        reference = self._stored(name, step, files) if files else None
        script = preparation(reference, step.outputs)
        command: list[str] = job["command"]
        datasets: list[str] = [*job.get("datasets", [])]
        if reference:
            datasets.append(str(reference))
        return {
            "command": ["sh", "-c", f'{script}exec "$@"', "sh", *command],
            "workdir": None,
            "datasets": datasets,
            "artifacts": [*job.get("artifacts", []), *map(escape, step.outputs)],
        }

    def _stored(self, name: str, step: Step, files: Sequence[str]) -> DatasetReference:
        """The files as the newest version of a dataset of the step's own."""
        project = step.job.get("project") or DEFAULT_PROJECT
        called = f"flow-{self.place}-{short_digest(name)}"
        dataset = self.client.add_dataset(
            called, self.folder, project=project, only=files
        )
        self._remove_older(dataset)
        return DatasetReference(None, called, dataset.versions[0].number)

    def _remove_older(self, dataset: Dataset) -> None:
        """Remove the versions of earlier runs, none of which goes on."""
        for version in dataset.versions[1:]:
            # What stays takes room and does no other harm.
            with suppress(GpuyardError):
                self.client.remove_dataset(
                    dataset.name, version.number, dataset.project
                )

    def fetch(self, job: Job, step: Step) -> list[str]:
        """Have in the folder what this job has written; the outputs of which nothing is
        kept. Unless there is none of these, nothing is fetched. OSError.
        """
        left = self.client.artifacts(job.id)
        wanted = {
            output: [one for one in left if _is_of(one.path, output)]
            for output in step.outputs
        }
        lost = [output for output in wanted if not wanted[output]]
        for artifact in chain.from_iterable(wanted.values()):
            if not lost and not self._is_there(artifact):
                self.client.download_artifact(artifact, self.folder)
        return lost

    def _is_there(self, artifact: Artifact) -> bool:
        path = self.folder / artifact.path
        try:
            is_same_size = path.stat().st_size == artifact.size
        except OSError:
            return False
        return is_same_size and digest_of(path) == artifact.sha256


def newest_done(jobs: Sequence[Job], labels: Mapping[str, str]) -> list[Job]:
    """Those of the jobs that have completed with these labels, in their order."""
    return [
        job
        for job in jobs
        if job.state is JobState.COMPLETED
        and all(job.labels.get(key) == labels[key] for key in labels)
    ]


def _is_of(path: str, output: str) -> bool:
    """Whether a file is an output, or below one."""
    return path == output or PurePosixPath(path).is_relative_to(output)


def preparation(reference: DatasetReference | None, outputs: Sequence[str]) -> str:
    """What a shell does before the program begins: it lays out the files, and makes the
    folders of outputs.
    """
    parents = {str(PurePosixPath(output).parent) for output in outputs} - {"."}
    words = [shlex.quote(parent) for parent in sorted(parents)]
    made = f"mkdir -p -- {' '.join(words)}\n" if words else ""
    if reference is None:
        return made
    laid_out = _LAY_OUT.format(variable=reference.variable, blocks=_LARGEST_COPIED)
    return laid_out + made
