"""Ray's workers, forked from a process that has the libraries loaded: one that Ray starts by itself
loads PyTorch first, which takes seconds."""

import importlib.util
import json
import os
import runpy
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.forking import fork

START_WORKER = str(Path(__file__).with_name("start_worker.py"))


@contextmanager
def worker_server(folder: Path) -> Iterator[None]:
    """Serves `START_WORKER`, for the nodes that are started meanwhile."""
    path = folder / "workers"
    with socket.socket(socket.AF_UNIX) as listener, pytest.MonkeyPatch.context() as patch:
        listener.bind(str(path))
        listener.listen()
        patch.setenv("CLEW_TEST_WORKERS", str(path))
        process = fork(_serve, listener)
        process.start()
        try:
            yield
        finally:
            process.kill()
            process.join()


def _serve(listener: socket.socket) -> None:
    """One process per connection. Ray itself is not loaded here: it reads the environment then."""
    ray = importlib.util.find_spec("ray")
    assert ray is not None and ray.origin is not None
    program = Path(ray.origin).parent / "_private" / "workers" / "default_worker.py"
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no process is waited for
    while True:
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as request:
            options, environment = json.load(request)
        if os.fork() == 0:
            listener.close()
            _work([str(program), *options], environment)


def _work(words: list[str], environment: dict[str, str]) -> None:
    """What Ray's own program does, in a process of its own."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = words
    with suppress(SystemExit):
        runpy.run_path(words[0], run_name="__main__")
    os._exit(0)
