"""A job of kind `llm`: `python -m gpuyard.node.ask --home HOME MODEL` asks what stands on standard input.

The answer is its output. It asks the yard's own servers, whichever answers; one that has no model free says when to
ask again, and until the job's time is up it does.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, Request, build_opener

from gpuyard.config.paths import Home

# No server answers while one takes over; this is how often it is looked for.
_AGAIN_S = 1.0
# A request waits in the server's line; this only ends a connection of which nothing will come any more.
_LONGEST_S = 24 * 3600.0
# The servers are on our own hosts: no proxy may see their token.
_open = build_opener(ProxyHandler({})).open


def servers(home: Home) -> Iterator[tuple[str, str]]:
    """Address and token of every server that may answer."""
    for path in (home.server, home.peers):
        try:
            body = json.loads(path.read_text())
            token = str(body.get("token") or home.token.read_text().strip())
            for url in body.get("urls") or [body["url"]]:
                yield str(url), token
        except (OSError, ValueError, KeyError, TypeError):
            continue


def ask(home: Home, model: str, prompt: str) -> int:
    """Print the answer; 0, or 1 with the reason on stderr when there will be none."""
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": prompt}]}).encode()
    while True:
        pause = _AGAIN_S
        for url, token in servers(home):
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            try:
                with _open(Request(f"{url}/v1/chat/completions", body, headers), timeout=_LONGEST_S) as answer:
                    sys.stdout.write(json.load(answer)["choices"][0]["message"]["content"] + "\n")
                return 0
            except HTTPError as error:
                said = error.read().decode(errors="replace")
                if error.code != 503:
                    sys.stderr.write(f"{model} does not answer: {said}\n")
                    return 1
                pause = float(error.headers.get("Retry-After") or _AGAIN_S)
            except (URLError, OSError):
                continue  # it is gone, or starts
        time.sleep(pause)


def main() -> int:
    """Ask."""
    parser = argparse.ArgumentParser(prog="python -m gpuyard.node.ask")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("model")
    words = parser.parse_args()
    return ask(Home(words.home), words.model, sys.stdin.read())


if __name__ == "__main__":
    sys.exit(main())
