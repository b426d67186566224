"""The page's real server, in a thread that ends with the test."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from clew.pages.server import LocalServer
from clew.patterns.review import Review
from clew.patterns.review.review import open_page


@dataclass(frozen=True)
class Served:
    server: LocalServer
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
    with open_page(review) as server:
        served = Served(server, threading.Thread(target=server.run))
        served.thread.start()
        try:
            yield served
        finally:
            server.stop()
            assert served.has_ended()
