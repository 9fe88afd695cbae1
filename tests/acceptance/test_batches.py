"""Batches end to end: real workers, real media and archives; models that make room and
come back; kills on the way.
"""

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.instance import TestInstance, make_instance
from tests.support.nvml import FakeGpus
from tests.support.videos import make_video
from tests.support.wait import wait_until

PROGRAMS = Path(__file__).parents[1] / "programs"


def settings(*, gpus: int = 1, models: str = "") -> str:
    """gpuyard.toml with the script `steps` and models of one simulated GPU each."""
    words = [sys.executable, str(PROGRAMS / "chat" / "server.py")]
    sections = [
        f'[scripts.steps]\nfile = "{PROGRAMS}/scripts/steps.py"\ngpus = {gpus}\nboot_s'
        " = 0.1\nitem_s = 60\n"
    ]
    sections.append(
        f'[scripts.huge]\nfile = "{PROGRAMS}/scripts/steps.py"\nmemory_gb = 80\n'
    )
    for name in models:
        command = json.dumps([*words, name, "--port", "{port}"])
        sections.append(
            f"[models.{name}]\ncommand = {command}\nmemory_gb = 20\nboot_s = 1\n"
        )
    return "\n".join(sections)


@pytest.fixture
def instance() -> Iterator[TestInstance]:
    """Three simulated GPUs, the models a and b, the script `steps`."""
    with make_instance(GPUYARD_SCHEDULER__RETRY_BASE_S="0.1") as made:
        made.home.create()
        made.home.settings.write_text(settings(models="ab"))
        made.ok("up", "--simulate-gpus", "3x24")
        wait_until(lambda: len(made.json("gpus")["items"]) == 3, what="the GPUs")
        yield made


def write(folder: Path, **texts: str) -> Path:
    """A folder of text files."""
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text)
    return folder


def log_of(instance: TestInstance) -> list[list[str]]:
    path = instance.work / "log"
    return (
        [line.split() for line in path.read_text().splitlines()]
        if path.exists()
        else []
    )


def submit(instance: TestInstance, source: Path, *words: str) -> str:
    log = f"log={instance.work}/log"
    return instance.ok(
        "batch", "submit", "steps", str(source), "--arg", log, "-d", *words
    ).strip()


def show(instance: TestInstance, batch: str) -> dict[str, Any]:
    return instance.json("batch", "show", batch)


def ended(instance: TestInstance, batch: str, timeout: float = 60) -> dict[str, Any]:
    def over() -> dict[str, Any] | None:
        found = show(instance, batch)
        return found if found["state"] in ("completed", "failed", "cancelled") else None

    return wait_until(over, timeout, f"{batch} to be over")


def ask(instance: TestInstance, model: str, timeout: float = 60) -> str:
    address = instance.address()
    headers = {"Authorization": f"Bearer {address.token}"}
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}]}
    answer = httpx.post(
        f"{address.url}/v1/chat/completions",
        json=body,
        headers=headers,
        timeout=timeout,
    )
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]["content"]


def states(instance: TestInstance) -> dict[str, str]:
    return {item["name"]: item["state"] for item in instance.json("models")["items"]}


# --- items ---


def test_items_end_as_they_should_and_a_worker_stays_loaded_between_them(
    instance: TestInstance,
) -> None:
    texts = {f"ok{n}": f"text {n}" for n in range(6)} | {
        "bad": "fail",
        "mad": "crash",
        "shy": "crash once",
    }
    batch = submit(instance, write(instance.work / "in", **texts))
    found = ended(instance, batch)
    assert (found["total_items"], found["completed"], found["failed"]) == (9, 7, 2)
    reasons = {
        Path(i["video_path"]).stem: (i["status"], i["attempts"], i["reason"])
        for i in found["items"]
    }
    assert reasons["bad"] == ("failed", 1, "ValueError: it says so")
    assert reasons["mad"] == ("failed", 2, "its process ended with signal 9")
    assert reasons["shy"] == ("complete", 2, None)
    log = log_of(instance)
    loads = [words for words in log if words[0] == "load"]
    assert len(loads) <= 3 + 3, "a load for each GPU, and one after each crash"
    assert {words[3] for words in loads} <= {
        gpu["uuid"] for gpu in instance.json("gpus")["items"]
    }
    assert sorted(words[1] for words in log if words[0] == "end") == [
        "ok0",
        "ok1",
        "ok2",
        "ok3",
        "ok4",
        "ok5",
        "shy",
    ]
    folder = Path(found["results"])
    index = json.loads((folder / "index.json").read_text())
    results = {Path(item["path"]).stem: item["result"] for item in index["items"]}
    assert results["bad"] is None
    kept = json.loads((folder / results["ok3"]).read_text())
    assert kept["output"] == {"text": "text 3"}
    assert set(kept) == {"task_id", "output", "duration"}
    assert (
        folder / results["ok3"].removesuffix(".json") / "words.txt"
    ).read_text() == "text 3"
    assert instance.json("jobs", "--state", "running")["items"] == []


def test_failed_items_are_listed_and_done_again_alone(instance: TestInstance) -> None:
    source = write(instance.work / "in", good="yes", bad="fail")
    followed = instance.run(
        "batch", "submit", "steps", str(source), "--arg", f"log={instance.work}/log"
    )
    assert followed.returncode == 1
    assert f"{source}/bad.txt: ValueError: it says so" in followed.stderr
    batch = instance.json("batch")["items"][0]["batch_id"]
    assert f"gpuyard batch retry {batch}" in followed.stderr
    (source / "bad.txt").write_text("better")
    assert "completed: 2/2" in instance.ok("batch", "retry", batch)
    assert [words[1] for words in log_of(instance) if words[0] == "start"].count(
        "good"
    ) == 1
    again = instance.run("batch", "retry", batch)
    assert (again.returncode, "No item" in again.stderr) == (4, True)


def test_a_script_that_cannot_be_loaded_ends_its_batch_with_the_reason(
    instance: TestInstance,
) -> None:
    batch = submit(
        instance, write(instance.work / "in", one="1", two="2"), "--arg", "broken=true"
    )
    found = ended(instance, batch)
    assert (found["state"], found["completed"], found["failed"]) == ("failed", 0, 2)
    assert {item["reason"] for item in found["items"]} == {
        "RuntimeError: its weights are missing"
    }


def test_bad_batches_are_refused_with_one_clear_error(instance: TestInstance) -> None:
    (instance.work / "empty").mkdir()
    (instance.work / "broken.zim").write_bytes(b"ZIM" + bytes(100))
    (instance.work / "bad.jsonl").write_text('{"file": "x"}\n')
    cases = [
        (["transcribe", "empty"], "empty has nothing for transcribe"),
        (["transcribe", "nowhere"], "there is no nowhere"),
        (["transcribe", "broken.zim"], "is no whole ZIM archive"),
        (["steps", "bad.jsonl"], "bad.jsonl:1: names no path"),
        (["no_such_script", "in"], "there is no script 'no_such_script'"),
        (["steps"], "PATH: is missing"),
    ]
    write(instance.work / "in", one="1")
    for words, said in cases:
        refused = instance.run("batch", "submit", *words)
        assert (refused.returncode, said in refused.stderr) == (2, True), (
            words,
            refused.stderr,
        )
    assert instance.json("batch")["items"] == []
    unknown = instance.run("batch", "show", "nothing")
    assert (unknown.returncode, "There is no batch 'nothing'" in unknown.stderr) == (
        3,
        True,
    )


def test_a_batch_submitted_twice_with_one_key_is_one_batch(
    instance: TestInstance,
) -> None:
    source = write(instance.work / "in", one="1")
    first = submit(instance, source, "--key", "k")
    assert submit(instance, source, "--key", "k") == first
    write(source, two="2")
    other = instance.run("batch", "submit", "steps", str(source), "-d", "--key", "k")
    assert (other.returncode, "was used for another batch" in other.stderr) == (4, True)
    assert len(instance.json("batch")["items"]) == 1
    ended(instance, first)


def test_batches_submitted_at_once_have_names_of_their_own(
    instance: TestInstance,
) -> None:
    source = write(instance.work / "in", one="1")
    found: list[str] = []

    def send() -> None:
        with instance.client() as client:
            made = client.batch(
                "steps",
                str(source),
                args={"log": f"{instance.work}/log"},
                results=str(instance.work),
            )
            found.append(made["batch_id"])

    threads = [threading.Thread(target=send) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(set(found)) == 6
    assert [ended(instance, batch)["completed"] for batch in found] == [1] * 6


def test_a_batch_for_which_there_is_no_gpu_says_so_and_holds_nobody_up(
    instance: TestInstance,
) -> None:
    source = write(instance.work / "in", one="1")
    big = instance.ok("batch", "submit", "huge", str(source), "-d").strip()
    assert (
        show(instance, big)["problem"]
        == "no GPU with 80 GB is there for it; see `gpuyard gpus`"
    )
    alone = instance.ok(
        "batch", "submit", "huge", str(source), "--exclusive", "-d"
    ).strip()
    assert ask(instance, "a") == "a: hello"
    assert ended(instance, submit(instance, source))["completed"] == 1
    for batch in (big, alone):
        instance.ok("batch", "cancel", batch)
        assert ended(instance, batch)["state"] == "cancelled"


# --- media and archives ---


def make_zim(path: Path, videos: dict[str, Path]) -> Path:
    """A real archive with these videos and a page."""
    from libzim.writer import Creator, FileProvider, Hint, Item, StringProvider

    class Entry(Item):
        def __init__(self, name: str, kind: str, provider: Any) -> None:
            super().__init__()
            self._name = name
            self._kind = kind
            self._provider = provider

        def get_path(self) -> str:
            return self._name

        def get_title(self) -> str:
            return self._name

        def get_mimetype(self) -> str:
            return self._kind

        def get_contentprovider(self) -> Any:
            return self._provider

        def get_hints(self) -> dict[Any, Any]:
            return {Hint.FRONT_ARTICLE: self._kind == "text/html"}

    with Creator(path).config_indexing(False, "eng") as creator:
        creator.set_mainpath("home")
        creator.add_item(Entry("home", "text/html", StringProvider("<h1>videos</h1>")))
        for name, video in videos.items():
            creator.add_item(Entry(name, "video/mp4", FileProvider(video)))
    return path


def test_an_archive_of_videos_gives_key_frames_of_each(instance: TestInstance) -> None:
    videos = {
        f"videos/v{n}.mp4": make_video(instance.work / f"v{n}.mp4", seconds=n + 1)
        for n in range(3)
    }
    (instance.work / "no.mp4").write_bytes(b"no video at all")
    videos["videos/no.mp4"] = instance.work / "no.mp4"
    archive = make_zim(instance.work / "prepper.zim", videos)
    estimate = instance.json("batch", "estimate", "extract_keyframes", str(archive))
    assert estimate["items"] == 4
    body = instance.json(
        "batch",
        "submit",
        "--type",
        "extract_keyframes",
        "--input",
        str(archive),
        "--batch-size",
        "9",
    )
    found = ended(instance, body["batch_id"])
    assert found["batch_id"].startswith("extract-prepper-20")
    assert {
        i["video_path"]: (i["status"], round(i["seconds"] or 0)) for i in found["items"]
    } == {
        "videos/v0.mp4": ("complete", 1),
        "videos/v1.mp4": ("complete", 2),
        "videos/v2.mp4": ("complete", 3),
        "videos/no.mp4": ("failed", 0),
    }
    assert "it is no video that can be read" in found["items"][0]["reason"]
    folder = Path(found["results"])
    kept = json.loads(next(folder.glob("*-v2.json")).read_text())["output"]
    assert [frame["at_s"] for frame in kept["frames"]] == [
        0,
        1,
        2,
    ], "a key frame at each second"
    pictures = sorted((folder / kept["folder"]).iterdir())
    assert [picture.read_bytes()[:2] for picture in pictures] == [b"\xff\xd8"] * 3


def test_globs_and_manifests(instance: TestInstance) -> None:
    source = write(instance.work / "in", a="1", b="2", c="3")
    assert (
        instance.json("batch", "estimate", "steps", f"{source}/[ab].txt")["items"] == 2
    )
    lines = [
        "# two of them",
        "in/a.txt",
        json.dumps({"path": "in/b.txt", "args": {"log": f"{instance.work}/own"}}),
        "",
    ]
    (instance.work / "list.manifest").write_text("\n".join(lines))
    found = ended(instance, submit(instance, instance.work / "list.manifest"))
    assert [Path(item["video_path"]).name for item in found["items"]] == [
        "a.txt",
        "b.txt",
    ]
    assert found["completed"] == 2
    assert (
        instance.json("batch", "estimate", "steps", str(source), "--batch-size", "1")[
            "items"
        ]
        == 1
    )


# --- scripts as jobs and tasks ---


def test_a_registered_script_runs_as_a_job_and_as_a_task(
    instance: TestInstance,
) -> None:
    path = write(instance.work / "in", one="1") / "one.txt"
    args = {"path": str(path), "log": f"{instance.work}/log"}
    with instance.client() as client:
        job = client.run(
            {"script": "steps", "args": args, "workdir": str(instance.work)}
        )
        assert job.wait(60).state == "completed"
        assert job.info.progress.step == 50
        result = json.loads(list(job.logs())[-1])
        assert result["output"] == {"text": "1"}
        assert result["task_id"] == job.id
        task = {
            "task_id": "t-1",
            "task_class": "script",
            "task_type": "process",
            "script": "steps",
            "script_args": {**args, "path": "/nowhere"},
        }
        failed = client.run(task).wait(60)
        assert (failed.state, failed.exit_code) == ("failed", 1)
        assert "steps: FileNotFoundError" in "".join(client.job("t-1").logs())
    refused = instance.run("submit", str(_spec(instance, {"script": "no_such"})))
    assert (refused.returncode, "there is no script 'no_such'" in refused.stderr) == (
        2,
        True,
    )


def _spec(instance: TestInstance, body: dict[str, Any]) -> Path:
    path = instance.work / "job.json"
    path.write_text(json.dumps(body))
    return path


# --- exclusive ---


def load_models(instance: TestInstance) -> None:
    for name in "ab":
        assert ask(instance, name) == f"{name}: hello"


def test_an_exclusive_batch_has_the_gpus_and_then_the_models_come_back(
    instance: TestInstance,
) -> None:
    load_models(instance)
    source = write(instance.work / "in", **{f"i{n}": str(n) for n in range(7)})
    batch = submit(instance, source, "--exclusive", "--arg", f"gate={instance.work}/go")
    wait_until(
        lambda: (
            len({words[3] for words in log_of(instance) if words[0] == "start"}) == 3
        ),
        what="all three GPUs",
    )
    assert set(states(instance).values()) == {"absent"}
    assert {gpu["state"] for gpu in instance.json("gpus")["items"]} == {"script_busy"}
    answers: list[str] = []
    asking = threading.Thread(target=lambda: answers.append(ask(instance, "a")))
    asking.start()
    wait_until(
        lambda: instance.json("models")["items"][0]["waiting"] == 1,
        what="the request to stand in line",
    )
    (instance.work / "go").touch()
    found = ended(instance, batch)
    assert (found["completed"], found["gpu_mode"]) == (7, "exclusive")
    assert set(states(instance).values()) == {"ready"}
    asking.join(30)
    assert answers == ["a: hello"]


def test_round_robin_deals_the_items_out_in_order() -> None:
    with make_instance() as made:
        made.home.create()
        made.home.settings.write_text(
            settings() + '[residency]\npolicy = "round_robin"\n'
        )
        made.ok("up", "--simulate-gpus", "3x24")
        wait_until(lambda: len(made.json("gpus")["items"]) == 3, what="the GPUs")
        source = write(made.work / "in", **{f"i{n}": str(n) for n in range(1, 9)})
        assert ended(made, submit(made, source, "--exclusive"))["completed"] == 8
        by_gpu: dict[str, list[str]] = {}
        for what, name, _, gpu in log_of(made):
            if what == "start":
                by_gpu.setdefault(gpu, []).append(name)
        assert sorted(by_gpu.values()) == [
            ["i1", "i4", "i7"],
            ["i2", "i5", "i8"],
            ["i3", "i6"],
        ]


@pytest.mark.parametrize("step", ["draining", "running", "reloading"])
def test_an_exclusive_batch_survives_a_killed_server_at_every_step(
    instance: TestInstance, step: str
) -> None:
    load_models(instance)
    source = write(instance.work / "in", **{f"i{n}": str(n) for n in range(7)})
    gate = instance.work / "go"
    batch = submit(instance, source, "--exclusive", "--arg", f"gate={gate}")
    if step == "draining":
        instance.kill("server")
        instance.ok("up")
    wait_until(
        lambda: any(words[0] == "start" for words in log_of(instance)), what="an item"
    )
    if step == "running":
        wait_until(
            lambda: len([w for w in log_of(instance) if w[0] == "start"]) == 3,
            what="three items",
        )
        instance.kill("server")
    gate.touch()
    if step == "reloading":
        wait_until(
            lambda: len([w for w in log_of(instance) if w[0] == "end"]) == 7,
            what="the items",
        )
        instance.kill("server")
    found = ended(instance, batch)
    assert found["completed"] == 7
    assert sorted(words[1] for words in log_of(instance) if words[0] == "end") == [
        f"i{n}" for n in range(7)
    ]
    wait_until(lambda: set(states(instance).values()) == {"ready"}, what="the models")
    assert [ask(instance, name) for name in "ab"] == ["a: hello", "b: hello"]


def test_a_cancelled_batch_gives_the_models_their_gpus_back(
    instance: TestInstance,
) -> None:
    load_models(instance)
    source = write(instance.work / "in", **{f"i{n}": str(n) for n in range(7)})
    batch = submit(instance, source, "--exclusive", "--arg", f"gate={instance.work}/go")
    wait_until(
        lambda: len([w for w in log_of(instance) if w[0] == "start"]) == 3,
        what="three items",
    )
    instance.ok("batch", "cancel", batch)
    found = ended(instance, batch)
    assert (found["state"], found["completed"], found["counts"]["cancelled"]) == (
        "cancelled",
        0,
        7,
    )
    assert set(states(instance).values()) == {"ready"}
    refused = instance.run("batch", "cancel", batch)
    assert (refused.returncode, "is over" in refused.stderr) == (4, True)


def test_a_server_that_is_stopped_ends_its_batches_or_leaves_them_to_the_next(
    instance: TestInstance,
) -> None:
    load_models(instance)
    source = write(instance.work / "in", **{f"i{n}": str(n) for n in range(7)})
    batch = submit(instance, source, "--exclusive", "--arg", f"gate={instance.work}/go")
    wait_until(
        lambda: len([w for w in log_of(instance) if w[0] == "start"]) == 3,
        what="three items",
    )
    refused = instance.run("down")
    assert (refused.returncode, "3 jobs are running" in refused.stderr) == (4, True)
    # The tokens of its workers are made from the owner's.
    refused = instance.run("token", "rotate")
    assert (refused.returncode, "A batch runs" in refused.stderr) == (4, True)
    instance.ok("down", "--running", "leave")
    (instance.work / "go").touch()
    instance.ok("up")
    assert ended(instance, batch)["completed"] == 7
    (instance.work / "go").unlink()
    again = submit(instance, source, "--exclusive", "--arg", f"gate={instance.work}/go")
    wait_until(
        lambda: len([w for w in log_of(instance) if w[0] == "start"]) == 10,
        what="three more",
    )
    instance.ok("down", "--running", "cancel")
    instance.ok("up")
    found = show(instance, again)
    assert (found["state"], found["completed"], found["counts"]["cancelled"]) == (
        "cancelled",
        0,
        7,
    )
    assert set(states(instance).values()) == {"absent"}


def test_a_shared_batch_leaves_room_for_a_model_that_is_asked_for(
    instance: TestInstance,
) -> None:
    source = write(instance.work / "in", **{f"i{n:02}": str(n) for n in range(30)})
    batch = submit(instance, source, "--shared", "--arg", f"gate={instance.work}/go")
    wait_until(
        lambda: len([w for w in log_of(instance) if w[0] == "start"]) == 3,
        what="three items",
    )
    answers: list[str] = []
    asking = threading.Thread(target=lambda: answers.append(ask(instance, "a")))
    asking.start()
    wait_until(
        lambda: instance.json("models")["items"][0]["waiting"] == 1,
        what="the request to stand in line",
    )
    (instance.work / "go").touch()
    asking.join(60)
    assert answers == ["a: hello"]
    assert ended(instance, batch)["completed"] == 30


# --- faults ---


def test_a_gpu_lost_in_the_middle_of_a_batch(fake_gpus: FakeGpus) -> None:
    """Its item is done elsewhere, once; a GPU that is added is used."""
    uuids = [f"GPU-{n}0000000-0000-0000-0000-000000000000" for n in range(6)]
    for uuid in uuids[:5]:
        fake_gpus.add(uuid, name="NVIDIA A10", memory_mb=24576, cc="8.6")
    with make_instance(
        **fake_gpus.env(),
        GPUYARD_NODE__DISCOVERY_S="0.2",
        GPUYARD_SCHEDULER__RETRY_BASE_S="0.1",
    ) as instance:
        instance.home.create()
        instance.home.settings.write_text(settings())
        instance.ok("up")
        wait_until(lambda: len(instance.json("gpus")["items"]) == 5, what="the GPUs")
        source = write(instance.work / "in", **{f"i{n}": str(n) for n in range(8)})
        batch = submit(
            instance, source, "--exclusive", "--arg", f"gate={instance.work}/go"
        )
        wait_until(
            lambda: len([w for w in log_of(instance) if w[0] == "start"]) == 5,
            what="five items",
        )
        lost = next(
            words
            for words in log_of(instance)
            if words[0] == "start" and words[3] == uuids[0]
        )
        fake_gpus.lose(uuids[0])
        fake_gpus.add(uuids[5], name="NVIDIA A10", memory_mb=24576, cc="8.6")
        wait_until(
            lambda: any(words[3] == uuids[5] for words in log_of(instance)),
            what="the new GPU to be used",
        )
        (instance.work / "go").touch()
        found = ended(instance, batch)
        assert found["completed"] == 8
        ends = [words for words in log_of(instance) if words[0] == "end"]
        assert len(ends) == 8
        assert next(words for words in ends if words[1] == lost[1])[3] != uuids[0]
        assert [
            item["attempts"]
            for item in found["items"]
            if Path(item["video_path"]).stem == lost[1]
        ] == [2]
