"""Language models on the same GPUs as scripts, end to end: simulated GPUs, real model
servers, OpenAI's API.
"""

import json
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.support.instance import TestInstance, make_instance
from tests.support.wait import wait_until

SERVER = Path(__file__).parents[1] / "programs" / "chat" / "server.py"
FAULTY = {"crashing": "--crash", "deaf": "--deaf", "garbled": "--garbage"}


def model(name: str, *flags: str, **more: object) -> str:
    """A section of gpuyard.toml."""
    words = [sys.executable, str(SERVER), name, "--port", "{port}", *flags]
    fields = {"command": words, "memory_gb": 16, "boot_s": 1, **more}
    return f"[models.{name}]\n" + "".join(
        f"{key} = {json.dumps(value)}\n" for key, value in fields.items()
    )


@pytest.fixture
def models_instance() -> Iterator[TestInstance]:
    """Two GPUs of 24 GB and the models a, b and the faulty ones."""
    with make_instance(GPUYARD_SCHEDULER__RETRY_BASE_S="0.1") as instance:
        instance.home.create()
        sections = [
            model("a", boot_timeout_s=30),
            model("b"),
            model("big", memory_gb=80),
        ]
        # Who crashes or answers nonsense has the time to do so on a busy machine.
        limits = {"deaf": 0.5}
        sections += [
            model(name, flag, boot_timeout_s=limits.get(name, 30.0))
            for name, flag in FAULTY.items()
        ]
        instance.home.settings.write_text("\n".join(sections))
        instance.ok("up", "--simulate-gpus", "2x24")
        wait_until(lambda: len(instance.json("gpus")["items"]) == 2, what="the GPUs")
        yield instance


def openai(instance: TestInstance) -> httpx.Client:
    address = instance.address()
    return httpx.Client(
        base_url=f"{address.url}/v1",
        headers={"Authorization": f"Bearer {address.token}"},
        timeout=60,
    )


def ask(
    instance: TestInstance, name: str, text: str = "hello", **more: object
) -> httpx.Response:
    with openai(instance) as client:
        body = {"model": name, "messages": [{"role": "user", "content": text}], **more}
        return client.post("/chat/completions", json=body)


def said(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


def models(instance: TestInstance) -> dict[str, dict[str, Any]]:
    return {item["name"]: item for item in instance.json("models")["items"]}


def test_a_request_loads_its_model_and_a_script_gets_its_gpu_back(
    models_instance: TestInstance,
) -> None:
    assert said(ask(models_instance, "a")) == "a: hello"
    assert said(ask(models_instance, "b")) == "b: hello"
    states = models(models_instance)
    assert (states["a"]["state"], states["b"]["state"]) == ("ready", "ready")
    assert {gpu["state"] for gpu in models_instance.json("gpus")["items"]} == {
        "llm_ready"
    }
    wide = models_instance.submit(["true"], resources={"gpus": 1, "cpus": 0.1})
    assert models_instance.wait(wide).state == "completed"
    servers_ = models_instance.json("jobs", "--state", "cancelled")["items"]
    assert {job["reason"] for job in servers_} == {"evicted"}
    assert said(ask(models_instance, "a", "once more")) == "a: once more"
    assert said(ask(models_instance, "b", "once more")) == "b: once more"
    assert models(models_instance)["a"]["boot_s"] < 10


def test_the_openai_api_as_clients_use_it(models_instance: TestInstance) -> None:
    with openai(models_instance) as client:
        assert [item["id"] for item in client.get("/models").json()["data"]][:2] == [
            "a",
            "b",
        ]
        assert client.post("/embeddings", json={"model": "a", "input": "x"}).json()[
            "data"
        ][0]["embedding"] == [0.5]
        body = {
            "model": "a",
            "messages": [{"role": "user", "content": "one two"}],
            "stream": True,
        }
        with client.stream("POST", "/chat/completions", json=body) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            chunks = [
                line.removeprefix("data: ") for line in answer.iter_lines() if line
            ]
        assert chunks[-1] == "[DONE]"
        assert [
            json.loads(chunk)["choices"][0]["delta"]["content"] for chunk in chunks[:-2]
        ] == ["one", "two"]
        wrong = client.get("/models", headers={"Authorization": "Bearer wrong"})
        assert wrong.status_code == 401
        assert "no valid token" in wrong.json()["error"]["message"]
        assert client.get("/models/a").json()["id"] == "a"
        unknown = client.post("/audio/speech", json={"model": "a"})
        assert "there is no /v1/audio/speech" in unknown.json()["error"]["message"]
        missing = client.post(
            "/chat/completions", json={"model": "gpt-9", "messages": []}
        )
        assert (missing.status_code, missing.json()["error"]["code"]) == (
            404,
            "model_not_found",
        )
        assert (
            client.post("/chat/completions", content=b"[1]").json()["error"]["code"]
            == "invalid_body"
        )


def test_a_model_that_fits_no_gpu_says_what_it_needs_and_what_there_is(
    models_instance: TestInstance,
) -> None:
    refused = ask(models_instance, "big")
    assert refused.status_code == 503
    assert (
        "needs a GPU with 80 GB; the largest here has 24 GB"
        in refused.json()["error"]["message"]
    )
    by_hand = models_instance.run("models", "load", "big")
    assert (by_hand.returncode, "80 GB" in by_hand.stderr) == (4, True)


def test_a_model_is_not_loaded_on_a_gpu_in_quarantine_and_answers_where_it_is(
    models_instance: TestInstance,
) -> None:
    first = "GPU-simulated-0"
    second = "GPU-simulated-1"
    models_instance.ok("trust", "quarantine", f"gpu:{first}")
    assert said(ask(models_instance, "a")) == "a: hello"
    assert [replica["gpu"] for replica in models(models_instance)["a"]["replicas"]] == [
        second
    ]
    refused = models_instance.run("models", "load", "b")
    assert (refused.returncode, f"a is idle on GPU {second}" in refused.stderr) == (
        4,
        True,
    ), refused.stderr
    models_instance.ok("trust", "quarantine", f"gpu:{second}")
    assert said(ask(models_instance, "a", "again")) == "a: again"
    models_instance.ok("trust", "forget", f"gpu:{first}")
    assert said(ask(models_instance, "b")) == "b: hello"
    assert [replica["gpu"] for replica in models(models_instance)["b"]["replicas"]] == [
        first
    ]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("crashing", "its server ended"),
        ("deaf", "was not healthy"),
        ("garbled", "is no answer"),
    ],
)
def test_a_server_that_is_of_no_use_is_given_up_with_its_reason(
    models_instance: TestInstance, name: str, why: str
) -> None:
    refused = ask(models_instance, name)
    assert refused.status_code == 503
    assert why in refused.json()["error"]["message"]
    assert "gpuyard logs" in refused.json()["error"]["message"]
    assert why in models_instance.ok("models")
    # The others are not touched by it.
    assert said(ask(models_instance, "a")) == "a: hello"


def test_a_killed_model_server_is_restarted_and_others_stream_on(
    models_instance: TestInstance,
) -> None:
    for name in ("a", "b"):
        models_instance.ok("models", "pin", name)
    wait_until(
        lambda: {models(models_instance)[n]["state"] for n in "ab"} == {"ready"},
        what="both to be loaded",
    )
    words: list[str] = []

    def listen() -> None:
        body = {
            "model": "b",
            "messages": [{"role": "user", "content": " ".join("x" * 30)}],
            "stream": True,
        }
        with (
            openai(models_instance) as client,
            client.stream("POST", "/chat/completions", json=body) as answer,
        ):
            words.extend(line for line in answer.iter_lines() if line)

    listening = threading.Thread(target=listen)
    listening.start()
    wait_until(
        lambda: models(models_instance)["b"]["state"] == "busy",
        what="the stream to begin",
    )
    (first,) = servers(models_instance, "a")
    first.send_signal(signal.SIGKILL)
    wait_until(
        lambda: [p.pid for p in servers(models_instance, "a")] not in ([], [first.pid]),
        what="another server of a",
    )
    assert said(ask(models_instance, "a")) == "a: hello"
    listening.join(30)
    assert len(words) == 32
    assert words[-1] == "data: [DONE]"


def test_what_is_pinned_never_gives_way(models_instance: TestInstance) -> None:
    models_instance.ok("models", "pin", "a")
    assert said(ask(models_instance, "b")) == "b: hello"
    first = models_instance.submit(["true"], resources={"gpus": 1})
    assert models_instance.wait(first).state == "completed"
    (server,) = servers(models_instance, "a")
    both = models_instance.submit(["true"], resources={"gpus": 2})
    assert models(models_instance)["a"]["pinned"]
    assert models_instance.json("show", both)["state"] == "queued"
    models_instance.ok("models", "unpin", "a")
    models_instance.ok("models", "unload", "a")
    assert models_instance.wait(both).state == "completed"
    assert not server.is_running()


def test_residents_outlive_a_killed_server_and_are_found_again(
    models_instance: TestInstance,
) -> None:
    models_instance.ok("models", "pin", "a")
    assert said(ask(models_instance, "a")) == "a: hello"
    (before,) = servers(models_instance, "a")
    models_instance.kill("server")
    models_instance.ok("up")
    assert said(ask(models_instance, "a", "still there")) == "a: still there"
    assert [process.pid for process in servers(models_instance, "a")] == [before.pid]
    assert models(models_instance)["a"]["pinned"]


def test_a_client_that_leaves_frees_its_place(models_instance: TestInstance) -> None:
    assert said(ask(models_instance, "a")) == "a: hello"
    with openai(models_instance) as client, pytest.raises(httpx.ReadTimeout):
        body = {"model": "a", "messages": [{"role": "user", "content": "sleep 0.5"}]}
        client.post("/chat/completions", json=body, timeout=0.1)
    wait_until(
        lambda: models(models_instance)["a"]["state"] == "ready",
        what="the place to be free",
    )


def test_down_takes_the_models_with_it_and_is_not_refused_because_of_them(
    models_instance: TestInstance,
) -> None:
    assert said(ask(models_instance, "a")) == "a: hello"
    (server,) = servers(models_instance, "a")
    models_instance.ok("down")
    wait_until(lambda: not server.is_running(), what="the server to be gone")


@pytest.mark.parametrize(
    ("words", "code", "said_"),
    [
        (["load", "nothing"], 3, "Configured are: a, b"),
        (["pin", "nothing"], 3, "no model 'nothing'"),
    ],
)
def test_a_model_that_is_not_configured_is_named(
    models_instance: TestInstance, words: list[str], code: int, said_: str
) -> None:
    refused = models_instance.run("models", *words)
    assert (refused.returncode, said_ in refused.stderr) == (code, True)


@pytest.mark.parametrize(
    ("section", "field"),
    [
        ("[models.x]\nmemory_gb = 1\n", "models.x.command"),
        ('[models.x]\nmemory_gb = 1\ncommand = ["serve"]\n', "{port}"),
        ('[models.x]\nengine = "vllm"\n', "models.x.memory_gb"),
        (
            '[models.x]\nengine = "vllm"\nmemory_gb = 1\ncommand = ["x"]\n',
            "does not belong",
        ),
        ('[models.x]\nengine = "magic"\nmemory_gb = 1\n', "models.x.engine"),
    ],
)
def test_a_wrong_model_section_names_its_field(section: str, field: str) -> None:
    with make_instance() as instance:
        instance.home.create()
        instance.home.settings.write_text(section)
        refused = instance.run("up")
        assert refused.returncode != 0
        assert field in refused.stderr
        assert "gpuyard.toml" in refused.stderr


def servers(instance: TestInstance, name: str) -> list[psutil.Process]:
    """The living processes that serve a model."""
    found: list[psutil.Process] = []
    for replica in models(instance)[name]["replicas"]:
        for process in psutil.process_iter(["cmdline"]):
            line = process.info["cmdline"] or []
            if str(SERVER) in line and str(replica["port"]) in line:
                found.append(process)
    return found


def test_gpuyard_llm_prints_the_answer_as_it_comes(
    models_instance: TestInstance,
) -> None:
    assert models_instance.ok("llm", "a", "one", "two") == "onetwo\n"
    # A job of this size would be refused.
    long = "x" * 10_000_000
    assert models_instance.ok("llm", "a", input=long) == f"{long}\n"
    assert (
        models_instance.json("llm", "a", "hi")["choices"][0]["message"]["content"]
        == "a: hi"
    )
    refused = models_instance.run("llm", "gpt-9", "hi")
    assert (refused.returncode, "there is: a, b" in refused.stderr) == (3, True)


def test_gpu_state_json_says_what_each_gpu_does(models_instance: TestInstance) -> None:
    path = models_instance.home.gpu_state
    assert said(ask(models_instance, "a")) == "a: hello"
    job = models_instance.submit(["sleep", "60"], resources={"gpus": 1})
    models_instance.wait(job, "running")

    def shown() -> Any:
        gpus = json.loads(path.read_text())["gpus"] if path.exists() else {}
        return (
            gpus
            if {gpu["state"] for gpu in gpus.values()} == {"llm_ready", "script_busy"}
            else None
        )

    found = {
        gpu["state"]: gpu
        for gpu in wait_until(shown, what="the file to be true").values()
    }
    resident = found["llm_ready"]
    script = found["script_busy"]
    assert (resident["model"], resident["tasks_completed"]) == ("a", 1)
    assert resident["port"] > 0
    assert (script["task_id"], script["progress"]) == (job, None)
    assert {gpu["uuid"] for gpu in found.values()} == {
        "GPU-simulated-0",
        "GPU-simulated-1",
    }
    assert json.loads(path.read_text())["boot_times"]["b"] == 1
    models_instance.ok("cancel", job)


def test_a_prompt_is_a_job_that_is_answered_by_its_model(
    models_instance: TestInstance,
) -> None:
    task = {
        "task_id": "t-1",
        "task_class": "llm",
        "task_type": "generate",
        "prompt": "in a job",
    }
    with models_instance.client() as client:
        job = client.run({"prompt": "in a job", "model": "a"})
        assert job.wait(60).state == "completed"
        assert list(job.logs()) == ["a: in a job"]
        assert len(job.info.gpus) == 1
    # A task need not name a model: it gets the one that is loaded.
    (models_instance.work / "task.json").write_text(json.dumps(task))
    models_instance.ok("submit", "task.json")
    assert models_instance.wait("t-1").state == "completed"
    assert models_instance.ok("logs", "t-1") == "a: in a job\n"
    refused = models_instance.run("submit", "-", input=json.dumps({"prompt": "x"}))
    assert (refused.returncode, "name one of those configured" in refused.stderr) == (
        2,
        True,
    )
    unknown = models_instance.run(
        "submit", "-", input=json.dumps({"prompt": "x", "model": "gpt-9"})
    )
    assert (unknown.returncode, "no model 'gpt-9'" in unknown.stderr) == (2, True)
    mine = models_instance.run(
        "submit", "-", input=json.dumps({"kind": "model", "command": ["true"]})
    )
    assert (mine.returncode, "gpuyard models" in mine.stderr) == (2, True)


def test_a_prompts_job_outlives_the_server_it_asked(
    models_instance: TestInstance,
) -> None:
    models_instance.ok("models", "pin", "a")
    assert said(ask(models_instance, "a")) == "a: hello"
    with models_instance.client() as client:
        job = client.run({"prompt": "sleep 2", "model": "a"}).id
    models_instance.wait(job, "running")
    wait_until(
        lambda: models(models_instance)["a"]["state"] == "busy", what="it to be asked"
    )
    models_instance.kill("server")
    models_instance.ok("up")
    assert models_instance.wait(job).state == "completed"
    assert models_instance.ok("logs", job).strip() == "a: sleep 2"


def test_the_documents_task_with_a_script(models_instance: TestInstance) -> None:
    script = models_instance.work / "embed.py"
    script.write_text("import sys; print(sys.argv[1:])\n")
    task = {
        "task_id": "t-2",
        "task_class": "script",
        "task_type": "embed",
        "script": "embed.py",
        "script_args": {"model": "small"},
        "priority": 5,
        "gpu_requirement": "any",
        "status": "queued",
        "assigned_gpu": None,
    }
    (models_instance.work / "task.json").write_text(json.dumps(task))
    first = models_instance.ok("submit", "task.json").strip()
    assert models_instance.ok("submit", "task.json").strip() == first
    assert models_instance.wait(first).state == "completed"
    assert models_instance.ok("logs", first).strip() == "['--model', 'small']"
    address = models_instance.address()
    with httpx.Client(
        base_url=address.url,
        headers={"Authorization": f"Bearer {address.token}"},
        timeout=60,
    ) as client:
        shown = client.get(f"/api/v1/jobs/{first}/task").json()
    assert (shown["task_id"], shown["status"], shown["task_type"]) == (
        "t-2",
        "complete",
        "embed",
    )
    assert shown["assigned_gpu_uuid"] == f"GPU-simulated-{shown['assigned_gpu']}"
    there = {**task, "task_id": "t-3", "gpu_requirement": "7"}
    refused = models_instance.run(
        "submit", "-", input=json.dumps({**there, "script": str(script)})
    )
    assert (refused.returncode, "no GPU '7'" in refused.stderr) == (3, True)


def test_a_script_that_needs_several_gpus_or_a_certain_one_gets_them(
    models_instance: TestInstance,
) -> None:
    """One GPU is free and the other has an idle model: that is not enough for a job of
    two, nor for one that pins.
    """
    assert said(ask(models_instance, "a")) == "a: hello"
    both = models_instance.submit(["true"], resources={"gpus": 2})
    assert models_instance.wait(both).state == "completed"
    assert said(ask(models_instance, "a")) == "a: hello"
    (replica,) = models(models_instance)["a"]["replicas"]
    pinned = models_instance.submit(
        ["true"], resources={"gpus": {"count": 1, "uuid": [replica["gpu"]]}}
    )
    assert models_instance.wait(pinned).state == "completed"


def test_what_lives_on_a_brains_gpu_stays() -> None:
    with make_instance() as instance:
        instance.home.create()
        roles = (
            '[resource_manager.gpu_roles]\n0 = "brain_primary"\n1 ='
            ' "worker_or_script"\n'
        )
        instance.home.settings.write_text(roles + model("a"))
        instance.ok("up", "--simulate-gpus", "2x24")
        assert said(ask(instance, "a")) == "a: hello"
        (replica,) = models(instance)["a"]["replicas"]
        assert replica["gpu"] == "GPU-simulated-0"
        for _ in range(2):
            assert (
                instance.wait(instance.submit(["true"], resources={"gpus": 1})).state
                == "completed"
            )
        both = instance.submit(["true"], resources={"gpus": 2})
        assert models(instance)["a"]["replicas"][0]["job_id"] == replica["job_id"]
        assert instance.json("show", both)["state"] == "queued"
