from collections.abc import Iterator

import pytest

from tests.hallucination.legacy.forked_readers import ForkServer
from tests.hallucination.legacy.old_files import graph_classes

__all__ = ["forked_readers", "graph_classes"]


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    with ForkServer() as server:
        yield server


@pytest.fixture
def forked_readers(monkeypatch: pytest.MonkeyPatch, fork_server: ForkServer) -> None:
    """For tests of many files: the processes that read them start at once, and give up sooner."""
    monkeypatch.setattr("clew.hallucination.legacy.reading.start_function", fork_server.start)
    monkeypatch.setattr("clew.hallucination.legacy.reading._LEAST_SECONDS", 1)
