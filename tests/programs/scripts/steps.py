"""A script that says what it does in `args["log"]`, waits for the file `args["gate"]`,
and does as an item's text says.

`fail` raises, `crash` ends the process, `crash once` does so the first time; any other
text is the output.
"""

import os
import time
from pathlib import Path


def load(args):
    """Fail where `args["broken"]` is set."""
    log = Path(args["log"])

    def say(what, name):
        with log.open("a") as file:
            file.write(
                f"{what} {name} {os.getpid()} {os.environ['CUDA_VISIBLE_DEVICES'] or 'none'}\n"
            )

    if args.get("broken"):
        raise RuntimeError("its weights are missing")
    say("load", "-")

    def run(args, folder, progress):
        path = Path(args["path"])
        say("start", path.stem)
        print("what a script prints is its own")
        progress(0.5)
        while "gate" in args and not Path(args["gate"]).exists():
            time.sleep(0.01)
        text = path.read_text().strip()
        if text == "fail":
            raise ValueError("it says so")
        if text == "crash" or (
            text == "crash once" and log.read_text().count(f"start {path.stem} ") == 1
        ):
            os.kill(os.getpid(), 9)
        folder.mkdir(parents=True)
        (folder / "words.txt").write_text(text)
        say("end", path.stem)
        return {"text": text}

    return run
