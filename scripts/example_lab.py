"""A small lab for pictures of the page: a server whose GPUs a stand-in for their driver
shows, jobs that really run, a cluster of Kubernetes that is only simulated, and people
with budgets.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx

from tests.support.fake_cloud import FakeCloud, fake_cloud_environment
from tests.support.kubernetes import Cluster, Node
from tests.support.nvml import FakeGpus
from tests.support.ports import free_port

GPUS = [f"GPU-5f0c2a1e-0000-0000-0000-00000000000{number}" for number in range(4)]
TRAINING = """
import json, math, random, time
for step in range(400):
    loss = 2.5 * math.exp(-step / 90) + 0.4 + random.random() / 12
    values = {"step": step, "total": 1000, "loss": loss, "lr": 1e-3 * (1 - step / 1000)}
    print("GPUYARD_METRIC " + json.dumps(values), flush=True)
    if step == 320:
        print("ready", flush=True)
    time.sleep(0.05 if step < 320 else 0.5)
time.sleep(600)
"""
# How well it learns depends on its settings, as with real programs.
SEARCHED = """
import json, math, random, sys
lr, depth, optimizer = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
worse = {"adamw": 0, "lion": 0.05, "sgd": 0.3}[optimizer]
for step in range(5):
    fit = abs(math.log10(lr) + 2.4) / 3 + abs(depth - 8) / 30 + worse
    loss = fit + 1 / (step + 1) + random.random() / 20
    print("GPUYARD_METRIC " + json.dumps({"step": step, "val_loss": loss}), flush=True)
"""
# A script for batches: it refuses what is no text.
COUNT_WORDS = """
from pathlib import Path

def load(args):
    def run(args, folder, progress):
        text = Path(args["path"]).read_text()
        if not text:
            raise ValueError("the file is empty")
        return {"words": len(text.split())}
    return run
"""
# A server of a language model, as far as the page needs one.
MODEL = """
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Answers(BaseHTTPRequestHandler):
    def do_GET(self):
        self.say({"status": "ok"})

    def do_POST(self):
        message = {"role": "assistant", "content": "Hello."}
        self.say({"choices": [{"index": 0, "message": message}]})

    def say(self, body):
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

HTTPServer(("127.0.0.1", int(sys.argv[1])), Answers).serve_forever()
"""
FLOW = """
[steps.clean]
command = ["sh", "-c", "tr a-z A-Z < raw.txt > clean.txt"]
inputs = ["raw.txt"]
outputs = ["clean.txt"]
resources = { cpus = 0.1 }

[steps.count]
command = ["sh", "-c", "wc -w < clean.txt > count.txt"]
inputs = ["clean.txt"]
outputs = ["count.txt"]
resources = { cpus = 0.1 }

[steps.words]
command = ["sh", "-c", "tr ' ' '\\n' < clean.txt | sort -u > words.txt"]
inputs = ["clean.txt"]
outputs = ["words.txt"]
resources = { cpus = 0.1 }

[steps.report]
command = ["sh", "-c", "cat count.txt words.txt > report.txt"]
needs = ["count", "words"]
outputs = ["report.txt"]
resources = { cpus = 0.1 }
"""


class Lab:
    """The lab whose server has its home in `home`."""

    def __init__(self, home: Path) -> None:
        self.home = home
        # A cloud where a pool rents a machine, which never boots.
        cloud = home / "cloud"
        cloud.mkdir()
        FakeCloud(cloud).add_fault("never_boots", times=100)
        self.gpus = FakeGpus(home / "gpus.txt")
        for uuid in GPUS:
            self.gpus.add(uuid, "NVIDIA A100-SXM4-80GB", memory_mb=81_920)
        self.environment = fake_cloud_environment(cloud, free_port(2))
        self.environment |= self.gpus.env()
        self.job = ""

    def gpuyard(self, *words: str) -> str:
        """What a command of ours prints."""
        program = Path(sys.executable).with_name("gpuyard")
        environment = {"GPUYARD_HOME": str(self.home), "PATH": "/usr/bin:/bin"}
        environment |= self.environment
        done = subprocess.run(
            [program, *words],
            cwd=self.home,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        if done.returncode != 0:
            raise SystemExit(f"screenshots: gpuyard {' '.join(words)} failed")
        return done.stdout

    def configure(self, kubeconfig: Path) -> None:
        """Write the settings, and the programs that they name."""
        for name, text in (("model", MODEL), ("count_words", COUNT_WORDS)):
            (self.home / f"{name}.py").write_text(text)
        (self.home / "gpuyard.toml").write_text(
            f"""
            [scheduler]
            policy = "fair"

            [scripts.count_words]
            file = "{self.home}/count_words.py"
            boot_s = 0.1

            [models."qwen2.5:7b"]
            command = ["{sys.executable}", "{self.home}/model.py", "{{port}}"]
            memory_gb = 18
            boot_s = 1

            [models."llama3.1:70b"]
            command = ["{sys.executable}", "{self.home}/model.py", "{{port}}"]
            memory_gb = 70
            boot_s = 5

            [providers.kubernetes]
            kubeconfig = "{kubeconfig}"
            namespace = "default"
            prices = {{ "NVIDIA-A100-SXM4-40GB" = 3, "NVIDIA-L4" = 0.8 }}

            [pools.warm]
            provider = "fakecloud"
            type = "gpu.one"
            min = 1
            max = 4
            """
        )

    def fill(self) -> None:
        """Let everything happen that a screen shows."""
        self.run_batch()
        self.run_flow()
        self.search()
        self.add_data()
        self.add_people()
        self.run_jobs()
        self.gpuyard("llm", "qwen2.5:7b", "hello")
        self.gpus.set(GPUS[3], memory_used_mb=17_408, temperature=44, power_w=92)
        self.gpuyard("nodes", "invite", "--name", "lab2")
        self.gpuyard(
            "run", "--schedule", "0 3 * * *", "--name", "nightly", "--", "true"
        )
        self.leave_verdicts()
        self.leave_study()
        quarantine = ["trust", "quarantine", "kubernetes/NVIDIA-L4"]
        self.gpuyard(*quarantine, "--reason", "answers differ from another machine's")

    def add_people(self) -> None:
        """Users, a project, budgets and reservations."""
        self.gpuyard("project", "add", "vision")
        for name in ("ana", "ben"):
            self.gpuyard("user", "add", name)
        for name, amount in (("all", "400"), ("vision", "150")):
            of = ["--project", name] if name == "vision" else []
            self.gpuyard("budgets", "set", name, "--amount", amount, *of)
        now = datetime.now(UTC)
        for holder, after, days in (("--project=vision", 1, 4), ("--user=ana", 2, 1)):
            begin = now + timedelta(days=after, minutes=1)
            end = begin + timedelta(days=days)
            period = ["--from", f"{begin:%Y-%m-%d %H:%M}"]
            period += ["--to", f"{end:%Y-%m-%d %H:%M}"]
            self.gpuyard("reservations", "add", holder, "--gpus", "1", *period)

    def run_jobs(self) -> None:
        """Fill the queue; `job` is the one to look at, once its curves are there."""
        (self.home / "train.py").write_text(TRAINING)
        self.submit("resnet-typo", 1, "false")
        self.submit("evaluate", 1, "true")
        training = [
            self.submit(name, 1, "python3", "train.py")
            for name in ("gpt-small", "vit-base", "bert-qa")
        ]
        self.submit("pretrain", 4, "true")
        self.job = training[0]
        self.use_gpus()
        while "ready" not in self.gpuyard("logs", self.job):
            self.use_gpus()
            time.sleep(1)

    def use_gpus(self) -> None:
        """Let the driver show that three GPUs train."""
        for number, uuid in enumerate(GPUS[:3]):
            self.gpus.set(
                uuid,
                memory_used_mb=61_440 - 9_216 * number,
                utilization=random.randint(88, 99),
                temperature=random.randint(61, 64) + number,
                power_w=random.randint(290, 340),
            )

    def submit(self, name: str, gpus: int, *command: str) -> str:
        """Submit a job; its id."""
        # They end before the reservations begin, or would wait for their end.
        wanted = ["--name", name, "--gpus", str(gpus), "--cpus", "0.1"]
        wanted += ["--timeout", "2h"]
        words = ["run", "--detach", "--live", *wanted, "--", *command]
        return self.gpuyard(*words).strip()

    def search(self) -> None:
        """Search for settings."""
        (self.home / "search.py").write_text(SEARCHED)
        ranges = ("lr=log:1e-4..1e-1", "depth=4,6,8,12", "optimizer=adamw,lion,sgd")
        parameters = [word for one in ranges for word in ("--param", one)]
        wanted = ["--metric", "val_loss", "--trials", "24", "--parallel", "4"]
        program = ["python3", "search.py", "{lr}", "{depth}", "{optimizer}"]
        of_each = ["--name", "search", "--cpus", "0.1"]
        self.gpuyard("sweep", *parameters, *wanted, *of_each, "--", *program)

    def run_flow(self) -> None:
        """Run steps that need one another."""
        folder = self.home / "report"
        folder.mkdir()
        (folder / "raw.txt").write_text("to be or not to be\n")
        (folder / "flow.toml").write_text(FLOW)
        self.gpuyard("flow", "run", "report/flow.toml")

    def run_batch(self) -> None:
        """Run a script over files, one of which is no good."""
        talks = self.home / "talks"
        talks.mkdir()
        for number in range(1, 13):
            text = "" if number == 7 else "to be or not to be " * number
            (talks / f"talk-{number:02}.txt").write_text(text)
        self.gpuyard("batch", "submit", "count_words", "talks", "--detach")

    def add_data(self) -> None:
        """A dataset of two versions, and a workspace."""
        corpus = self.home / "corpus"
        corpus.mkdir()
        (corpus / "train.bin").write_bytes(os.urandom(3 << 20))
        self.gpuyard("datasets", "add", "corpus", "corpus")
        (corpus / "test.bin").write_bytes(os.urandom(1 << 20))
        self.gpuyard("datasets", "add", "corpus", "corpus")
        on_workspace = ["run", "--workspace", "notes", "--cpus", "0.1"]
        self.gpuyard(*on_workspace, "--", "sh", "-c", "echo seen > list.txt")

    def put(self, path: str, body: dict[str, Any]) -> None:
        """Leave a record on the server."""
        url = json.loads((self.home / "server.json").read_text())["url"]
        token = (self.home / "token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        answer = httpx.put(f"{url}/api/v1/{path}", json=body, headers=headers)
        answer.raise_for_status()

    def leave_verdicts(self) -> None:
        """What a verification of three executors would leave. Nothing is verified."""
        trusts = {"rented-1": (0.6, 0.8, 0.9), "rented-2": (0.6, 0.5, 0.2)}
        for executor, after in trusts.items():
            for number, trust in enumerate(after):
                has_failed = executor == "rented-2" and number > 0
                reason = "answer 7 of 20 differs at character 112" if has_failed else ""
                body = {
                    "executor": executor,
                    "gpu_class": "a100-80gb",
                    "place": f"node:{executor}",
                    "outcome": "failed" if has_failed else "passed",
                    "reason": reason,
                    "at": time.time() - 3600 * (3 - number),
                    "solve_s": 41.2 + number,
                    "trust": trust,
                    "lines": [
                        {"name": "answers", "ok": not has_failed, "reason": reason},
                        {"name": "time", "ok": True, "reason": ""},
                    ],
                }
                self.put(f"verifications/chk_{time.time_ns():x}", body)

    def leave_study(self) -> None:
        """What a study of four layouts would leave. Nothing is measured."""
        layouts = [("TP4", 4, 1, 1510.0, 6.1), ("TP2 PP2", 2, 2, 1320.0, 8.4)]
        layouts += [("PP4", 1, 4, 1180.0, 11.9), ("TP2 DP2", 2, 1, 1720.0, 7.2)]
        ranked = sorted(layouts, key=lambda one: one[4])
        strategies = [
            {
                "strategy_id": name.lower().replace(" ", "_"),
                "strategy": name,
                "status": "completed",
                "rank": ranked.index(layout) + 1,
                "figure": latency_s,
                "gpus": 4,
                "tp_size": tensor,
                "pp_size": pipeline,
                "prompts": 40,
                "expected": 40,
                "agreement": 1.0,
                "tokens_per_s": tokens_per_s,
                "latency_ms_p50": 700 * latency_s,
                "latency_ms_p90": 1000 * latency_s,
                "gpu_hours": 0.4,
                "cost": 1.2,
            }
            for layout in layouts
            for name, tensor, pipeline, tokens_per_s, latency_s in [layout]
        ]
        body = {
            "study": "llama",
            "model": "Llama-3.1-70B-Instruct",
            "objective": "fastest",
            "best": "tp4",
            "reason": "TP4 has the lowest latency of those whose answers are right",
            "at": time.time() - 7200,
            "strategies": strategies,
        }
        self.put("studies/run_20261129T080000", body)


@contextmanager
def example_lab() -> Iterator[Lab]:
    """The lab, where everything that the screens show has happened."""
    nodes = [
        Node("a100-1", gpus=4),
        Node("l4-1", gpus=2, gpu_product="NVIDIA-L4", gpu_memory_mib=23034),
    ]
    with (
        tempfile.TemporaryDirectory(prefix="gy-") as folder,
        Cluster(nodes) as cluster,
    ):
        home = Path(folder)
        lab = Lab(home)
        lab.configure(cluster.kubeconfig(home / "kubeconfig", ""))
        lab.gpuyard("up")
        try:
            lab.fill()
            yield lab
        finally:
            lab.gpuyard("down", "--running", "cancel")
