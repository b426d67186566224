"""Local chat completions servers: one with prescribed replies, one that attacks its client."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Attack = Callable[[socket.socket], None]


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What the server sends back; `hangs` leaves the request without a reply."""

    content: str | None = "YES"
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: str | None = None
    hangs: bool = False


class JudgeServer:
    """`asked` are the bodies of all requests, `keys` their Authorization headers."""

    def __init__(self, answer: Callable[[dict[str, Any], int], Reply]) -> None:
        self.answer = answer
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.lock = threading.Lock()
        self.ended = threading.Event()
        self.url = ""

    def take(self, body: dict[str, Any], key: str | None) -> Reply:
        """The reply; `answer` gets the request's body and how often the same answer was asked
        about."""
        graded = json.loads(body["messages"][-1]["content"])
        with self.lock:
            before = sum(graded == json.loads(b["messages"][-1]["content"]) for b in self.asked)
            self.asked.append(body)
            self.keys.append(key)
        return self.answer({**graded, "body": body}, before)


def _handler(server: JudgeServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            reply = server.take(body, self.headers["Authorization"])
            if self.path != "/v1/chat/completions":
                reply = Reply(status=404, body="no such path")
            if reply.hangs:
                server.ended.wait()
                return
            content = {"choices": [{"message": {"role": "assistant", "content": reply.content}}]}
            text = (json.dumps(content) if reply.body is None else reply.body).encode()
            self.send_response(reply.status)
            for name, value in {**reply.headers, "Content-Length": str(len(text))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    return Handler


@contextmanager
def judge_server(answer: Callable[[dict[str, Any], int], Reply]) -> Iterator[JudgeServer]:
    judge = JudgeServer(answer)
    with ThreadingHTTPServer(("127.0.0.1", 0), _handler(judge)) as server:
        judge.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield judge
        finally:
            judge.ended.set()
            server.shutdown()
            thread.join()


@contextmanager
def hostile(attack: Attack) -> Iterator[str]:
    """The URL of a server that reads one request per connection, then attacks."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    client, _ = listening.accept()
                    with client, suppress(OSError):
                        client.recv(1 << 16)
                        attack(client)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join(timeout=60)
