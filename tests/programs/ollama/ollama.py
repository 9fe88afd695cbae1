"""`ollama serve`, as far as gpuyard speaks to it: OLLAMA_HOST says where; models are
loaded when they are asked for.

`POST /api/generate` without a prompt loads a model, with `keep_alive` 0 unloads it a
moment later; `GET /api/ps` lists what is loaded; `/v1/chat/completions` repeats the
last message.
"""

import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_loaded: set[str] = set()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/":
            self._send(200, b"Ollama is running")
        elif self.path == "/api/ps":
            self._tell({"models": [{"name": name, "model": name} for name in _loaded]})
        else:
            self._send(404, b"404 page not found")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name = body["model"] if ":" in body["model"] else f"{body['model']}:latest"
        if self.path == "/api/generate" and body.get("keep_alive") == 0:
            threading.Timer(0.3, _loaded.discard, (name,)).start()
            self._tell(
                {
                    "model": body["model"],
                    "response": "",
                    "done": True,
                    "done_reason": "unload",
                }
            )
            return
        _loaded.add(name)
        if self.path == "/api/generate":
            self._tell(
                {
                    "model": body["model"],
                    "response": "",
                    "done": True,
                    "done_reason": "load",
                }
            )
        elif self.path == "/v1/chat/completions":
            said = {
                "role": "assistant",
                "content": f"{body['model']}: {body['messages'][-1]['content']}",
            }
            self._tell(
                {
                    "object": "chat.completion",
                    "choices": [{"index": 0, "message": said}],
                }
            )
        else:
            self._send(404, b"404 page not found")

    def _tell(self, body: dict[str, Any]) -> None:
        self._send(200, json.dumps(body).encode())

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    host, port = os.environ["OLLAMA_HOST"].rsplit(":", 1)
    ThreadingHTTPServer((host, int(port)), Handler).serve_forever()
