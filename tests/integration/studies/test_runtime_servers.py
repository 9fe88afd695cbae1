"""The engines that are servers, by stand-ins that take exactly what the real ones
take.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from tests.integration.studies.test_runtime_programs import running
from tests.integration.studies.test_runtime_programs.running import (
    PROGRAMS,
    metrics_of,
    run_one,
    write_config,
)
from tests.support import huggingface

fast_trainer_python = huggingface.fast_trainer_python
SERVERS = PROGRAMS / "fake_servers"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """What a client needs of a model: how prompts become tokens."""
    folder = tmp_path / "model"
    folder.mkdir()
    words = {f"w{number}": number for number in range(64)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    prompts = [
        {"prompt_id": f"p{number}", "variant": "2k", "prompt": f"w{number} w9 w8 w7"}
        for number in range(1, 6)
    ]
    lines = [json.dumps(prompt) + "\n" for prompt in prompts]
    (folder / "prompts.jsonl").write_text("".join(lines))
    return folder


def words_after(command: list[str], model: Path) -> list[str]:
    """A command line, whose port and host of the meeting are any."""
    shown: list[str] = []
    for before, word in zip(["", *command], command, strict=False):
        is_any = before in ("--port", "--master-port", "--dist-init-addr")
        shown.append("*" if is_any else word.replace(str(model), "MODEL"))
    return shown


CASES: dict[str, tuple[dict[str, Any], list[list[str]]]] = {
    "vllm_server": (
        {
            "layout": (2, 1, 2),
            "engine_options": {
                "enable_expert_parallel": True,
                "async_scheduling": False,
                "max_model_len": 512,
            },
            "load": {"rates": [100.0, 400.0], "requests": 5, "seed": 3},
        },
        [
            [
                "serve",
                "MODEL",
                "--dtype",
                "float32",
                "--seed",
                "7",
                "--tensor-parallel-size",
                "2",
                "--pipeline-parallel-size",
                "1",
                "--data-parallel-size",
                "2",
                "--max-num-seqs",
                "7",
                "--no-enable-prefix-caching",
                "--host",
                "127.0.0.1",
                "--port",
                "*",
                "--enable-expert-parallel",
                "--no-async-scheduling",
                "--max-model-len",
                "512",
            ]
        ],
    ),
    "sglang": (
        {
            "layout": (2, 2, 1),
            "num_nodes": 2,
            "engine_options": {"quantization": "fp8", "enable_dp_attention": False},
        },
        [
            (
                "--model-path MODEL --dtype float32 --random-seed 7 --tp-size 2"
                " --pp-size 2 --dp-size 1 --max-running-requests 7"
                f" --disable-radix-cache --nnodes 2 --node-rank {node}"
                " --dist-init-addr * --host 127.0.0.1 --port * --quantization fp8"
            ).split()
            for node in (0, 1)
        ],
    ),
    "tensorrt_llm": (
        {"layout": (2, 1, 1), "engine_options": {"ep_size": 2}, "temperature": 0.5},
        [
            [
                "MODEL",
                "--backend",
                "pytorch",
                "--tp_size",
                "2",
                "--pp_size",
                "1",
                "--max_batch_size",
                "7",
                "--host",
                "127.0.0.1",
                "--port",
                "*",
                "--ep_size",
                "2",
            ]
        ],
    ),
}


@pytest.mark.parametrize("engine", CASES)
def test_a_server_is_started_and_asked_as_its_documents_say(
    engine: str, model: Path, fast_trainer_python: Path, tmp_path: Path
) -> None:
    options, expected = CASES[engine]
    config = write_config(
        tmp_path / "run", model, engine=engine, seed=7, limit=3, **options
    )
    told = tmp_path / "told.jsonl"
    nodes = options.get("num_nodes", 1)
    codes, text = run_one(
        fast_trainer_python,
        config,
        nodes,
        PYTHONPATH=str(SERVERS),
        PATH=f"{SERVERS / 'bin'}:{os.environ['PATH']}",
        FAKE_SERVERS=str(told),
    )
    assert codes == [0] * nodes, text
    commands = [json.loads(line) for line in told.read_text().splitlines()]
    assert sorted(words_after(one, model) for one in commands) == expected, text
    rows = running.rows_of(config.parent)
    lines = (model / "prompts.jsonl").read_text().splitlines()
    for prompt in map(json.loads, lines[:3]):
        row = rows[prompt["prompt_id"]]
        ids = [int(word[1:]) + 1 for word in prompt["prompt"].split()]
        wanted = ids[: row["tokens_generated"]]
        assert row["completion"] == " ".join(f"w{token}" for token in wanted)
        knows_ids = engine == "vllm_server"
        assert row["token_ids"] == (wanted if knows_ids else None)
        assert row.get("logprobs") == ([-0.25] * len(wanted) if knows_ids else None)
        assert 0 < row["ttft_ms"] <= row["latency_ms"]
    loads = [
        json.loads(line)
        for path in config.parent.glob("load/*.jsonl")
        for line in path.read_text().splitlines()
    ]
    rates = options.get("load", {"rates": []})["rates"]
    assert [one["rate"] for one in loads] == [rate for rate in rates for _ in range(5)]
    assert all(one["tokens"] > 1 and one["ttft_ms"] > 0 for one in loads)
    metrics = metrics_of(config.parent)
    assert [one["rows"] for one in metrics] == [3] + [0] * (len(metrics) - 1)
    assert len(metrics) == json.loads(config.read_text())["world_size"]
    assert all(one["complete"] for one in metrics), metrics
    assert metrics[0]["engine_version"] == "9.9.fake"


def test_a_server_that_does_not_start_is_told(
    model: Path, fast_trainer_python: Path, tmp_path: Path
) -> None:
    config = write_config(
        tmp_path / "run",
        model,
        engine="sglang",
        engine_options={"no_such_option": 1},
    )
    codes, text = run_one(
        fast_trainer_python,
        config,
        1,
        PYTHONPATH=str(SERVERS),
        FAKE_SERVERS=str(tmp_path / "told.jsonl"),
    )
    assert codes == [1], text
    error = metrics_of(config.parent)[0]["error"]
    assert error == "the server of sglang ended with exit code 2 before it answered"
    assert "unrecognized arguments: --no-such-option" in text
