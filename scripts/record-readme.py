"""Records the picture of the README: `docs/assets/terminal.svg`.

It runs real commands against a new instance in a temporary folder, with two simulated
GPUs, and draws what they print. Run it again when the output of a command changes:
`.venv/bin/python scripts/record-readme.py`.
"""

import hashlib
import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

PICTURE = Path(__file__).parents[1] / "docs/assets/terminal.svg"
COLUMNS = 92
TRAIN = """\
import time
for step in range(20, 101, 20):
    time.sleep(0.3)
    print(f"step {step}/100 loss={80 / step:.3f}")
"""
COMMANDS = [
    "gpuyard run --name train --gpus 1 --gpu-memory 16GB train.py",
    "gpuyard run -d --name both --gpus 2 -- sleep 600",
    "gpuyard run -d --name next --gpus 1 train.py",
    "gpuyard jobs",
    "gpuyard why next",
]


def main() -> None:
    """Run the commands and write the picture."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        (work / "train.py").write_text(TRAIN)
        run("gpuyard up --simulate-gpus 2x24", work)
        try:
            session = [(command, run(command, work)) for command in COMMANDS]
        finally:
            run("gpuyard down --running cancel", work)
    PICTURE.write_text(draw(steady(session)))
    print(f"wrote {PICTURE}")


def run(command: str, work: Path) -> str:
    """What a command prints, in the temporary instance."""
    programs = Path(sys.executable).parent
    environment = os.environ | {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "GPUYARD_HOME": str(work / "home"),
        "COLUMNS": str(COLUMNS),
    }
    done = subprocess.run(
        command,
        shell=True,
        cwd=work,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    return done.stdout


def draw(session: list[tuple[str, str]]) -> str:
    """The session as an SVG that loads nothing from the network."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    # The colours of the README: prompts stand out, what is printed is plain.
    for command, output in session:
        console.print(Text("$ ", "bold green") + Text(command, "bold"), soft_wrap=True)
        console.print(Text(output.rstrip() + "\n"))
    picture = console.export_svg(title="gpuyard", unique_id="gpuyard")
    without_fonts = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)
    plain_font = without_fonts.replace("Fira Code", "DejaVu Sans Mono, Menlo")
    return "\n".join(line.rstrip() for line in plain_font.splitlines()) + "\n"


def steady(session: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Replace what differs from run to run: ids of jobs, the host's name, fractions."""
    jobs = dict.fromkeys(re.findall(r"job_[0-9a-f]{32}", str(session)))
    host = os.uname().nodename
    shown: list[tuple[str, str]] = []
    for command, output in session:
        for number, job in enumerate(jobs):
            name = "job_" + hashlib.md5(bytes([number])).hexdigest()
            output = output.replace(job, name).replace(job[-8:], name[-8:])
        output = re.sub(r"(  +)(\$0\.00\d\d)\d\d", r"\1  \2", output)
        output = re.sub(r"(\$0\.00\d\d)\d\d", r"\1", output)
        shown.append((command, output.replace(host, "box")))
    return shown


if __name__ == "__main__":
    main()
