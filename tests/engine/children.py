"""Training in child processes, which are killed."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import safe_open

from clew.storage import writing
from tests.forking import HANGS_SECONDS

_context = multiprocessing.get_context("fork")


def start(function: Callable[..., Any], *arguments: Any) -> Any:
    """Forked: nothing has to be imported again."""
    child = _context.Process(target=function, args=arguments)
    child.start()
    return child


def torchrun(function: Callable[..., Any], *arguments: Any) -> int:
    """The exit code of two processes that torchrun's own launcher starts, forked as well."""
    return wait(start(_launch, function, arguments))


def _launch(function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    place = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "run_id": str(os.getpid())}
    config = LaunchConfig(1, 1, 2, start_method="fork", max_restarts=0, **place)
    elastic_launch(config, function)(*arguments)


def wait(child: Any) -> int:
    """The exit code; negative when a signal ended it."""
    child.join(HANGS_SECONDS)
    if child.exitcode is None:
        child.kill()
        raise AssertionError("the process did not finish")
    return child.exitcode


def wait_until(condition: Callable[[], bool], child: Any) -> None:
    """Waits until the condition holds or the process has ended."""
    deadline = time.monotonic() + HANGS_SECONDS
    while not condition() and child.is_alive():
        assert time.monotonic() < deadline, "the condition never held"
        time.sleep(0.001)


def kill_at_rename(number: int, *, before: bool, run: Callable[[], Any]) -> None:
    """In the child: dies right before or after it puts its `number`-th file in place."""
    put_in_place, count = writing.put_in_place, iter(range(1, 1_000_000))

    def put_or_die(part: Path, path: Path) -> None:
        last = next(count) == number
        if not (last and before):
            put_in_place(part, path)
        if last:
            os.kill(os.getpid(), signal.SIGKILL)

    writing.put_in_place = put_or_die
    run()


def tensors(path: Path) -> dict[str, bytes]:
    """Everything in a checkpoint, bit for bit, except the header, which holds times."""
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name).numpy().tobytes() for name in file.keys()}  # noqa: SIM118
