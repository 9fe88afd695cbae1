"""The code of jobs that run under accounts, at their submission: a real account of this
machine.
"""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuyard.config.accounts import Account, Accounts
from gpuyard.config.jobs import JobSettings
from gpuyard.config.paths import Home
from gpuyard.controller.submissions import Submissions
from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.jobspec import JobSpec
from gpuyard.storage.contents import folder_stores
from tests.support.accounts import real_account


@pytest.fixture(scope="module")
def ann() -> Iterator[Account]:
    with real_account() as account:
        yield account


@pytest.fixture
def submissions(tmp_path: Path, ann: Account) -> Submissions:
    """The project `vision` has the account of ann, and others have none."""
    accounts = Accounts(None, {"vision": ann.name})
    return Submissions(
        Home(tmp_path), JobSettings(), folder_stores(tmp_path), accounts=accounts
    )


@pytest.fixture
def folder(ann: Account) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=ann.home) as name:
        made = Path(name)
        (made / "train.py").write_text("1")
        os.chown(made, ann.uid, ann.gid)
        yield made


def test_only_jobs_of_the_account_may_name_its_code(
    submissions: Submissions, folder: Path
) -> None:
    digest = submissions.take_code(folder, "vision")
    spec = JobSpec(command=("true",), submitted_code=digest, project="vision")
    assert submissions.warnings(spec) == []
    others = spec.model_copy(update={"project": "speech"})
    with pytest.raises(InvalidInputError, match="there is no code"):
        submissions.warnings(others)
    with pytest.raises(InvalidInputError, match=r"node\.accounts\.speech"):
        submissions.take_code(folder, "speech")


def test_a_resumed_job_gets_the_code_of_now_as_its_account_reads_it(
    submissions: Submissions, folder: Path
) -> None:
    digest = submissions.take_code(folder, "vision")
    spec = {"project": "vision", "workdir": str(folder), "submitted_code": digest}
    assert submissions.with_present_code(spec) is None
    (folder / "train.py").write_text("2")
    tree = submissions.code.get(digest)
    assert submissions.code_changes(tree, folder) == ["train.py"]
    present = submissions.with_present_code(spec)
    assert present
    assert present["submitted_code"] != digest
    (folder / "train.py").chmod(0o600)  # and it is root's
    assert submissions.with_present_code(spec) == {
        "project": "vision",
        "workdir": str(folder),
    }
