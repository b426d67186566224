"""Processes that start fast: forked from one server per test run that has the libraries loaded."""

import multiprocessing
import multiprocessing.util
import os
from collections.abc import Callable, Mapping
from multiprocessing.context import ForkServerProcess
from typing import Any

# A process that takes longer hangs. On a busy machine, a few seconds of work may take many minutes.
HANGS_SECONDS = 900.0

# There is one server, whoever asks for it: a second list would replace this one.
FORKSERVER = multiprocessing.get_context("forkserver")
FORKSERVER.set_forkserver_preload(["tests.preloaded"])
# The folder of its socket, whose path must be short: chosen before a test sets TMPDIR.
multiprocessing.util.get_temp_dir()


def fork(target: Callable[..., None], *arguments: Any) -> ForkServerProcess:
    """A process that is to be started. It gets the environment of this moment: the server has that
    of the test that first needed it."""
    return FORKSERVER.Process(target=_call, args=(dict(os.environ), target, *arguments))


def _call(environment: Mapping[str, str], target: Callable[..., None], *arguments: Any) -> None:
    os.environ.clear()
    os.environ.update(environment)
    target(*arguments)


def call_forked(serve: Callable[..., None], *arguments: Any) -> Any:
    """What `serve` sends through the connection that it gets before the arguments. It runs in a
    process of its own, which has the libraries loaded and no thread."""
    ours, theirs = FORKSERVER.Pipe()
    process = fork(serve, theirs, *arguments)
    process.start()
    theirs.close()
    try:
        return ours.recv()
    finally:
        process.kill()
        process.join()
