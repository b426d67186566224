"""The one way to start Python in another process. Its modules are those of this process, never
files that happen to lie in the current folder."""

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

# Not -I, which would hide packages of PYTHONPATH and of the user's own installation.
_COMMAND = (sys.executable, "-P")
_CALL = "import sys; sys.path[:] = {path!r}; from {module} import {name}; {name}(*{arguments!r})"


def start_function(
    function: Callable[..., object], *arguments: Any, **options: Any
) -> subprocess.Popen[bytes]:
    """Call a module's function, with arguments that their `repr` describes, in a new process.
    `options` are those of `subprocess.Popen`."""
    program = _CALL.format(
        path=_search_path(),
        module=function.__module__,
        name=function.__name__,
        arguments=arguments,
    )
    return subprocess.Popen([*_COMMAND, "-c", program], **options)


def limit_process(*, memory_bytes: int, seconds: int) -> None:
    """Let this process take so much more memory and CPU time than it has now, write no file that is
    larger, and leave no core dump. macOS has no limit of the address space."""
    with suppress(ValueError, OSError):
        _limit(resource.RLIMIT_AS, psutil.Process().memory_info().vms + memory_bytes)
    _limit(resource.RLIMIT_CPU, seconds)
    _limit(resource.RLIMIT_FSIZE, memory_bytes)
    _limit(resource.RLIMIT_CORE, 0)


@contextmanager
def own_memory() -> Iterator[None]:
    """Lift the limit of memory when it was reached: the message about it takes some."""
    try:
        yield
    except MemoryError:
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
        raise


def _limit(kind: int, most: int) -> None:
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def run_module(
    module: str, *arguments: str, variables: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run `python -m module`, with environment variables in addition to those of this process, and
    wait for its end. Nothing is printed."""
    return subprocess.run(
        [*_COMMAND, "-m", module, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **variables},
    )


def _search_path() -> list[str]:
    """That of this process, without the current folder; clew may have been found through it."""
    return [*filter(None, sys.path), str(Path(__file__).parents[2])]
