"""The page's real server, in a thread that ends with the test."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from clew.patterns.review import Review
from clew.patterns.review.server import PageServer, open_server


@dataclass(frozen=True)
class Served:
    server: PageServer
    thread: threading.Thread

    @property
    def address(self) -> str:
        return self.server.address

    def has_ended(self) -> bool:
        """Waits for the end."""
        self.thread.join(timeout=60)
        return not self.thread.is_alive()


@contextmanager
def serve(review: Review) -> Iterator[Served]:
    with open_server(review) as server:
        served = Served(server, threading.Thread(target=server.run))
        served.thread.start()
        try:
            yield served
        finally:
            server.stop()
            assert served.has_ended()
