"""The one way to start Python in another process. Its modules are those of this process, never
files that happen to lie in the current folder."""

import atexit
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

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


class Copy:
    """A call in a copy of a process, as `start_copy` returns it."""

    def __init__(self, leash: socket.socket) -> None:
        self._leash = leash

    def wait(self, timeout_seconds: float | None = None) -> int:
        """The exit status as in `subprocess.Popen`; raises TimeoutError."""
        self._leash.settimeout(timeout_seconds)
        return int(self._leash.recv(100) or -signal.SIGKILL)

    def end(self) -> None:
        """End it, wherever it is."""
        with self._leash, suppress(OSError):
            self._leash.shutdown(socket.SHUT_WR)
            self.wait()


def start_copy(
    function: Callable[..., object], *arguments: Any, stdin: int, stdout: int, stderr: int
) -> Copy:
    """Call a module's function, with arguments that JSON has, in a process of its own, in
    milliseconds: one that has imported the module is started once, and copied for each call. The
    descriptors become the standard files of the copy. Also for calls that may be ended by limits or
    by what they read."""
    ours, theirs = socket.socketpair()
    with theirs:
        files = [stdin, stdout, stderr, theirs.fileno()]
        server = _start_server(function)
        socket.send_fds(server, [json.dumps(arguments).encode()], files)
    return Copy(ours)


@cache
def _start_server(function: Callable[..., object]) -> socket.socket:
    ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
    with theirs:
        number = theirs.fileno()
        about = (number, function.__module__, function.__name__)
        process = start_function(serve_copies, *about, pass_fds=[number], stdin=subprocess.DEVNULL)
    atexit.register(process.wait)
    atexit.register(ours.close)  # first: it ends the process
    return ours


def serve_copies(number: int, module: str, name: str) -> None:
    """What the process that is copied does, until the one that started it has ended."""
    function = getattr(import_module(module), name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that watch the copies
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with its parent, which decides
    server = socket.socket(fileno=number)
    while True:
        content, files, *_ = socket.recv_fds(server, 1 << 16, 4)
        if not content:
            return
        if not os.fork():
            server.close()
            _watch_copy(function, json.loads(content), *files)
        for file in files:
            os.close(file)


def _watch_copy(function: Callable[..., object], arguments: Any, *files: int) -> NoReturn:
    """Make the copy, end it when nobody is interested any more, and pass its exit status on."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    leash = socket.socket(fileno=files[-1])
    copy = os.fork()
    if not copy:
        leash.close()
        for number, file in enumerate(files[:-1]):
            os.dup2(file, number)
        os.closerange(3, max(files) + 1)
        with _ended():
            function(*arguments)
    for file in files[:-1]:
        os.close(file)
    threading.Thread(target=_end_copy, args=(leash, copy), daemon=True).start()
    status = os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1])
    leash.send(str(status).encode())
    os._exit(0)


@contextmanager
def _ended() -> Iterator[None]:
    """End this process after the block, without what its original would do at its end."""
    status = 1
    try:
        yield
        sys.stdout.flush()
        status = 0
    except Exception:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(status)


def _end_copy(leash: socket.socket, copy: int) -> None:
    leash.recv(1)
    with suppress(ProcessLookupError):  # it has ended by itself
        os.kill(copy, signal.SIGKILL)


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
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    lifted = hard, hard  # made before: there may be no memory left for it
    try:
        yield
    except MemoryError:
        resource.setrlimit(resource.RLIMIT_AS, lifted)
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
