"""Checkpoints are noticed while the job runs: once each, whole, from whatever a program
does to write them.

Jobs here are steered by files: `step(n)` lets a job that waits for `go-n` go on.
"""

import hashlib
import io
import signal
import tarfile
import textwrap

import pytest

from gpuyard.domain import wire
from gpuyard.domain.jobspec import CheckpointSpec
from tests.support.node import Node, make_node, wait_for

PRELUDE = """
import os, pathlib, signal, sys, time
def until(number):
    print("at", number, flush=True)
    while not pathlib.Path(f"go-{number}").exists():
        time.sleep(0.01)
def save(name, data, end=".new"):
    pathlib.Path(name + end).write_bytes(data)
    os.rename(name + end, name)
"""


@pytest.fixture(scope="module")
def shared():
    """A node for tests whose jobs have a folder of their own."""
    with make_node() as node:
        yield node


def run(node: Node, code: str, pattern: str = "*.pt", **fields) -> str:
    spec = CheckpointSpec(path=pattern, **fields.pop("checkpoint", {}))
    return node.start(PRELUDE + textwrap.dedent(code), checkpoint=spec, **fields)


def step(node: Node, number: int) -> None:
    (node.work / f"go-{number}").touch()


def content(node: Node, saved: wire.CheckpointSaved) -> bytes:
    """What the blob store holds of it, which is what its size and hash say."""
    data = (node.home.blobs / saved.sha256[:2] / saved.sha256[2:]).read_bytes()
    assert (hashlib.sha256(data).hexdigest(), len(data)) == (saved.sha256, saved.size)
    return data


def paths(node: Node, job: str) -> list[str]:
    """Each that was reported; a new agent repeats what the one before may not have got
    through.
    """
    return [saved.path for saved in dict.fromkeys(node.checkpoints(job))]


def test_each_is_noticed_once_with_its_content_and_step_while_the_job_runs(node):
    code = """
        for number in (100, 200):
            save(f"ckpt_{number}.pt", b"weights %d" % number)
            until(number)
        """
    job = run(node, code)
    first = node.checkpoint(job, "ckpt_100.pt")
    assert (first.step, first.directory, content(node, first)) == (
        100,
        False,
        b"weights 100",
    )
    assert not node.sink.of(wire.Ended, job)
    step(node, 100)
    assert node.checkpoint(job, "ckpt_200.pt").step == 200
    step(node, 200)
    node.ended(job)
    assert paths(node, job) == ["ckpt_100.pt", "ckpt_200.pt"]


def test_one_that_is_written_again_is_a_new_one(node):
    code = """
        save("latest.pt", b"one")
        until(1)
        save("latest.pt", b"two")
        until(2)
        """
    job = run(node, code)
    assert content(node, node.checkpoint(job, "latest.pt")) == b"one"
    step(node, 1)
    wait_for(lambda: len(node.checkpoints(job)) == 2, "the second checkpoint")
    assert content(node, node.checkpoints(job)[1]) == b"two"
    step(node, 2)
    node.ended(job)
    assert len(node.checkpoints(job)) == 2


def test_the_step_is_the_outputs_where_the_name_has_none(node):
    code = """
        print("step 7: train loss 1.5, val loss 1.6", flush=True)
        until(1)
        save("model.pt", b"x")
        until(2)
        """
    job = run(node, code)
    wait_for(lambda: node.sink.of(wire.ProgressSeen, job), "progress")
    step(node, 1)
    assert node.checkpoint(job, "model.pt").step == 7
    step(node, 2)


def test_a_file_still_open_for_writing_is_left_alone_however_long_the_writer_pauses(
    node,
):
    code = """
        with open("a.pt", "wb") as file:
            file.write(b"first half, ")
            file.flush()
            until(1)
            save("other.pt", b"complete")
            until(2)
            file.write(b"second half")
        until(3)
        """
    job = run(node, code)
    node.says(job, "at 1")
    step(node, 1)
    # The scans that find this one have looked at the half-written one, too.
    node.checkpoint(job, "other.pt")
    assert paths(node, job) == ["other.pt"]
    step(node, 2)
    assert content(node, node.checkpoint(job, "a.pt")) == b"first half, second half"
    step(node, 3)


def test_a_child_of_the_job_that_writes_is_seen_too(node):
    code = """
        import subprocess
        child = '''
        import pathlib, sys, time
        with open("a.pt", "wb") as file:
            file.write(b"half")
            file.flush()
            print("at 1", flush=True)
            while not pathlib.Path("go-1").exists():
                time.sleep(0.01)
            file.write(b" and half")
        '''
        writer = subprocess.Popen([sys.executable, "-c", child], start_new_session=True)
        while not pathlib.Path("a.pt").exists():
            time.sleep(0.01)
        save("other.pt", b"complete")
        writer.wait()
        until(2)
        """
    job = run(node, code)
    node.checkpoint(job, "other.pt")
    assert paths(node, job) == ["other.pt"]
    step(node, 1)
    assert content(node, node.checkpoint(job, "a.pt")) == b"half and half"
    step(node, 2)


@pytest.mark.parametrize("end", [".tmp", ".partial", ".incomplete"])
def test_a_temporary_name_that_matches_is_passed_over_until_it_is_renamed(node, end):
    code = f"""
        pathlib.Path("a.pt{end}").write_bytes(b"weights")
        save("other.pt", b"complete")
        until(1)
        os.rename("a.pt{end}", "a.pt")
        until(2)
        """
    job = run(node, code, "*.pt*")
    node.checkpoint(job, "other.pt")
    step(node, 1)
    assert content(node, node.checkpoint(job, "a.pt")) == b"weights"
    assert [path for path in paths(node, job) if path.endswith(end)] == []
    step(node, 2)


def test_what_is_no_checkpoint_is_passed_over_and_disturbs_nothing(node):
    code = """
        pathlib.Path("empty.pt").touch()
        os.symlink("loop.pt", "loop.pt")
        os.symlink("nowhere", "dangling.pt")
        os.mkfifo("pipe.pt")
        save("other.pt", b"complete")
        until(1)
        """
    job = run(node, code)
    node.checkpoint(job, "other.pt")
    step(node, 1)
    assert node.ended(job).exit_code == 0
    assert paths(node, job) == ["other.pt"]


def test_a_name_that_is_no_text_does_not_keep_reports_back(node):
    code = r"""
        save("\udcff.pt", b"weights")
        until(1)
        """
    job = run(node, code)
    node.checkpoint(job, "\N{REPLACEMENT CHARACTER}.pt")
    step(node, 1)
    assert node.ended(job).exit_code == 0


def test_a_folder_written_file_by_file_is_taken_whole(node):
    code = """
        folder = pathlib.Path("out/checkpoint-500")
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(b"weights")
        until(1)
        (folder / "optimizer.pt").write_bytes(b"moments")
        (folder / "nested").mkdir()
        (folder / "nested" / "trainer_state.json").write_text("{}")
        until(2)
        """
    job = run(node, code, "out/checkpoint-*")
    node.says(job, "at 1")
    assert paths(node, job) == []
    step(node, 1)
    saved = node.checkpoint(job, "out/checkpoint-500")
    assert (saved.step, saved.directory) == (500, True)
    with tarfile.open(fileobj=io.BytesIO(content(node, saved))) as archive:
        names = {member.name for member in archive if member.isfile()}
    assert names == {"model.safetensors", "optimizer.pt", "nested/trainer_state.json"}
    step(node, 2)
    node.ended(job)
    assert len(node.checkpoints(job)) == 1


def test_rotation_loses_none_that_stayed_and_breaks_nothing(node):
    code = """
        for number in range(1, 8):
            save(f"step-{number}.pt", bytes(100_000))
            if number > 2:
                os.remove(f"step-{number - 2}.pt")
            time.sleep(0.03)
        """
    job = run(node, code)
    assert node.ended(job).exit_code == 0
    assert {"step-6.pt", "step-7.pt"} <= set(paths(node, job))
    assert len(set(paths(node, job))) == len(paths(node, job))
    assert paths(node, job)[-1] == "step-7.pt"


def test_what_was_there_before_is_not_the_jobs_until_it_changes_it(node):
    (node.work / "old.pt").write_bytes(b"old")
    (node.work / "older.pt").write_bytes(b"older")
    code = """
        save("mine.pt", b"mine")
        until(1)
        save("old.pt", b"new")
        until(2)
        """
    job = run(node, code)
    node.checkpoint(job, "mine.pt")
    step(node, 1)
    assert content(node, node.checkpoint(job, "old.pt")) == b"new"
    step(node, 2)
    node.ended(job)
    assert paths(node, job) == ["mine.pt", "old.pt"]


@pytest.mark.real_agent
def test_after_an_agents_death_only_what_is_new_is_reported(node):
    code = """
        save("one.pt", b"one")
        until(1)
        save("two.pt", b"two")
        save("three.pt", b"three")
        until(2)
        """
    job = run(node, code)
    node.checkpoint(job, "one.pt")
    with node.without_agent():
        step(node, 1)
        node.says(job, "at 2")
    node.checkpoint(job, "two.pt")
    node.checkpoint(job, "three.pt")
    agent = node.pid("agent")
    node.kill("agent")
    node.next_agent(agent)
    step(node, 2)
    node.ended(job)
    assert paths(node, job) == ["one.pt", "two.pt", "three.pt"]


@pytest.mark.parametrize("exit_code", [0, 3])
def test_the_last_one_is_taken_even_when_the_job_ends_right_after(
    shared, tmp_path, exit_code
):
    code = f"""
        save("final.pt", b"final")
        sys.exit({exit_code})
        """
    job = run(shared, code, workdir=str(tmp_path))
    assert shared.ended(job).exit_code == exit_code
    assert content(shared, shared.checkpoint(job, "final.pt")) == b"final"
    kinds = [
        type(report).__name__
        for report in shared.sink.reports
        if getattr(report, "attempt_id", "") == job
    ]
    assert kinds.index("CheckpointSaved") < kinds.index("Ended")


@pytest.mark.parametrize(
    "wrapped", [False, True], ids=["killed itself", "by a shell's child"]
)
def test_what_a_killed_job_was_writing_is_not_taken(node, wrapped):
    code = """
        save("good.pt", b"good")
        until(1)
        file = open("bad.pt", "wb")
        file.write(b"half of")
        file.flush()
        os.kill(os.getpid(), signal.SIGKILL)
        """
    config = node.config(
        PRELUDE + textwrap.dedent(code), checkpoint=CheckpointSpec(path="*.pt")
    )
    if wrapped:
        config = config.model_copy(
            update={"command": ("sh", "-c", '"$@"; exit $?', "sh", *config.command)}
        )
    job = node.submit(config)
    node.checkpoint(job, "good.pt")
    step(node, 1)
    ended = node.ended(job)
    assert (ended.exit_code, ended.signal) == ((137, None) if wrapped else (None, 9))
    assert paths(node, job) == ["good.pt"]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("**/*.pt", ["deep/er/b.pt", "a.pt"]),
        ("**.pt", ["a.pt"]),
        ("deep/*/b.pt", ["deep/er/b.pt"]),
        ("deep/", ["deep"]),
        ("a.pt", ["a.pt"]),
        ("[ab].pt", ["a.pt"]),
        ("nothing-*.pt", []),
        ("[", []),
    ],
)
def test_patterns_people_write(shared, tmp_path, pattern, found):
    code = """
        pathlib.Path("deep/er").mkdir(parents=True)
        save("deep/er/b.pt", b"b")
        save("a.pt", b"a")
        """
    job = run(shared, code, pattern, workdir=str(tmp_path))
    assert shared.ended(job).exit_code == 0
    assert sorted(paths(shared, job)) == sorted(found)


def test_a_folder_on_another_disk_is_a_link_in_the_folder_of_the_job(node, tmp_path):
    outside = node.home.root / "elsewhere"
    outside.mkdir()
    (tmp_path / "out").symlink_to(outside)
    code = """
        save("out/a.pt", b"a")
        os.symlink("a.pt", "out/latest.pt")
        """
    job = run(node, code, "out/*.pt", workdir=str(tmp_path))
    node.ended(job)
    assert paths(node, job) == ["out/a.pt"]


def test_one_that_cannot_be_kept_is_tried_again_and_harms_nobody(node):
    """The store cannot be written for a while, as on a full disk."""
    node.home.blobs.rmdir()
    node.home.blobs.write_text("in the way")
    code = """
        save("a.pt", b"a")
        until(1)
        save("b.pt", b"b")
        until(2)
        """
    job = run(node, code)
    wait_for(
        lambda: (
            "a checkpoint could not be kept"
            in (node.home.logs / "node.log").read_text()
        ),
        "the warning",
    )
    node.home.blobs.unlink()
    assert content(node, node.checkpoint(job, "a.pt")) == b"a"
    step(node, 1)
    node.checkpoint(job, "b.pt")
    step(node, 2)
    assert node.ended(job).exit_code == 0
    assert paths(node, job) == ["a.pt", "b.pt"]


SAVES_ON_USR1 = """
done = []
def on_signal(*_):
    done.append(1)
    save(f"asked_{len(done)}.pt", b"state")
signal.signal(signal.SIGUSR1, on_signal)
signal.signal(signal.SIGTERM, lambda *_: (print("term", flush=True), sys.exit(5)))
save("periodic.pt", b"state")
until(1)
"""


def test_a_timeout_asks_for_a_checkpoint_waits_until_it_is_there_and_then_ends_the_job(
    node,
):
    job = run(
        node,
        SAVES_ON_USR1,
        checkpoint={"signal": "USR1"},
        timeout_minutes=1.5 / 60,
        grace_s=60.0,
    )
    ended = node.ended(job)
    assert (ended.stopped, ended.exit_code) == ("timed_out", 5)
    assert paths(node, job) == ["periodic.pt", "asked_1.pt"]
    assert node.output(job).endswith("term\n")


def test_an_older_checkpoint_noticed_late_does_not_cut_the_asked_one_short(node):
    """The stop comes before the periodic checkpoint was noticed: only one written after
    the signal will do.
    """
    code = """
        signal.signal(signal.SIGUSR1, lambda *_: asked.append(1))
        asked = []
        save("periodic.pt", b"state")
        os.utime("periodic.pt", (time.time() - 0.5,) * 2)
        print("at 0", flush=True)
        while not asked:
            time.sleep(0.001)
        until(1)
        save("asked.pt", b"state")
        until(2)
        """
    job = run(node, code, checkpoint={"signal": "USR1"}, grace_s=60.0)
    node.says(job, "at 0")
    node.stop(job, "preempted", checkpoint=True)
    node.checkpoint(job, "periodic.pt")
    node.says(job, "at 1")
    assert not node.sink.of(wire.Ended, job)
    step(node, 1)
    ended = node.ended(job)
    assert (ended.stopped, ended.signal) == ("preempted", signal.SIGTERM)
    assert paths(node, job) == ["periodic.pt", "asked.pt"]


def test_checkpoints_are_asked_for_every_so_often(node):
    job = run(node, SAVES_ON_USR1, checkpoint={"signal": "USR1", "every_s": 1.0})
    node.checkpoint(job, "asked_2.pt")
    step(node, 1)
    node.ended(job)


def test_a_job_that_ignores_the_signal_is_ended_after_its_grace(node):
    code = "signal.signal(signal.SIGUSR1, signal.SIG_IGN)\nuntil(1)"
    job = run(
        node, code, checkpoint={"signal": "USR1"}, timeout_minutes=1.5 / 60, grace_s=0.2
    )
    ended = node.ended(job)
    assert (ended.stopped, ended.signal) == ("timed_out", signal.SIGTERM)


@pytest.mark.parametrize("folder", [False, True], ids=["file", "folder"])
def test_a_job_resumes_from_a_checkpoint_as_a_file_or_folder_of_its_own(node, folder):
    write = "pathlib.Path('ckpt').mkdir(); pathlib.Path('ckpt/x').write_text('state')"
    job = run(node, write if folder else "save('ckpt', b'state')", "ckpt")
    node.ended(job)
    saved = node.checkpoint(job, "ckpt")
    code = """
        import os, pathlib, sys
        path = pathlib.Path(os.environ["GPUYARD_RESUME_FROM"])
        print(path.name, (path / "x" if path.is_dir() else path).read_text(), *sys.argv[1:])
        """
    again = node.start(
        code,
        resume_sha256=saved.sha256,
        resume_name="ckpt",
        resume_directory=saved.directory,
        checkpoint=CheckpointSpec(resume_args=("--from", "{path}")),
    )
    assert node.ended(again).exit_code == 0
    restored = node.home.node / "attempts" / again / "resume" / "ckpt"
    assert node.output(again) == f"ckpt state --from {restored}\n"


@pytest.mark.parametrize("damage", ["missing", "no archive"])
def test_a_checkpoint_that_cannot_be_restored_fails_the_attempt_visibly(shared, damage):
    sha256 = ("ab" if damage == "missing" else "cd") * 32
    if damage == "no archive":
        path = shared.home.blobs / sha256[:2] / sha256[2:]
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"not a tar")
    job = shared.start(
        "pass", resume_sha256=sha256, resume_name="ckpt", resume_directory=True
    )
    ended = shared.ended(job)
    assert (ended.reason, ended.exit_code) == ("bad_resume", None)
    assert ended.message


def test_who_may_not_be_looked_at_is_passed_over(node):
    """A process of the job that ends between two looks, or belongs to someone else,
    hides nothing.
    """
    code = """
        import subprocess
        for number in range(20):
            subprocess.run(["true"])
            save(f"s{number}.pt", b"x")
        until(1)
        """
    job = run(node, code)
    node.checkpoint(job, "s19.pt")
    step(node, 1)
    node.ended(job)
    assert sorted(paths(node, job)) == sorted(f"s{number}.pt" for number in range(20))
    assert not list(node.home.blobs.glob("incoming-*"))
