"""Serves the review's page on this machine alone, until it is done.

The address holds a random token: other pages in the same browser cannot guess it. A name that
somebody points at 127.0.0.1 is refused by the Host header.
"""

import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from clew.errors import InputError
from clew.patterns.review.app import build_app
from clew.patterns.review.session import Review

HOST = "127.0.0.1"
_TOKEN_BYTES = 24
_LAST_ANSWERS_SECONDS = 3


class PageServer:
    """`address` is where the page is; `run` returns when a person has finished, or at Ctrl-C."""

    def __init__(self, review: Review, listening: socket.socket) -> None:
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        self.address = f"http://{HOST}:{listening.getsockname()[1]}/{token}/"
        self._socket = listening
        config = uvicorn.Config(
            build_app(review, token, self.stop),
            lifespan="off",
            ws="none",
            access_log=False,
            log_config=None,
            server_header=False,
            timeout_graceful_shutdown=_LAST_ANSWERS_SECONDS,
        )
        self._server = uvicorn.Server(config)

    def run(self) -> None:
        """Serve; KeyboardInterrupt comes through once everything is answered."""
        self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        """May be called from any thread."""
        self._server.should_exit = True


@contextmanager
def open_server(review: Review, port: int = 0) -> Iterator[PageServer]:
    """A server that listens already; 0 is any free port. Raises InputError when it is taken."""
    if not 0 <= port <= 65535:
        raise InputError(f"--port {port} is no port: choose one from 1024 to 65535.")
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((HOST, port))
            listening.listen()  # who comes before the server has started waits a moment
        except OSError as error:
            raise InputError(
                f"--port {port} cannot be used ({error.strerror}): choose another, or leave "
                f"--port out for a free one."
            ) from None
        yield PageServer(review, listening)
