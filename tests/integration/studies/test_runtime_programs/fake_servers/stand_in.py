"""A server that answers as vLLM's, SGLang's or TensorRT-LLM's does: a prompt of token
ids gets these ids, each plus one.

It takes no flag and no field of a request that the real one has not. It writes its
arguments into the file FAKE_SERVERS, a line for each node.
"""

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

FIELDS = {
    "model",
    "prompt",
    "max_tokens",
    "temperature",
    "stream",
    "stream_options",
    "ignore_eos",
    "logprobs",
    "top_p",
    "top_k",
    "seed",
}
VERSION = "9.9.fake"


def serve(
    arguments: Sequence[str],
    flags: Sequence[str],
    switches: Sequence[str],
    *,
    version_path: str,
    tells_ids: bool = False,
) -> None:
    """Serve until SIGTERM, or only wait for it on a node other than the first."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("positional", nargs="*")
    for flag in flags:
        parser.add_argument(flag)
    for switch in switches:
        parser.add_argument(switch, action="store_true")
    options = vars(parser.parse_args(arguments))
    with Path(os.environ["FAKE_SERVERS"]).open("a") as file:
        file.write(json.dumps([*map(str, arguments)]) + "\n")
    if options.get("node_rank") not in (None, "0"):
        signal.pause()
    Handler.version_path = version_path
    Handler.tells_ids = tells_ids
    ThreadingHTTPServer(
        (options["host"], int(options["port"])), Handler
    ).serve_forever()


class Handler(BaseHTTPRequestHandler):
    """OpenAI's completions, with what each server adds."""

    version_path = ""
    tells_ids = False

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        told = {"/health": {}, self.version_path: {"version": VERSION}}
        if self.path not in told:
            self.send_error(404)
            return
        self._send(200, json.dumps(told[self.path]).encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        known = FIELDS | ({"return_tokens_as_token_ids"} if self.tells_ids else set())
        if self.path != "/v1/completions" or body.keys() - known:
            self._send(400, json.dumps({"error": sorted(body.keys() - known)}).encode())
            return
        events = [*self._parts(body), {"choices": [], "usage": usage(body)}]
        lines = [f"data: {json.dumps(event)}\n\n" for event in events]
        self._send(200, ("".join(lines) + "data: [DONE]\n\n").encode())

    def _parts(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        ids = answer_of(body)
        parts: list[dict[str, Any]] = []
        for place, token in enumerate(ids):
            is_last = place == len(ids) - 1
            choice: dict[str, Any] = {
                "text": f" w{token}" if place else f"w{token}",
                "finish_reason": "length" if is_last else None,
            }
            if body.get("logprobs"):
                name = (
                    "token_id:{}" if body.get("return_tokens_as_token_ids") else "w{}"
                )
                own = name.format(token)
                choice["logprobs"] = {
                    "tokens": [own],
                    "token_logprobs": [-0.25],
                    "top_logprobs": [{own: -0.25, name.format(0): -1.75}],
                }
            parts.append({"choices": [choice]})
        return parts

    def _send(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def answer_of(body: dict[str, Any]) -> list[int]:
    """The ids of the prompt, each plus one, as many as are wanted."""
    return [token + 1 for token in body["prompt"]][: body["max_tokens"]]


def usage(body: dict[str, Any]) -> dict[str, int]:
    """What OpenAI's API tells at the end of a stream."""
    return {"completion_tokens": len(answer_of(body))}


if __name__ == "__main__":
    sys.exit("import it")
