"""A job of kind `llm`: `python -m gpuyard.node.ask --home HOME MODEL` sends the prompt
on standard input to a model and prints the answer.

While no model is free, the server says when to ask again. This goes on until the job's
time is up.
"""

import argparse
import sys
from pathlib import Path

from gpuyard.config.paths import Home
from gpuyard.node.calling import CallRefusedError, call


def ask(home: Home, model: str, prompt: str) -> int:
    """Print the answer; returns 0, or 1 after it wrote the reason to stderr."""
    body = {"model": model, "messages": [{"role": "user", "content": prompt}]}
    try:
        answer = call(home, "/v1/chat/completions", body)
    except CallRefusedError as refused:
        sys.stderr.write(f"{model} does not answer: {refused}\n")
        return 1
    sys.stdout.write(answer["choices"][0]["message"]["content"] + "\n")
    return 0


def main() -> int:
    """Ask the model on the command line."""
    parser = argparse.ArgumentParser(prog="python -m gpuyard.node.ask")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("model")
    options = parser.parse_args()
    return ask(Home(options.home), options.model, sys.stdin.read())


if __name__ == "__main__":
    sys.exit(main())
