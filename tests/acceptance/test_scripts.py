"""The scripts that come with gpuyard, each with what it really imports; models are tiny
and random.
"""

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.test_batches import ended, make_zim, write
from tests.support import huggingface
from tests.support.instance import TestInstance, make_instance
from tests.support.programs import run_program
from tests.support.videos import make_video

fast_trainer_python = huggingface.fast_trainer_python
PROGRAMS = Path(__file__).parents[1] / "programs" / "tinymodel"
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


@pytest.fixture
def instance(fast_trainer_python: Path) -> Iterator[TestInstance]:
    """A simulated GPU; the scripts that need PyTorch run in the environment that has
    it.
    """
    with make_instance() as made:
        made.home.create()
        names = ("whisper_transcribe", "embed_768")
        sections = [
            f'[scripts.{name}]\npython = "{fast_trainer_python}"\n' for name in names
        ]
        made.home.settings.write_text("\n".join(sections))
        made.ok("up", "--simulate-gpus", "1x24")
        yield made


def make_model(python: Path, program: str, folder: Path) -> Path:
    words = [python, PROGRAMS / program, folder, PROGRAMS.parents[2] / "README.md"]
    run_program(words, env=os.environ | OFFLINE)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_whisper_over_an_archive(
    instance: TestInstance, fast_trainer_python: Path
) -> None:
    model = make_model(fast_trainer_python, "whisper.py", instance.work / "model")
    videos = {
        f"videos/v{n}.mp4": make_video(instance.work / f"v{n}.mp4", seconds=s)
        for n, s in enumerate((2, 33))
    }
    videos["videos/mute.mp4"] = make_video(instance.work / "mute.mp4", 1, sound=False)
    archive = make_zim(instance.work / "talks.zim", videos)
    offline = [
        word for name, value in OFFLINE.items() for word in ("--env", f"{name}={value}")
    ]
    words = [
        "transcribe",
        str(archive),
        "--arg",
        f"model={model}",
        "--arg",
        "max_new_tokens=8",
        *offline,
    ]
    batch = instance.json("batch", "submit", *words)
    found = ended(instance, batch["batch_id"], 200)
    assert found["batch_id"].startswith("whisper-talks-20")
    assert {i["video_path"]: i["status"] for i in found["items"]} == {
        "videos/v0.mp4": "complete",
        "videos/v1.mp4": "complete",
        "videos/mute.mp4": "failed",
    }
    assert (
        next(i["reason"] for i in found["items"] if "mute" in i["video_path"])
        == "ValueError: it has no sound"
    )
    kept = json.loads(next(Path(found["results"]).glob("*-v1.json")).read_text())
    segments = kept["output"]["segments"]
    assert [(segment["start"], round(segment["end"])) for segment in segments] == [
        (0, 30),
        (30, 33),
    ]
    assert all(segment["text"] for segment in segments)
    assert kept["output"]["text"] == " ".join(segment["text"] for segment in segments)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_sentences_become_vectors_of_768_numbers(
    instance: TestInstance, fast_trainer_python: Path
) -> None:
    make_model(fast_trainer_python, "embedder.py", instance.work / "model")
    with instance.client() as client:
        args = {
            "model": f"{instance.work}/model/sentences",
            "text": ["one", "two words"],
        }
        job = client.run({"script": "embed_768", "args": args, "environment": OFFLINE})
        assert job.wait(200).state == "completed"
        output = json.loads(list(job.logs())[-1])["output"]
        assert output["dimensions"] == 768
        assert [len(vector) for vector in output["embeddings"]] == [768, 768]
        assert job.info.gpus, "it had a GPU"


class _Embeddings(BaseHTTPRequestHandler):
    """Answers as OpenAI does: vectors of as many numbers as the model's name says."""

    def do_POST(self) -> None:
        body: Any = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        good = (
            self.path == "/v1/embeddings"
            and self.headers["Authorization"] == "Bearer secret"
        )
        length = 1536 if body["model"] == "text-embedding-3-small" else 8
        data = [{"embedding": [float(len(text))] * length} for text in body["input"]]
        answer = json.dumps(
            {"data": data} if good else {"error": {"message": "no such key"}}
        ).encode()
        self.send_response(200 if good else 401)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


def test_texts_become_vectors_of_1536_numbers_by_an_api(instance: TestInstance) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Embeddings)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    source = write(instance.work / "in", a="one", b="three")
    base = ["--env", f"OPENAI_BASE_URL=http://127.0.0.1:{server.server_port}/v1"]
    key = ["--env", "OPENAI_API_KEY=secret"]
    try:
        batch = instance.json("batch", "submit", "embed_1536", str(source), *base, *key)
        found = ended(instance, batch["batch_id"])
        assert (found["completed"], [item["gpu"] for item in found["items"]]) == (
            2,
            [None, None],
        )
        kept = json.loads(next(Path(found["results"]).glob("*-b.json")).read_text())[
            "output"
        ]
        assert (kept["dimensions"], kept["embeddings"]) == (1536, [[5.0] * 1536])
        for words, said in [
            ([*base, "--env", "OPENAI_API_KEY=wrong"], "answered 401"),
            (
                [*base, *key, "--arg", "model=other"],
                "gives vectors of 8 numbers, not of 1536",
            ),
            (base, "OPENAI_API_KEY is not set"),
        ]:
            batch = instance.json("batch", "submit", "embed_1536", str(source), *words)
            found = ended(instance, batch["batch_id"])
            assert found["failed"] == 2
            assert said in found["items"][0]["reason"]
    finally:
        server.shutdown()
