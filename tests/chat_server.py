"""A local stand-in for an OpenAI-compatible server: it speaks the chat protocol, remembers what it
was asked, and misbehaves on demand.
"""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class ChatServer:
    """``answer(question text, attempt)`` gives what to send: a string to be said by the model, or
    (status, headers, body).
    """

    def __init__(self, answer: Callable[[str, int], Any]):
        self.answer = answer
        self.requests: list[dict] = []
        self.headers: list[dict[str, str]] = []
        self.released = threading.Event()  # what a slow answer waits for
        self._lock = threading.Lock()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def _handler(server) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                text = body["messages"][-1]["content"]
                with server._lock:
                    server.requests.append(body | {"path": self.path})
                    server.headers.append(
                        {name.lower(): value for name, value in self.headers.items()}
                    )
                    attempt = sum(
                        request["messages"][-1]["content"] == text for request in server.requests
                    )
                status, headers, content = _complete(server.answer(text, attempt))
                try:
                    self.send_response(status)
                    for name, value in {
                        "Content-Type": "application/json",
                        "Content-Length": str(len(content)),
                        **headers,
                    }.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(content)
                except (BrokenPipeError, ConnectionResetError):
                    pass  # the client had waited long enough

            def log_message(self, *_):
                pass

        return Handler

    @contextmanager
    def running(self) -> Iterator["ChatServer"]:
        thread = threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )
        thread.start()
        try:
            yield self
        finally:
            self.released.set()
            self._http.shutdown()
            self._http.server_close()
            thread.join()


def _complete(answer: Any) -> tuple[int, dict[str, str], bytes]:
    if isinstance(answer, str):
        message = {"role": "assistant", "content": answer}
        usage = {"prompt_tokens": 100, "completion_tokens": 1, "total_tokens": 101}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        return (
            200,
            {},
            json.dumps(
                {
                    "id": "x",
                    "object": "chat.completion",
                    "created": 0,
                    "model": "stand-in",
                    "choices": [choice],
                    "usage": usage,
                }
            ).encode(),
        )
    status, headers, body = answer
    return status, headers, body.encode()
