"""What a person sees and presses, on a real pseudo-terminal: the live line, Ctrl-C and
its question, colours.
"""

import re
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager

import pytest

from tests.support.instance import REAL_GPUYARD, TestInstance
from tests.support.terminal import CTRL_C, Terminal, terminal

COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9[0-7])")
TRAIN = """
import pathlib, time
print("max_iters = 50")
for n in range(51):
    print(f"iter {n}: loss {5 - n / 10:.1f}, time 100.00ms :x: [red]plain[/red]", flush=True)
    while n == 20 and not pathlib.Path("go").exists():
        time.sleep(0.02)
"""


@pytest.fixture
def train(shared_instance: TestInstance) -> Iterator[None]:
    """A training in the work folder that stops at step 20 until there is a file
    `go`.
    """
    (shared_instance.work / "train.py").write_text(TRAIN)
    yield
    (shared_instance.work / "go").unlink(missing_ok=True)


def screen(
    instance: TestInstance, *words: str, **environment: str
) -> AbstractContextManager[Terminal]:
    """`gpuyard WORDS` on a terminal with colours."""
    values = instance.environment | {"TERM": "xterm-256color"} | environment
    return terminal(
        [*REAL_GPUYARD, *words],
        cwd=instance.work,
        env={k: v for k, v in values.items() if v},
    )


@pytest.mark.usefixtures("train")
def test_the_live_line_tells_state_step_loss_and_cost(
    shared_instance: TestInstance,
) -> None:
    with screen(shared_instance, "run", "train.py", NO_COLOR="") as shown:
        line = shown.expect(r"running · step 20/50 · loss 3 · .*\$\d")
        assert "ETA" in line
        assert "iter 20: loss 3.0, time 100.00ms :x: [red]plain[/red]" in shown.text
        (shared_instance.work / "go").touch()
        shown.expect(r"job_\w+ completed · step 50/50 · loss 0 · \d+s · \$\d")
        assert shown.leave() == 0
        assert COLOUR.search(shown.raw)


@pytest.mark.usefixtures("train")
def test_ctrl_c_asks_and_d_detaches(shared_instance: TestInstance) -> None:
    with screen(shared_instance, "run", "--name", "detached", "train.py") as shown:
        shown.expect("iter 20")
        shown.type(CTRL_C)
        shown.expect(r"Detach from \w+ or cancel it\? \[d/c\]")
        shown.type("d\n")
        shown.expect(r"detached: job_\w+ goes on; follow it with `gpuyard logs -f \w+`")
        assert shown.leave() == 0
        assert shown.text.count("cancel it?") == 1
        assert "Traceback" not in shown.text
    assert shared_instance.job("detached").state == "running"
    (shared_instance.work / "go").touch()
    assert shared_instance.wait("detached").state == "completed"


@pytest.mark.usefixtures("train")
def test_ctrl_c_asks_and_c_cancels(shared_instance: TestInstance) -> None:
    with screen(shared_instance, "run", "--name", "cancelled", "train.py") as shown:
        shown.expect("iter 20")
        shown.type(CTRL_C)
        shown.expect("cancel it")
        shown.type("c\n")
        shown.expect(r"job_\w+ cancelled")
        assert shown.leave() == 130
    assert shared_instance.job("cancelled").state == "cancelled"


@pytest.mark.usefixtures("train")
@pytest.mark.parametrize(
    "answer", [CTRL_C, "\n", "\x04"], ids=["ctrl-c", "enter", "end of file"]
)
def test_a_second_ctrl_c_or_no_answer_detaches(
    shared_instance: TestInstance, answer: str
) -> None:
    with screen(shared_instance, "run", "--name", "twice", "train.py") as shown:
        shown.expect("iter 20")
        shown.type(CTRL_C)
        shown.expect("cancel it")
        shown.press_until(answer, "detached: job_")
        assert shown.leave() == 0
        assert "Traceback" not in shown.text
    assert shared_instance.job("twice").state == "running"
    shared_instance.ok("cancel", "twice")


def test_without_a_terminal_an_interrupt_detaches_and_says_so(
    shared_instance: TestInstance,
) -> None:
    running = shared_instance.popen(
        "run", "--name", "piped", "--", "sh", "-c", "echo on; sleep 60"
    )
    assert running.stdout is not None
    assert running.stdout.readline() == "on\n"
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=30)
    assert running.returncode == 0
    assert re.fullmatch(
        r"detached: job_\w+ goes on; follow it with `gpuyard logs -f \w+`\n", errors
    )
    assert shared_instance.wait("piped", "running")
    shared_instance.ok("cancel", "piped")


@pytest.mark.usefixtures("train")
def test_a_viewer_only_leaves(shared_instance: TestInstance) -> None:
    job_id = shared_instance.submit(["python3", "train.py"])
    with screen(shared_instance, "logs", "-f", job_id) as shown:
        shown.expect("iter 20")
        shown.type(CTRL_C)
        assert shown.leave() == 130
        assert "cancel it" not in shown.text
    with screen(shared_instance, "attach", "-n", "2", job_id) as shown:
        shown.expect(r"(?s)iter 19.*iter 20")
        assert "iter 18" not in shown.text
        shown.type(CTRL_C)
        shown.expect(r"detached: job_\w+ goes on")
        assert shown.leave() == 0
    assert shared_instance.job(job_id).state == "running"
    shared_instance.ok("cancel", job_id)


def test_colours_are_for_terminals_that_want_them(
    shared_instance: TestInstance,
) -> None:
    shared_instance.wait(shared_instance.submit(["true"], name="colourful"))
    with screen(shared_instance, "jobs", NO_COLOR="") as shown:
        shown.expect("colourful")
        assert shown.leave() == 0
        assert COLOUR.search(shown.raw)
    with screen(shared_instance, "jobs", NO_COLOR="1") as shown:
        shown.expect("colourful")
        assert shown.leave() == 0
        assert not COLOUR.search(shown.raw)
    assert "\x1b" not in shared_instance.run("jobs", env={"NO_COLOR": ""}).stdout
