"""A local substitute for an OpenAI-compatible server: it speaks the chat protocol, remembers its
requests, and misbehaves on demand.
"""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = str | tuple[int, dict[str, str], str]  # what the model says, or (status, headers, body)
USAGE = {"prompt_tokens": 100, "completion_tokens": 1, "total_tokens": 101}


class ChatServer:
    """A server that sends ``answer(question text, attempt)``."""

    def __init__(self, answer: Callable[[str, int], Answer]):
        self.answer = answer
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self._lock = threading.Lock()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    # a handler has its own ``self``
    def _handler(server) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                text = body["messages"][-1]["content"]
                with server._lock:
                    server.requests.append(body | {"path": self.path})
                    server.headers.append({k.lower(): v for k, v in self.headers.items()})
                    texts = [request["messages"][-1]["content"] for request in server.requests]
                attempt = texts.count(text)
                status, headers, content = _complete(server.answer(text, attempt))
                # a client that has timed out closes the connection
                with suppress(BrokenPipeError, ConnectionResetError):
                    self.send_response(status)
                    usual = {"Content-Type": "application/json", "Content-Length": len(content)}
                    for name, value in (usual | headers).items():
                        self.send_header(name, str(value))
                    self.end_headers()
                    self.wfile.write(content)

            def log_message(self, *_):
                pass

        return Handler

    @contextmanager
    def running(self) -> Iterator["ChatServer"]:
        thread = threading.Thread(target=self._http.serve_forever, args=[0.01], daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._http.shutdown()
            self._http.server_close()
            thread.join()


def _complete(answer: Answer) -> tuple[int, dict[str, str], bytes]:
    if not isinstance(answer, str):
        status, headers, body = answer
        return status, headers, body.encode()
    message = {"role": "assistant", "content": answer}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    completion = {"id": "x", "object": "chat.completion", "created": 0, "model": "stand-in"}
    completion |= {"choices": [choice], "usage": USAGE}
    return 200, {}, json.dumps(completion).encode()
