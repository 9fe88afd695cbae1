"""A script in its process: what it breaks is its own item, and the next one is done."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuyard.node.worker import CrashError, ScriptError, ScriptProcess, do_item

SCRIPT = """
import os, time
def load(args):
    if args.get("fail"):
        raise RuntimeError("no weights\\nand more")
    def run(args, folder, progress):
        what = args["path"]
        progress(float("nan"))
        if what == "raise":
            raise ValueError("it says so")
        if what == "crash":
            os._exit(3)
        if what == "stuck":
            time.sleep(600)
        if what.startswith("forks "):
            child = os.fork()
            if child == 0:
                time.sleep(600)
            with open(what[6:], "w") as file:
                file.write(str(child))
            os._exit(3)
        if what == "talks":
            for _ in range(20):
                time.sleep(0.1)
                progress(0.5)
        if what == "nan":
            return float("nan")
        return {"pid": os.getpid(), "path": what}
    return run
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture
def runner(script: Path) -> Iterator[ScriptProcess]:
    with ScriptProcess({"script": "mine", "file": str(script)}) as made:
        made.load()
        yield made


def item(path: str, **more: Any) -> dict[str, Any]:
    return {
        "id": "b/00001",
        "number": 1,
        "attempts": 1,
        "path": path,
        "entry": None,
        "args": {},
        **more,
    }


def test_a_result_is_kept_whole_with_what_the_document_asks_for(
    runner: ScriptProcess, tmp_path: Path
) -> None:
    done = do_item(runner, item("/x/a video.mp4"), tmp_path)
    assert done == {"number": 1, "attempts": 1, "fault": None, "crashed": False}
    kept = json.loads((tmp_path / "00001-a-video.json").read_text())
    assert (kept["task_id"], kept["output"]["path"], kept["duration"] >= 0) == (
        "b/00001",
        "/x/a video.mp4",
        True,
    )


@pytest.mark.parametrize(
    ("what", "said", "crashed"),
    [
        ("raise", "ValueError: it says so", False),
        ("crash", "its process left with code 3", True),
        ("nan", "ValueError: Out of range float values are not JSON compliant", False),
    ],
)
def test_what_goes_wrong_is_told_and_the_next_item_is_done(
    runner: ScriptProcess, tmp_path: Path, what: str, said: str, crashed: bool
) -> None:
    done = do_item(runner, item(what), tmp_path)
    assert (str(done["fault"]).startswith(said), done["crashed"]) == (True, crashed)
    assert do_item(runner, item("good"), tmp_path)["fault"] is None


def test_a_process_in_which_two_items_went_wrong_is_replaced(
    runner: ScriptProcess, tmp_path: Path
) -> None:
    before = runner.run({"path": "x"}, tmp_path)["pid"]
    for _ in range(2):
        with pytest.raises(ScriptError):
            runner.run({"path": "raise"}, tmp_path)
    runner.load()
    assert runner.run({"path": "x"}, tmp_path)["pid"] != before


def test_a_script_that_cannot_be_loaded_says_why_each_time(script: Path) -> None:
    with ScriptProcess(
        {"script": "mine", "file": str(script), "args": {"fail": True}}
    ) as runner:
        for _ in range(2):
            with pytest.raises(CrashError, match=r"^RuntimeError: no weights$"):
                runner.load()
    with (
        ScriptProcess({"script": "no_such"}) as runner,
        pytest.raises(ScriptError, match="is no Python file"),
    ):
        runner.load()
    nowhere = ScriptProcess(
        {"script": "mine", "file": str(script), "python": "/no/python"}
    )
    with nowhere, pytest.raises(ScriptError, match="/no/python cannot be run"):
        nowhere.load()


@pytest.mark.parametrize("entry", ["videos/a.webm", "b"])
def test_an_archive_that_is_none_fails_its_item(
    runner: ScriptProcess, tmp_path: Path, entry: str
) -> None:
    (tmp_path / "x.zim").write_bytes(b"no archive")
    done = do_item(runner, item(str(tmp_path / "x.zim"), entry=entry), tmp_path)
    assert f"{entry} cannot be read from" in done["fault"]


def test_one_that_is_stuck_is_ended_and_the_next_is_done(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuyard.node.worker._LOOK_S", 0.05)
    with ScriptProcess(
        {"script": "mine", "file": str(script), "silent_s": 0.5}
    ) as runner:
        done = do_item(runner, item("stuck"), tmp_path)
        assert done["crashed"]
        assert (
            done["fault"]
            == "it was stuck: it wrote nothing and showed no progress for 0.5 s"
        )
        assert do_item(runner, item("talks"), tmp_path)["fault"] is None, (
            "it shows progress for two seconds"
        )


def test_one_whose_children_live_on_is_gone_all_the_same(
    runner: ScriptProcess, tmp_path: Path
) -> None:
    done = do_item(runner, item(f"forks {tmp_path}/child"), tmp_path)
    child = int((tmp_path / "child").read_text())
    assert done["fault"] == "its process left with code 3"
    os.kill(child, 9)  # it still is there
