"""The code of registered scripts, as it is when their jobs are submitted."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gpuyard.controller.intake import PreparedJob
from gpuyard.controller.submissions import Submissions
from gpuyard.domain.jobspec import JobKind
from gpuyard.domain.scripts import script_folder
from gpuyard.storage.place import in_background


async def add_script_code(
    jobs: Sequence[PreparedJob], submissions: Submissions
) -> None:
    """Let each job of a registered script run the code that the folder of its file has
    now. If that cannot be stored, a warning says so.
    """
    taken: dict[tuple[Path, str, str | None], tuple[str, str]] = {}
    for job in jobs:
        if job.template.kind != JobKind.SCRIPT:
            continue
        spec = job.spec()
        folder = script_folder(spec)
        if folder is None or spec.get("live") or "submitted_code" in spec:
            continue
        key = (folder, job.template.project or "", job.template.user)
        if key not in taken:
            taken[key] = await in_background(submissions.take_script, *key)
        digest, why = taken[key]
        if digest:
            job.add({"submitted_code": digest})
        elif why:
            note = f"it runs the code of its script as it is when it starts: {why}"
            warnings = (*job.template.warnings, note)
            job.template = replace(job.template, warnings=warnings)
