"""Batches end to end: real workers, real media and archives; models that make room and come back; kills on the way."""

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.nvml import FakeGpus
from tests.support.nvml.fixtures import fake_gpus, nvml_library  # noqa: F401  (fixtures)
from tests.support.videos import make_video
from tests.support.wait import wait_until
from tests.support.yard import TestYard, make_yard

PROGRAMS = Path(__file__).parents[1] / "programs"


def settings(*, gpus: int = 1, models: str = "") -> str:
    """gpuyard.toml with the script `steps` and models of one simulated GPU each."""
    words = [sys.executable, str(PROGRAMS / "chat" / "server.py")]
    sections = [f'[scripts.steps]\nfile = "{PROGRAMS}/scripts/steps.py"\ngpus = {gpus}\nboot_s = 0.1\nitem_s = 60\n']
    sections.append(f'[scripts.huge]\nfile = "{PROGRAMS}/scripts/steps.py"\nmemory_gb = 80\n')
    for name in models:
        command = json.dumps([*words, name, "--port", "{port}"])
        sections.append(f"[models.{name}]\ncommand = {command}\nmemory_gb = 20\nboot_s = 1\n")
    return "\n".join(sections)


@pytest.fixture
def yard() -> Iterator[TestYard]:
    """Three simulated GPUs, the models a and b, the script `steps`."""
    with make_yard(GPUYARD_SCHEDULER__RETRY_BASE_S="0.1") as made:
        made.home.create()
        made.home.settings.write_text(settings(models="ab"))
        made.ok("up", "--simulate-gpus", "3x24")
        wait_until(lambda: len(made.json("gpus")["items"]) == 3, 20, "the GPUs")
        yield made


def write(folder: Path, **texts: str) -> Path:
    """A folder of text files."""
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text)
    return folder


def log_of(yard: TestYard) -> list[list[str]]:
    path = yard.work / "log"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def submit(yard: TestYard, source: Path, *words: str) -> str:
    log = f"log={yard.work}/log"
    return yard.ok("batch", "submit", "steps", str(source), "--arg", log, "-d", *words).strip()


def show(yard: TestYard, batch: str) -> dict[str, Any]:
    return yard.json("batch", "show", batch)


def ended(yard: TestYard, batch: str, timeout: float = 60) -> dict[str, Any]:
    def over() -> dict[str, Any] | None:
        found = show(yard, batch)
        return found if found["state"] in ("completed", "cancelled") else None

    return wait_until(over, timeout, f"{batch} to be over")


def ask(yard: TestYard, model: str, timeout: float = 60) -> str:
    address = yard.address()
    headers = {"Authorization": f"Bearer {address.token}"}
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}]}
    answer = httpx.post(f"{address.url}/v1/chat/completions", json=body, headers=headers, timeout=timeout)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]["content"]


def states(yard: TestYard) -> dict[str, str]:
    return {item["name"]: item["state"] for item in yard.json("models")["items"]}


# --- items ---


def test_items_end_as_they_should_and_a_worker_stays_loaded_between_them(yard: TestYard) -> None:
    texts = {f"ok{n}": f"text {n}" for n in range(6)} | {"bad": "fail", "mad": "crash", "shy": "crash once"}
    batch = submit(yard, write(yard.work / "in", **texts))
    found = ended(yard, batch)
    assert (found["total_items"], found["completed"], found["failed"]) == (9, 7, 2)
    reasons = {Path(i["video_path"]).stem: (i["status"], i["attempts"], i["reason"]) for i in found["items"]}
    assert reasons["bad"] == ("failed", 1, "ValueError: it says so")
    assert reasons["mad"] == ("failed", 2, "its process ended with signal 9")
    assert reasons["shy"] == ("complete", 2, None)
    log = log_of(yard)
    loads = [words for words in log if words[0] == "load"]
    assert len(loads) <= 3 + 3, "a load for each GPU, and one after each crash"
    assert {words[3] for words in loads} <= {gpu["uuid"] for gpu in yard.json("gpus")["items"]}
    assert sorted(words[1] for words in log if words[0] == "end") == ["ok0", "ok1", "ok2", "ok3", "ok4", "ok5", "shy"]
    folder = Path(found["results"])
    index = json.loads((folder / "index.json").read_text())
    results = {Path(item["path"]).stem: item["result"] for item in index["items"]}
    assert results["bad"] is None
    kept = json.loads((folder / results["ok3"]).read_text())
    assert kept["output"] == {"text": "text 3"}
    assert set(kept) == {"task_id", "output", "duration"}
    assert (folder / results["ok3"].removesuffix(".json") / "words.txt").read_text() == "text 3"
    assert yard.json("jobs", "--state", "running")["items"] == []


def test_failed_items_are_listed_and_done_again_alone(yard: TestYard) -> None:
    source = write(yard.work / "in", good="yes", bad="fail")
    followed = yard.run("batch", "submit", "steps", str(source), "--arg", f"log={yard.work}/log")
    assert followed.returncode == 1
    assert f"{source}/bad.txt: ValueError: it says so" in followed.stderr
    batch = yard.json("batch")["items"][0]["batch_id"]
    assert f"gpuyard batch retry {batch}" in followed.stderr
    (source / "bad.txt").write_text("better")
    assert "completed: 2/2" in yard.ok("batch", "retry", batch)
    assert [words[1] for words in log_of(yard) if words[0] == "start"].count("good") == 1
    again = yard.run("batch", "retry", batch)
    assert (again.returncode, "No item" in again.stderr) == (4, True)


def test_a_script_that_cannot_be_loaded_ends_its_batch_with_the_reason(yard: TestYard) -> None:
    batch = submit(yard, write(yard.work / "in", one="1", two="2"), "--arg", "broken=true")
    found = ended(yard, batch)
    assert (found["completed"], found["failed"]) == (0, 2)
    assert {item["reason"] for item in found["items"]} == {"RuntimeError: its weights are missing"}


def test_bad_batches_are_refused_with_one_clear_error(yard: TestYard) -> None:
    (yard.work / "empty").mkdir()
    (yard.work / "broken.zim").write_bytes(b"ZIM" + bytes(100))
    (yard.work / "bad.jsonl").write_text('{"file": "x"}\n')
    cases = [
        (["transcribe", "empty"], "empty has nothing for transcribe"),
        (["transcribe", "nowhere"], "there is no nowhere"),
        (["transcribe", "broken.zim"], "is no whole ZIM archive"),
        (["steps", "bad.jsonl"], "bad.jsonl:1: names no path"),
        (["no_such_script", "in"], "there is no script 'no_such_script'"),
        (["steps"], "PATH: is missing"),
    ]
    write(yard.work / "in", one="1")
    for words, said in cases:
        refused = yard.run("batch", "submit", *words)
        assert (refused.returncode, said in refused.stderr) == (2, True), (words, refused.stderr)
    assert yard.json("batch")["items"] == []
    unknown = yard.run("batch", "show", "nothing")
    assert (unknown.returncode, "There is no batch 'nothing'" in unknown.stderr) == (3, True)


def test_a_batch_submitted_twice_with_one_key_is_one_batch(yard: TestYard) -> None:
    source = write(yard.work / "in", one="1")
    first = submit(yard, source, "--key", "k")
    assert submit(yard, source, "--key", "k") == first
    write(source, two="2")
    other = yard.run("batch", "submit", "steps", str(source), "-d", "--key", "k")
    assert (other.returncode, "was used for another batch" in other.stderr) == (4, True)
    assert len(yard.json("batch")["items"]) == 1
    ended(yard, first)


def test_batches_submitted_at_once_have_names_of_their_own(yard: TestYard) -> None:
    source = write(yard.work / "in", one="1")
    found: list[str] = []

    def send() -> None:
        with yard.client() as client:
            made = client.batch("steps", str(source), args={"log": f"{yard.work}/log"}, results=str(yard.work))
            found.append(made["batch_id"])

    threads = [threading.Thread(target=send) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(set(found)) == 6
    assert [ended(yard, batch)["completed"] for batch in found] == [1] * 6


def test_a_batch_for_which_there_is_no_gpu_says_so_and_holds_nobody_up(yard: TestYard) -> None:
    source = write(yard.work / "in", one="1")
    big = yard.ok("batch", "submit", "huge", str(source), "-d").strip()
    assert show(yard, big)["problem"] == "no GPU with 80 GB is there for it; see `gpuyard gpus`"
    alone = yard.ok("batch", "submit", "huge", str(source), "--exclusive", "-d").strip()
    assert ask(yard, "a") == "a: hello"
    assert ended(yard, submit(yard, source))["completed"] == 1
    for batch in (big, alone):
        yard.ok("batch", "cancel", batch)
        assert ended(yard, batch)["state"] == "cancelled"


# --- media and archives ---


def make_zim(path: Path, videos: dict[str, Path]) -> Path:
    """A real archive with these videos and a page."""
    from libzim.writer import Creator, FileProvider, Hint, Item, StringProvider

    class Entry(Item):
        def __init__(self, name: str, kind: str, provider: Any) -> None:
            super().__init__()
            self._name, self._kind, self._provider = name, kind, provider

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


def test_an_archive_of_videos_gives_key_frames_of_each(yard: TestYard) -> None:
    videos = {f"videos/v{n}.mp4": make_video(yard.work / f"v{n}.mp4", seconds=n + 1) for n in range(3)}
    (yard.work / "no.mp4").write_bytes(b"no video at all")
    videos["videos/no.mp4"] = yard.work / "no.mp4"
    archive = make_zim(yard.work / "prepper.zim", videos)
    estimate = yard.json("batch", "estimate", "extract_keyframes", str(archive))
    assert estimate["items"] == 4
    body = yard.json("batch", "submit", "--type", "extract_keyframes", "--input", str(archive), "--batch-size", "9")
    found = ended(yard, body["batch_id"])
    assert found["batch_id"].startswith("extract-prepper-20")
    assert {i["video_path"]: (i["status"], round(i["seconds"] or 0)) for i in found["items"]} == {
        "videos/v0.mp4": ("complete", 1), "videos/v1.mp4": ("complete", 2), "videos/v2.mp4": ("complete", 3),
        "videos/no.mp4": ("failed", 0),
    }  # fmt: skip
    assert "it is no video that can be read" in found["items"][0]["reason"]
    folder = Path(found["results"])
    kept = json.loads(next(folder.glob("*-v2.json")).read_text())["output"]
    assert [frame["at_s"] for frame in kept["frames"]] == [0, 1, 2], "a key frame at each second"
    pictures = sorted((folder / kept["folder"]).iterdir())
    assert [picture.read_bytes()[:2] for picture in pictures] == [b"\xff\xd8"] * 3


def test_globs_and_manifests(yard: TestYard) -> None:
    source = write(yard.work / "in", a="1", b="2", c="3")
    assert yard.json("batch", "estimate", "steps", f"{source}/[ab].txt")["items"] == 2
    lines = ["# two of them", "in/a.txt", json.dumps({"path": "in/b.txt", "args": {"log": f"{yard.work}/own"}}), ""]
    (yard.work / "list.manifest").write_text("\n".join(lines))
    found = ended(yard, submit(yard, yard.work / "list.manifest"))
    assert [Path(item["video_path"]).name for item in found["items"]] == ["a.txt", "b.txt"]
    assert found["completed"] == 2
    assert yard.json("batch", "estimate", "steps", str(source), "--batch-size", "1")["items"] == 1


# --- scripts as jobs and tasks ---


def test_a_registered_script_runs_as_a_job_and_as_a_task(yard: TestYard) -> None:
    path = write(yard.work / "in", one="1") / "one.txt"
    args = {"path": str(path), "log": f"{yard.work}/log"}
    with yard.client() as client:
        job = client.run({"script": "steps", "args": args, "workdir": str(yard.work)})
        assert job.wait(60).state == "completed"
        assert job.info.progress.step == 50
        result = json.loads(list(job.logs())[-1])
        assert result["output"] == {"text": "1"}
        assert result["task_id"] == job.id
        task = {"task_id": "t-1", "task_class": "script", "task_type": "process", "script": "steps",
                "script_args": {**args, "path": "/nowhere"}}  # fmt: skip
        failed = client.run(task).wait(60)
        assert (failed.state, failed.exit_code) == ("failed", 1)
        assert "steps: FileNotFoundError" in "".join(client.job("t-1").logs())
    refused = yard.run("submit", str(_spec(yard, {"script": "no_such"})))
    assert (refused.returncode, "there is no script 'no_such'" in refused.stderr) == (2, True)


def _spec(yard: TestYard, body: dict[str, Any]) -> Path:
    path = yard.work / "job.json"
    path.write_text(json.dumps(body))
    return path


# --- exclusive ---


def load_models(yard: TestYard) -> None:
    for name in "ab":
        assert ask(yard, name) == f"{name}: hello"


def test_an_exclusive_batch_has_the_gpus_and_then_the_models_come_back(yard: TestYard) -> None:
    load_models(yard)
    source = write(yard.work / "in", **{f"i{n}": str(n) for n in range(7)})
    batch = submit(yard, source, "--exclusive", "--arg", f"gate={yard.work}/go")
    wait_until(lambda: len({words[3] for words in log_of(yard) if words[0] == "start"}) == 3, 30, "all three GPUs")
    assert set(states(yard).values()) == {"absent"}
    assert {gpu["state"] for gpu in yard.json("gpus")["items"]} == {"script_busy"}
    answers: list[str] = []
    asking = threading.Thread(target=lambda: answers.append(ask(yard, "a")))
    asking.start()
    wait_until(lambda: yard.json("models")["items"][0]["waiting"] == 1, 10, "the request to stand in line")
    (yard.work / "go").touch()
    found = ended(yard, batch)
    assert (found["completed"], found["gpu_mode"]) == (7, "exclusive")
    assert set(states(yard).values()) == {"ready"}
    asking.join(30)
    assert answers == ["a: hello"]


def test_round_robin_deals_the_items_out_in_order() -> None:
    with make_yard() as made:
        made.home.create()
        made.home.settings.write_text(settings() + '[residency]\npolicy = "round_robin"\n')
        made.ok("up", "--simulate-gpus", "3x24")
        wait_until(lambda: len(made.json("gpus")["items"]) == 3, 20, "the GPUs")
        source = write(made.work / "in", **{f"i{n}": str(n) for n in range(1, 9)})
        assert ended(made, submit(made, source, "--exclusive"))["completed"] == 8
        by_gpu: dict[str, list[str]] = {}
        for what, name, _, gpu in log_of(made):
            if what == "start":
                by_gpu.setdefault(gpu, []).append(name)
        assert sorted(by_gpu.values()) == [["i1", "i4", "i7"], ["i2", "i5", "i8"], ["i3", "i6"]]


@pytest.mark.parametrize("step", ["draining", "running", "reloading"])
def test_an_exclusive_batch_survives_a_killed_server_at_every_step(yard: TestYard, step: str) -> None:
    load_models(yard)
    source = write(yard.work / "in", **{f"i{n}": str(n) for n in range(7)})
    gate = yard.work / "go"
    batch = submit(yard, source, "--exclusive", "--arg", f"gate={gate}")
    if step == "draining":
        yard.kill("server")
        yard.ok("up")
    wait_until(lambda: any(words[0] == "start" for words in log_of(yard)), 30, "an item")
    if step == "running":
        wait_until(lambda: len([w for w in log_of(yard) if w[0] == "start"]) == 3, 30, "three items")
        yard.kill("server")
    gate.touch()
    if step == "reloading":
        wait_until(lambda: len([w for w in log_of(yard) if w[0] == "end"]) == 7, 30, "the items")
        yard.kill("server")
    found = ended(yard, batch)
    assert found["completed"] == 7
    assert sorted(words[1] for words in log_of(yard) if words[0] == "end") == [f"i{n}" for n in range(7)]
    wait_until(lambda: set(states(yard).values()) == {"ready"}, 30, "the models")
    assert [ask(yard, name) for name in "ab"] == ["a: hello", "b: hello"]


def test_a_cancelled_batch_gives_the_models_their_gpus_back(yard: TestYard) -> None:
    load_models(yard)
    source = write(yard.work / "in", **{f"i{n}": str(n) for n in range(7)})
    batch = submit(yard, source, "--exclusive", "--arg", f"gate={yard.work}/go")
    wait_until(lambda: len([w for w in log_of(yard) if w[0] == "start"]) == 3, 30, "three items")
    yard.ok("batch", "cancel", batch)
    found = ended(yard, batch)
    assert (found["state"], found["completed"], found["counts"]["cancelled"]) == ("cancelled", 0, 7)
    assert set(states(yard).values()) == {"ready"}
    refused = yard.run("batch", "cancel", batch)
    assert (refused.returncode, "is over" in refused.stderr) == (4, True)


def test_a_server_that_is_stopped_ends_its_batches_or_leaves_them_to_the_next(yard: TestYard) -> None:
    load_models(yard)
    source = write(yard.work / "in", **{f"i{n}": str(n) for n in range(7)})
    batch = submit(yard, source, "--exclusive", "--arg", f"gate={yard.work}/go")
    wait_until(lambda: len([w for w in log_of(yard) if w[0] == "start"]) == 3, 30, "three items")
    refused = yard.run("down")
    assert (refused.returncode, "3 jobs are running" in refused.stderr) == (4, True)
    yard.ok("down", "--running", "leave")
    (yard.work / "go").touch()
    yard.ok("up")
    assert ended(yard, batch)["completed"] == 7
    (yard.work / "go").unlink()
    again = submit(yard, source, "--exclusive", "--arg", f"gate={yard.work}/go")
    wait_until(lambda: len([w for w in log_of(yard) if w[0] == "start"]) == 10, 30, "three more")
    yard.ok("down", "--running", "cancel")
    yard.ok("up")
    found = show(yard, again)
    assert (found["state"], found["completed"], found["counts"]["cancelled"]) == ("cancelled", 0, 7)
    assert set(states(yard).values()) == {"absent"}


def test_a_shared_batch_leaves_room_for_a_model_that_is_asked_for(yard: TestYard) -> None:
    source = write(yard.work / "in", **{f"i{n:02}": str(n) for n in range(30)})
    batch = submit(yard, source, "--shared", "--arg", f"gate={yard.work}/go")
    wait_until(lambda: len([w for w in log_of(yard) if w[0] == "start"]) == 3, 30, "three items")
    answers: list[str] = []
    asking = threading.Thread(target=lambda: answers.append(ask(yard, "a")))
    asking.start()
    wait_until(lambda: yard.json("models")["items"][0]["waiting"] == 1, 10, "the request to stand in line")
    (yard.work / "go").touch()
    asking.join(60)
    assert answers == ["a: hello"]
    assert ended(yard, batch)["completed"] == 30


# --- faults ---


def test_a_gpu_lost_in_the_middle_of_a_batch(fake_gpus: FakeGpus) -> None:  # noqa: F811
    """Its item is done elsewhere, once; a GPU that is added is used."""
    uuids = [f"GPU-{n}0000000-0000-0000-0000-000000000000" for n in range(6)]
    for uuid in uuids[:5]:
        fake_gpus.add(uuid, name="NVIDIA A10", memory_mb=24576, cc="8.6")
    with make_yard(**fake_gpus.env(), GPUYARD_NODE__DISCOVERY_S="0.2", GPUYARD_SCHEDULER__RETRY_BASE_S="0.1") as yard:
        yard.home.create()
        yard.home.settings.write_text(settings())
        yard.ok("up")
        wait_until(lambda: len(yard.json("gpus")["items"]) == 5, 20, "the GPUs")
        source = write(yard.work / "in", **{f"i{n}": str(n) for n in range(8)})
        batch = submit(yard, source, "--exclusive", "--arg", f"gate={yard.work}/go")
        wait_until(lambda: len([w for w in log_of(yard) if w[0] == "start"]) == 5, 30, "five items")
        lost = next(words for words in log_of(yard) if words[0] == "start" and words[3] == uuids[0])
        fake_gpus.lose(uuids[0])
        fake_gpus.add(uuids[5], name="NVIDIA A10", memory_mb=24576, cc="8.6")
        wait_until(lambda: any(words[3] == uuids[5] for words in log_of(yard)), 30, "the new GPU to be used")
        (yard.work / "go").touch()
        found = ended(yard, batch)
        assert found["completed"] == 8
        ends = [words for words in log_of(yard) if words[0] == "end"]
        assert len(ends) == 8
        assert next(words for words in ends if words[1] == lost[1])[3] != uuids[0]
        assert [item["attempts"] for item in found["items"] if Path(item["video_path"]).stem == lost[1]] == [2]
