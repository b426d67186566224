"""Real servers on a loopback port that speak OpenAI's API, in a thread or in a process of their
own: one that behaves, and one for every way not to."""

import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ANSWER = "Paris is the capital. It is in France. It has a river."
# Numbers, escapes and spaces that another writer of JSON would change.
HEAD = '"id" : "chatcmpl-1","created":1000, "model":"caf\\u00e9 \u00fc","extra":{"a":1.50e0,"b":[]}'
USAGE = '"usage": {"prompt_tokens":7,"completion_tokens":12, "total_tokens":19}'


class Handler(BaseHTTPRequestHandler):
    """Answers `ANSWER`, and keeps what it was sent in the server's list `seen`."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._see()
        if self.path.startswith("/v1/moved"):
            return self.answer(b"", status=307, Location="http://127.0.0.1:1/elsewhere")
        return self.answer(json.dumps({"object": "list", "path": self.path}).encode())

    def do_POST(self) -> None:
        body = self._see()
        if self.path == "/v1/responses":
            return self._respond(json.loads(body))
        if self.path.partition("?")[0] not in ("/v1/chat/completions", "/v1/completions"):
            return self.answer(body, **{"Content-Type": self.headers["Content-Type"]})
        asked = json.loads(body)
        if asked.get("model") == "unknown":
            return self.answer(b'{"error":{"message":"no such model"}}', status=404)
        texts = asked.get("texts") or [ANSWER] * (asked.get("n") or 1)
        is_chat = "chat" in self.path
        if asked.get("stream"):
            return self.stream(list(chunks(texts, is_chat, asked.get("ends", "stop"))))
        return self.answer(whole(texts, is_chat, asked.get("ends", "stop")))

    def _respond(self, asked: Any) -> None:
        whole = response(asked.get("status", "completed"), calls=bool(asked.get("tools")))
        if asked.get("stream"):
            return self.stream(list(response_events(whole)))
        return self.answer(whole)

    def _see(self) -> bytes:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name.title(): value for name, value in self.headers.items()}
        self.server.seen.append((self.command, self.path, headers, body))  # type: ignore[attr-defined]
        return body

    def answer(self, body: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.send_header("x-request-id", "of-the-upstream")
        self.send_header("Set-Cookie", "a=b")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def pause(self) -> None:
        """Called before each event of a stream."""

    def stream(self, events: list[bytes]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for one in events:
            self.pause()
            self.wfile.write(b"%x\r\n%b\r\n" % (len(one), one))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")


def whole(texts: list[str], is_chat: bool, ends: str = "stop") -> bytes:
    """A response, with the fields and the white space that only this server has."""
    choices = []
    for place, text in enumerate(texts):
        told = json.dumps(text)
        inner = (
            f'"message":{{"role":"assistant","content": {told}}}' if is_chat else f'"text":{told}'
        )
        choices.append(f'{{"index":{place}, {inner},"finish_reason":"{ends}","stop_reason":null }}')
    kind = "chat.completion" if is_chat else "text_completion"
    inner = ", ".join(choices)
    return f'{{{HEAD},"object":"{kind}","choices": [{inner}], {USAGE}}} \n'.encode()


def chunks(texts: list[str], is_chat: bool, ends: str = "stop") -> Iterator[bytes]:
    """A stream, a word at a time."""
    kind = "chat.completion.chunk" if is_chat else "text_completion"
    words = [(place, word) for place, text in enumerate(texts) for word in text.split(" ")]
    for number, (place, word) in enumerate(words):
        is_first = number == 0 or words[number - 1][0] != place
        told = json.dumps(word if is_first else f" {word}")
        inner = f'"delta": {{"content":{told}}}' if is_chat else f'"text": {told}'
        choice = f'{{"index":{place},{inner},"finish_reason":null}}'
        yield f'data: {{{HEAD},"object":"{kind}","choices":[{choice}]}}\n\n'.encode()
    for place in range(len(texts)):
        inner = '"delta":{}' if is_chat else '"text":""'
        choice = f'{{"index":{place},{inner},"finish_reason":"{ends}"}}'
        yield f'data: {{{HEAD},"object":"{kind}","choices":[{choice}]}}\n\n'.encode()
    yield f'data: {{{HEAD},"object":"{kind}","choices":[],{USAGE}}}\n\n'.encode()
    yield b"data: [DONE]\n\n"


def response(status: str, *, calls: bool = False) -> bytes:
    """A response of the Responses API."""
    text = f'{{"type":"output_text", "text": "{ANSWER}", "annotations":[], "logprobs":[]}}'
    message = '{"id":"msg_1","type":"message","role":"assistant","status":"completed"'
    output = f'{message},"content" : [{text}]}}'
    if calls:
        output = '{"type":"function_call","id":"f","call_id":"c","name":"f","arguments":"{}"}'
    output = "" if status in ("queued", "in_progress") else output
    usage = '"usage": {"input_tokens":7,"output_tokens":12, "total_tokens":19}'
    head = '"id" : "resp_1","object":"response","created_at":1000, "model":"caf\\u00e9"'
    more = '"parallel_tool_calls":true,"tool_choice":"auto","tools":[]'
    return f'{{{head},"status":"{status}","output" : [{output}],{more}, {usage}}} \n'.encode()


def response_events(whole: bytes) -> Iterator[bytes]:
    """The events of a response, a word at a time."""
    place = '"item_id":"msg_1","output_index":0,"content_index":0,"logprobs":[]'
    part = '{"type":"output_text","text":"","annotations":[]}'
    item = '{"id":"msg_1","type":"message","role":"assistant","status":"in_progress","content":[]}'
    words = [json.dumps(f" {word}" if n else word) for n, word in enumerate(ANSWER.split(" "))]
    events = [
        ("created", f'"response":{response("in_progress").decode().strip()}'),
        ("output_item.added", f'"output_index":0,"item":{item}'),
        ("content_part.added", f'{place},"part":{part}'),
        *(("output_text.delta", f'{place},"delta": {word}') for word in words),
        ("completed", f'"response":{whole.decode().strip()}'),
    ]
    for number, (kind, inner) in enumerate(events):
        number = 99 if kind == "completed" else number
        about = f'"type":"response.{kind}","sequence_number":{number}, {inner}'
        yield f"event: response.{kind}\ndata: {{{about}}}\n\n".encode()


class Running:
    """A server in a thread: what it was sent, and its URL."""

    def __init__(self, server: ThreadingHTTPServer) -> None:
        self.seen: list[tuple[str, str, dict[str, str], bytes]] = server.seen  # type: ignore[attr-defined]
        self.url = f"http://127.0.0.1:{server.server_port}/v1"


@contextmanager
def running(handler: type[BaseHTTPRequestHandler] = Handler) -> Iterator[Running]:
    server = make_server(handler, 0)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield Running(server)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def make_server(handler: type[BaseHTTPRequestHandler], port: int) -> ThreadingHTTPServer:
    class Server(ThreadingHTTPServer):
        daemon_threads, request_queue_size, allow_reuse_address = True, 256, True

        def handle_error(self, *_: object) -> None:
            """A client that has left is no news."""

    server = Server(("127.0.0.1", port), handler)
    server.seen = []  # type: ignore[attr-defined]
    return server


@contextmanager
def raw_upstream(speak: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that reads a request, and then says whatever it wants; its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                threading.Thread(target=talk, args=(connection,), daemon=True).start()

        def talk(connection: socket.socket) -> None:
            with connection:
                try:
                    read_request(connection)
                    speak(connection)
                except OSError:
                    pass  # the client has left

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            listening.close()
            thread.join()


def read_request(connection: socket.socket) -> None:
    """All of it: a connection that is closed with unread bytes is reset."""
    file = connection.makefile("rb", buffering=0)
    lines = iter(file.readline, b"\r\n")
    sizes = [int(line[15:]) for line in lines if line.lower().startswith(b"content-length:")]
    left = sum(sizes)
    while left:
        left -= len(file.read(left) or b"x" * left)


def say(head: str, body: bytes = b"") -> Callable[[socket.socket], None]:
    """Speaks a response, and closes the connection."""
    lines = f"HTTP/1.1 {head}\r\nConnection: close\r\n\r\n"
    return lambda connection: connection.sendall(lines.encode() + body)


class SlowHandler(Handler):
    """A word every 5 ms: so that it can be killed in the middle of streams."""

    def pause(self) -> None:
        time.sleep(0.005)


if __name__ == "__main__":
    make_server(SlowHandler, int(sys.argv[1])).serve_forever()
