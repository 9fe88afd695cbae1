"""A small OpenAI-compatible model server: it repeats the last message, word by word.
Its faults are asked for by flags.

`--boot S`: healthy after S seconds; `--crash`: ends at once; `--deaf`: never healthy;
`--garbage`: answers no JSON;
`--awake`: it does not sleep when it is told to. `/sleep`, `/wake_up` and `/is_sleeping`
are as in vLLM. It says on which GPUs it is. A message `sleep N` takes N seconds to
answer; streamed, it says a word every 0.1 s. A message `fault WHAT N` is answered well
only after N faults: `garbage`, `break` (half an answer), or a status.
"""

import argparse
import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def make_handler(words: argparse.Namespace) -> type[BaseHTTPRequestHandler]:
    began = time.monotonic()
    asleep = threading.Event()
    faults: dict[str, int] = {}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if self.path == "/is_sleeping":
                self._send(200, json.dumps({"is_sleeping": asleep.is_set()}).encode())
                return
            well = (
                self.path == "/health"
                and not words.deaf
                and time.monotonic() - began >= words.boot
            )
            self._send(200 if well else 503, b"{}")

        def do_POST(self) -> None:
            if self.path in ("/sleep", "/wake_up"):
                (
                    asleep.set
                    if self.path == "/sleep" and not words.awake
                    else asleep.clear
                )()
                self._send(200, b"{}")
                return
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if asleep.is_set():
                self._send(500, b'{"error": {"message": "I am asleep"}}')
            elif words.garbage:
                self._send(200, b"<html>")
            elif body["model"] != words.name:
                self._send(
                    404,
                    json.dumps(
                        {"error": {"message": f"no model {body['model']}"}}
                    ).encode(),
                )
            elif self.path == "/v1/embeddings":
                self._send(
                    200,
                    json.dumps(
                        {"object": "list", "data": [{"embedding": [0.5], "index": 0}]}
                    ).encode(),
                )
            elif body.get("stream"):
                self._stream(body["messages"][-1]["content"].split())
            else:
                self._answer(body["messages"][-1]["content"])

        def _answer(self, text: str) -> None:
            if text.startswith("sleep "):
                time.sleep(float(text.split()[1]))
            if text.startswith("fault "):
                what, times = text.split()[1:]
                faults[text] = faults.get(text, 0) + 1
                if faults[text] <= int(times):
                    self._fail(what)
                    return
            message = {"role": "assistant", "content": f"{words.name}: {text}"}
            self._send(
                200,
                json.dumps(
                    {
                        "object": "chat.completion",
                        "choices": [{"index": 0, "message": message}],
                    }
                ).encode(),
            )

        def _fail(self, what: str) -> None:
            if what == "garbage":
                self._send(200, b"<html>")
            elif what == "break":
                self.send_response(200)
                self.send_header("Content-Length", "1000")
                self.end_headers()
                self.wfile.write(b'{"choices": [')
                self.close_connection = True
            else:
                self._send(int(what), b'{"error": {"message": "not now"}}')

        def _stream(self, said: list[str]) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            for word in said:
                chunk = {
                    "object": "chat.completion.chunk",
                    "choices": [{"index": 0, "delta": {"content": word}}],
                }
                self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
                self.wfile.flush()
                time.sleep(0.1)
            chunk = {
                "object": "chat.completion.chunk",
                "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}],
            }
            self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
            self.wfile.write(b"data: [DONE]\n\n")
            self.close_connection = True

        def _send(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--boot", type=float, default=0.0)
    for flag in ("crash", "deaf", "garbage", "awake"):
        parser.add_argument(f"--{flag}", action="store_true")
    words = parser.parse_args()
    print("on", os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
    if words.crash:
        sys.exit("out of memory, or some such")
    ThreadingHTTPServer(("127.0.0.1", words.port), make_handler(words)).serve_forever()


if __name__ == "__main__":
    main()
