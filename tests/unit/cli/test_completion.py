"""What the shell may complete: commands, options, and what they take, from a server in
this process.
"""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import typer
from typer.testing import CliRunner

from gpuyard.cli import suggest
from gpuyard.cli.completion import EditedLine, answer, suggestions
from gpuyard.cli.main import app
from gpuyard.domain.states import JobState

BREAKS = " \t\n\"'@><=;|&(:"
ITEMS: dict[str, list[dict[str, Any]]] = {
    "jobs": [
        {
            "id": f"job_{number:032x}",
            "name": name,
            "state": state,
            "project": project,
            "user": user,
            "labels": labels,
        }
        for number, (name, state, project, user, labels) in enumerate(
            [
                ("train", "running", "vision", "ann", {"sweep": "7", "team": "a b"}),
                ("my job", "failed", None, "bob", {"sweep": "8"}),
                ("train", "queued", None, None, {}),
            ]
        )
    ],
    "gpus": [{"index": 0, "uuid": "GPU-1111", "name": "NVIDIA A40"}],
    "nodes": [{"name": "tower", "state": "up"}],
    "providers": [{"name": "local"}, {"name": "slurm"}],
    "tiers": [{"id": "GPU_SMALL"}],
    "models": [{"name": "qwen2.5:14b"}],
    "secrets": [{"name": "HF_TOKEN"}],
    "workspaces": [{"name": "corpus"}],
    "batches": [{"batch_id": "whisper-1"}],
}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        states = parse_qs(asked.query).get("state")
        found = ITEMS[asked.path.rpartition("/")[2]]
        items = [item for item in found if not states or item["state"] in states]
        body = json.dumps({"items": items, "next": None}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def asked(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUYARD_URL", url)
    # A busy machine may take longer than a person would wait.
    monkeypatch.setattr(suggest, "WAIT_S", 30.0)


def values(*words: str) -> list[str]:
    return [value for value, _ in suggestions(["gpuyard", *words])]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["sho"], ["show"]),
        (["models", "pi"], ["pin"]),
        (["jobs", "--sta"], ["--state"]),
        (["jobs", "--state", "q"], ["queued"]),
        (["jobs", "--label", ""], ["sweep=", "team="]),
        (["jobs", "--label", "team="], ["team=a b"]),
        (["jobs", "--project", ""], ["vision"]),
        (["jobs", "--user", ""], ["ann", "bob"]),
        (["show", "t"], ["train"]),
        (["show", "0000000"], ["00000000", "00000001", "00000002"]),
        (["cancel", ""], ["train", "00000000", "00000002"]),
        (["cancel", "train", "00000002", "m"], []),
        (["resume", ""], ["my job", "00000001"]),
        (["run", "--after", "my"], ["my job"]),
        (["run", "--gpus", "h2"], ["h200:"]),
        (["run", "--gpus", "h200:"], ["h200:1", "h200:2", "h200:4", "h200:8"]),
        (
            ["run", "--gpu-class", "a10"],
            ["a100", "a10", "a10g", "a100-40gb", "a100-80gb"],
        ),
        (["run", "--gpu-memory", "14"], ["141GB"]),
        (["run", "--tier", ""], ["GPU_SMALL"]),
        (["run", "--provider", "s"], ["slurm"]),
        (["run", "--workspace", ""], ["corpus"]),
        (["run", "--secret", ""], ["HF_TOKEN"]),
        (["run", "--checkpoint-signal", "USR"], ["USR1", "USR2"]),
        (["gpus", "--drain", ""], ["0", "GPU-1111"]),
        (["trust", "forget", "node:"], ["node:tower"]),
        (["llm", "q"], ["qwen2.5:14b"]),
        (["batch", "show", ""], ["whisper-1"]),
        (["new", "nano"], ["nanogpt"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
    ],
    ids=lambda part: " ".join(part) if part and isinstance(part, list) else None,
)
def test_what_is_offered(words: list[str], found: list[str]) -> None:
    assert values(*words) == found


def test_every_state_is_offered() -> None:
    assert values("jobs", "--state", "") == [state.value for state in JobState]


def test_without_a_server_nothing_is_said_and_none_is_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("GPUYARD_URL")
    monkeypatch.setenv("GPUYARD_HOME", str(tmp_path / "home"))
    answer(["fish", "gpuyard", "show", ""])
    assert capsys.readouterr() == ("", "")
    assert not (tmp_path / "home").exists()


def test_a_server_that_does_not_answer_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    never = threading.Event()
    monkeypatch.setattr(suggest, "WAIT_S", 0.01)
    monkeypatch.setattr(suggest, "_ask", lambda *_: never.wait())
    assert suggest.jobs("") == []
    never.set()


@pytest.mark.parametrize(
    ("typed", "words", "value", "inserted"),
    [
        ("gpuyard show ", ["gpuyard", "show", ""], "my job", r"my\ job"),
        ("gpuyard show my", ["gpuyard", "show", "my"], "my job", r"my\ job"),
        (r"gpuyard show my\ j", ["gpuyard", "show", "my j"], "my job", r"my\ job"),
        ('gpuyard show "my j', ["gpuyard", "show", "my j"], 'my "job"', r"my \"job\""),
        ("gpuyard show 'my j", ["gpuyard", "show", "my j"], "my job's", r"my job'\''s"),
        ("gpuyard llm q:", ["gpuyard", "llm", "q:"], "q:14 b", r"14\ b"),
        ("x --label a=b", ["x", "--label", "a=b"], "a=b$c", r"b\$c"),
        ("x 'a b' é", ["x", "a b", "é"], "é~*", r"é\~\*"),
    ],
)
def test_bash_gets_what_it_may_insert(
    typed: str, words: list[str], value: str, inserted: str
) -> None:
    line = EditedLine.read(typed)
    assert line.words == words
    assert line.insertion(value, BREAKS) == inserted


def test_zsh_and_fish_get_a_word_about_each(capsys: pytest.CaptureFixture[str]) -> None:
    answer(["zsh", "gpuyard", "llm", "q"])
    answer(["zsh", "gpuyard", "resume", ""])
    answer(["fish", "gpuyard", "resume", ""])
    assert capsys.readouterr().out.splitlines() == [
        r"qwen2.5\:14b",
        "my job:failed",
        "00000001:my job, failed",
        "my job\tfailed",
        "00000001\tmy job, failed",
    ]


def test_it_is_installed_where_the_shell_looks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".bashrc").write_text("alias ll='ls -l'")
    for _ in range(2):
        done = CliRunner().invoke(app, ["completion", "bash", "--install"])
        assert done.exit_code == 0, done.output
    script = (tmp_path / ".bash_completions/gpuyard.sh").read_text()
    assert script == CliRunner().invoke(app, ["completion", "bash"]).output
    lines = (tmp_path / ".bashrc").read_text().splitlines()
    assert lines == ["alias ll='ls -l'", "source ~/.bash_completions/gpuyard.sh"]


def test_h_is_help_everywhere() -> None:
    root = typer.main.get_command(app)
    context = root.make_context("gpuyard", [], resilient_parsing=True)
    names = root.list_commands(context)  # pyright: ignore[reportAttributeAccessIssue]
    for name in names:
        command = root.get_command(context, name)  # pyright: ignore[reportAttributeAccessIssue]
        own = command.make_context(name, [], context, resilient_parsing=True)
        assert "-h" in command.get_help_option_names(own), name
    done = CliRunner().invoke(app, [names[0], "-h"])
    assert (done.exit_code, "Usage: " in done.output) == (0, True)
