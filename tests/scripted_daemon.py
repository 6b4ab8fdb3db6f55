"""An HTTP server on a free port that answers as told and remembers what it was asked."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


@dataclass
class ScriptedDaemon:
    """`answers` maps "METHOD /path" (no query) to a list of (status, body), the last one repeats.

    A body that is a str is sent as an event stream, any other as JSON.
    """

    url: str = ""
    answers: dict[str, list[tuple[int, Any]]] = field(default_factory=dict)
    asked: list[tuple[str, bytes]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    def answer(self, route: str, *bodies: Any, status: int = 200) -> None:
        """Answer `route` with these bodies in turn."""
        self.answers[route] = [(status, body) for body in bodies]

    def bodies(self, route: str) -> list[Any]:
        """The JSON bodies that were sent to `route`."""
        return [json.loads(body) for asked, body in self.asked if asked == route]

    def take(self, route: str) -> tuple[int, Any]:
        """The next answer of a route; 404 in the envelope for one that is not scripted."""
        answers = self.answers.get(route)
        if not answers:
            return 404, {"error": {"message": f"no such page: {route}", "param": None}}
        return answers.pop(0) if len(answers) > 1 else answers[0]


@contextmanager
def scripted_daemon() -> Iterator[ScriptedDaemon]:
    """A running server; it ends with the block."""
    daemon = ScriptedDaemon()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            route = f"{self.command} {self.path.partition('?')[0]}"
            daemon.asked.append((route, body))
            daemon.headers.append({name.lower(): value for name, value in self.headers.items()})
            status, answer = daemon.take(route)
            is_stream = isinstance(answer, str)
            data = answer.encode() if is_stream else json.dumps(answer).encode()
            self.send_response(status)
            kind = "text/event-stream" if is_stream else "application/json"
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_DELETE = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        daemon.url = f"http://127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield daemon
        server.shutdown()
        thread.join()
