"""Processes that start fast: forked from one server per test run that has the libraries loaded."""

import multiprocessing
from collections.abc import Callable
from typing import Any

# There is one server, whoever asks for it: a second list would replace this one.
FORKSERVER = multiprocessing.get_context("forkserver")
FORKSERVER.set_forkserver_preload(["tests.preloaded"])


def call_forked(serve: Callable[..., None], *arguments: Any) -> Any:
    """What `serve` sends through the connection that it gets before the arguments. It runs in a
    process of its own, which has the libraries loaded and no thread."""
    ours, theirs = FORKSERVER.Pipe()
    process = FORKSERVER.Process(target=serve, args=(theirs, *arguments))
    process.start()
    theirs.close()
    try:
        return ours.recv()
    finally:
        process.kill()
        process.join()
