"""A small S3 server for one folder, to read from: objects, ranges of them, listings. It sends from
the page cache, and can be made as slow as a network.

    python benchmarks/range_server.py FOLDER [--latency-ms 10] [--rate 300]
"""

import argparse
import hashlib
import os
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

_CHUNK = 256 << 10


class Link:
    """The network that all connections share: `rate` bytes per second, or as fast as possible."""

    def __init__(self, rate, latency_seconds):
        self.rate, self.latency_seconds = rate, latency_seconds
        self._free, self._lock = 0.0, threading.Lock()

    def wait(self, size):
        if not self.rate:
            return
        with self._lock:
            now = time.monotonic()
            self._free = max(self._free, now - 0.005) + size / self.rate
            pause = self._free - now
        if pause > 0:
            time.sleep(pause)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def setup(self):
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def log_message(self, *_):
        pass

    def do_HEAD(self):  # noqa: N802 - as http.server calls it
        self._send(body=False)

    def do_GET(self):  # noqa: N802
        parts = urlsplit(self.path)
        query = parse_qs(parts.query)
        if "list-type" in query:
            self._list(unquote(parts.path).strip("/"), query)
        else:
            self._send(body=True)

    def _send(self, *, body):
        path = self.server.folder / unquote(urlsplit(self.path).path).strip("/")
        time.sleep(self.server.link.latency_seconds)
        if not path.is_file():
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        size = path.stat().st_size
        first, last = self._range(size)
        self.send_response(206 if "Range" in self.headers else 200)
        if "Range" in self.headers:
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.send_header("Content-Length", str(last - first + 1))
        self.send_header("ETag", f'"{hashlib.md5(str(path).encode()).hexdigest()}"')
        self.send_header("Last-Modified", self.date_time_string(int(path.stat().st_mtime)))
        self.end_headers()
        if body:
            self.wfile.flush()
            self._send_file(path, first, last + 1)

    def _send_file(self, path, start, end):
        with open(path, "rb") as file:
            while start < end:
                size = min(_CHUNK, end - start) if self.server.link.rate else end - start
                self.server.link.wait(size)
                start += os.sendfile(self.connection.fileno(), file.fileno(), start, size)

    def _range(self, size):
        first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        if not first:
            return max(0, size - int(last)), size - 1
        return int(first), min(int(last or size - 1), size - 1)

    def _list(self, bucket, query):
        prefix = query.get("prefix", [""])[0]
        folder = self.server.folder / bucket / prefix
        entries = sorted(folder.iterdir()) if folder.is_dir() else []
        found = ""
        for path in entries:
            key = escape(f"{prefix.rstrip('/')}/{path.name}".lstrip("/"))
            if path.is_dir():
                found += f"<CommonPrefixes><Prefix>{key}/</Prefix></CommonPrefixes>"
                continue
            about = path.stat()
            changed = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(about.st_mtime))
            tag = f'"{about.st_mtime_ns:x}"'
            found += (
                f"<Contents><Key>{key}</Key><LastModified>{changed}</LastModified>"
                f"<ETag>{escape(tag)}</ETag><Size>{about.st_size}</Size></Contents>"
            )
        self._answer(200, f"<ListBucketResult>{found}</ListBucketResult>".encode())

    def _answer(self, status, content):
        self.send_response(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


class Server(ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True

    def __init__(self, folder, link, port=0):
        self.folder, self.link = folder, link
        super().__init__(("127.0.0.1", port), Handler)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--latency-ms", type=float, default=0)
    parser.add_argument("--rate", type=float, default=0, help="MB per second of all connections")
    args = parser.parse_args()
    server = Server(args.folder, Link(args.rate * 1e6, args.latency_ms / 1000))
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
