"""A model server that answers in OpenAI's whole form: `python server.py PORT`.

It says the last message again; with tools it calls the first one. A message `refuse` is
refused.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

USAGE = {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
REFUSAL = {
    "message": "this model's maximum context length is 8 tokens",
    "type": "invalid_request_error",
    "param": "messages",
    "code": "context_length_exceeded",
}


def about(body: dict[str, Any], kind: str, choice: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": "one",
        "object": kind,
        "created": 1,
        "model": body["model"],
        "choices": [{"index": 0, "logprobs": None, **choice}],
    }


def call_of(tool: dict[str, Any]) -> dict[str, Any]:
    """A call of the tool, whose arguments name its parameters."""
    function = tool["function"]
    names = sorted(function["parameters"]["properties"])
    arguments = json.dumps(dict.fromkeys(names, 1))
    made = {"name": function["name"], "arguments": arguments}
    return {"id": "call", "type": "function", "function": made}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send(200, {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/v1/embeddings":
            one = {"object": "embedding", "index": 0, "embedding": [0.5, 0.25]}
            self.send(200, {"object": "list", "data": [one], "usage": USAGE, **body})
        elif self.path == "/v1/completions":
            prompt = body["prompt"]
            text = prompt if isinstance(prompt, str) else prompt[0]
            choice = {"text": f"again: {text}", "finish_reason": "stop"}
            self.send(200, {**about(body, "text_completion", choice), "usage": USAGE})
        elif body["messages"][-1]["content"] == "refuse":
            self.send(400, {"error": REFUSAL})
        elif body.get("stream"):
            self.stream(body)
        else:
            self.send(200, {**self.chat(body), "usage": USAGE})

    def chat(self, body: dict[str, Any]) -> dict[str, Any]:
        text = f"again: {body['messages'][-1]['content']}"
        message: dict[str, Any] = {"role": "assistant", "content": text}
        reason = "stop"
        if body.get("tools"):
            message["tool_calls"] = [call_of(body["tools"][0])]
            reason = "tool_calls"
        return about(
            body, "chat.completion", {"message": message, "finish_reason": reason}
        )

    def stream(self, body: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        words = body["messages"][-1]["content"].split()
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        deltas += [{"content": f"{word} "} for word in words]
        for delta in deltas:
            self.event(body, {"delta": delta, "finish_reason": None})
        self.event(body, {"delta": {}, "finish_reason": "stop"})
        self.chunk(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def event(self, body: dict[str, Any], choice: dict[str, Any]) -> None:
        text = json.dumps(about(body, "chat.completion.chunk", choice))
        self.chunk(f"data: {text}\n\n".encode())

    def chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        self.wfile.flush()

    def send(self, status: int, answer: dict[str, Any]) -> None:
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
