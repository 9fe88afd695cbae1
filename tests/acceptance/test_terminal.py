"""What a person sees and presses, on a real pseudo-terminal: the live line, Ctrl-C and its question, colours."""

import re
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager

import pytest

from tests.support.terminal import CTRL_C, Terminal, terminal
from tests.support.yard import GPUYARD, TestYard

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
def train(shared_yard: TestYard) -> Iterator[None]:
    """A training in the work folder that stops at step 20 until there is a file `go`."""
    (shared_yard.work / "train.py").write_text(TRAIN)
    yield
    (shared_yard.work / "go").unlink(missing_ok=True)


def screen(yard: TestYard, *words: str, **environment: str) -> AbstractContextManager[Terminal]:
    """`gpuyard WORDS` on a terminal with colours."""
    values = yard.environment | {"TERM": "xterm-256color"} | environment
    return terminal([*GPUYARD, *words], cwd=yard.work, env={k: v for k, v in values.items() if v})


@pytest.mark.usefixtures("train")
def test_the_live_line_tells_state_step_loss_and_cost(shared_yard: TestYard) -> None:
    with screen(shared_yard, "run", "train.py", NO_COLOR="") as shown:
        line = shown.expect(r"running · step 20/50 · loss 3 · .*\$\d")
        assert "ETA" in line
        assert "iter 20: loss 3.0, time 100.00ms :x: [red]plain[/red]" in shown.text
        (shared_yard.work / "go").touch()
        shown.expect(r"job_\w+ completed · step 50/50 · loss 0 · \d+s · \$\d")
        assert shown.leave() == 0
        assert COLOUR.search(shown.raw)


@pytest.mark.usefixtures("train")
def test_ctrl_c_asks_and_d_detaches(shared_yard: TestYard) -> None:
    with screen(shared_yard, "run", "--name", "detached", "train.py") as shown:
        shown.expect("iter 20")
        shown.type(CTRL_C)
        shown.expect(r"Detach from \w+ or cancel it\? \[d/c\]")
        shown.type("d\n")
        shown.expect(r"detached: job_\w+ goes on; follow it with `gpuyard logs -f \w+`")
        assert shown.leave() == 0
        assert shown.text.count("cancel it?") == 1
        assert "Traceback" not in shown.text
    assert shared_yard.job("detached").state == "running"
    (shared_yard.work / "go").touch()
    assert shared_yard.wait("detached").state == "completed"


@pytest.mark.usefixtures("train")
def test_ctrl_c_asks_and_c_cancels(shared_yard: TestYard) -> None:
    with screen(shared_yard, "run", "--name", "cancelled", "train.py") as shown:
        shown.expect("iter 20")
        shown.type(CTRL_C)
        shown.expect("cancel it")
        shown.type("c\n")
        shown.expect(r"job_\w+ cancelled")
        assert shown.leave() == 130
    assert shared_yard.job("cancelled").state == "cancelled"


@pytest.mark.usefixtures("train")
@pytest.mark.parametrize("answer", [CTRL_C, "\n", "\x04"], ids=["ctrl-c", "enter", "end of file"])
def test_a_second_ctrl_c_or_no_answer_detaches(shared_yard: TestYard, answer: str) -> None:
    with screen(shared_yard, "run", "--name", "twice", "train.py") as shown:
        shown.expect("iter 20")
        shown.type(CTRL_C)
        shown.expect("cancel it")
        shown.press_until(answer, "detached: job_")
        assert shown.leave() == 0
        assert "Traceback" not in shown.text
    assert shared_yard.job("twice").state == "running"
    shared_yard.ok("cancel", "twice")


def test_without_a_terminal_an_interrupt_detaches_and_says_so(shared_yard: TestYard) -> None:
    running = shared_yard.popen("run", "--name", "piped", "--", "sh", "-c", "echo on; sleep 60")
    assert running.stdout is not None
    assert running.stdout.readline() == "on\n"
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=30)
    assert running.returncode == 0
    assert re.fullmatch(r"detached: job_\w+ goes on; follow it with `gpuyard logs -f \w+`\n", errors)
    assert shared_yard.job("piped").state == "running"
    shared_yard.ok("cancel", "piped")


@pytest.mark.usefixtures("train")
def test_a_viewer_only_leaves(shared_yard: TestYard) -> None:
    job_id = shared_yard.submit(["python3", "train.py"])
    with screen(shared_yard, "logs", "-f", job_id) as shown:
        shown.expect("iter 20")
        shown.type(CTRL_C)
        assert shown.leave() == 130
        assert "cancel it" not in shown.text
    assert shared_yard.job(job_id).state == "running"
    shared_yard.ok("cancel", job_id)


def test_colours_are_for_terminals_that_want_them(shared_yard: TestYard) -> None:
    shared_yard.wait(shared_yard.submit(["true"], name="colourful"))
    with screen(shared_yard, "jobs", NO_COLOR="") as shown:
        shown.expect("colourful")
        assert shown.leave() == 0
        assert COLOUR.search(shown.raw)
    with screen(shared_yard, "jobs", NO_COLOR="1") as shown:
        shown.expect("colourful")
        assert shown.leave() == 0
        assert not COLOUR.search(shown.raw)
    assert "\x1b" not in shared_yard.run("jobs", env={"NO_COLOR": ""}).stdout
