"""Registered scripts: how long they take to load, and their results in a log."""

import json

import pytest

from gpuyard.domain.scripts import BUILT_IN, Scripts, ScriptSpec, find_result

RESULT = {"task_id": "t-1", "output": {"words": 3}, "duration": 1.5}
LINE = json.dumps(RESULT).encode()


@pytest.mark.parametrize(
    "log",
    [
        LINE + b"\n",
        b'loading\nGPUYARD_METRIC {"step": 0, "total": 100}\n' + LINE + b"\n",
        b"no end of line" + LINE + b"\nits child says good-bye\n",
        json.dumps({**RESULT, "output": 1}).encode() + b"\n" + LINE,
    ],
)
def test_a_result_is_found_in_its_log(log):
    assert find_result(log, "t-1") == RESULT


@pytest.mark.parametrize("log", [b"", b"it failed\n", LINE[:-3]])
def test_a_log_may_have_no_result(log):
    assert find_result(log, "t-1") is None


def test_the_result_of_another_task_is_not_taken():
    assert find_result(LINE, "t-2") is None


def test_boot_times_are_known_by_what_a_script_loads_or_by_its_name():
    times = {"whisper:small.en": 7.0, "sentence-transformers": 4.0, "count": 2.0}
    scripts = Scripts({"count": ScriptSpec(boot_s=9.0)}, times)
    assert scripts["whisper_transcribe"].boot_s == 7.0
    assert scripts["embed_768"].boot_s == 4.0
    assert scripts["count"].boot_s == 2.0
    assert scripts["extract_keyframes"] == BUILT_IN["extract_keyframes"]
    assert scripts.boot_times() == times


def test_the_document_says_how_long_scripts_take_to_load():
    times = Scripts({}).boot_times()
    assert times == {"whisper:small.en": 5.0, "sentence-transformers": 3.0}
