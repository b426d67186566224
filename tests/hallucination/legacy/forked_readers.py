"""Processes that read legacy files, forked from one that has imported what they need. It imports
little, so that forking is fast; they are limited as those that clew starts."""

import json
import os
import socket
import subprocess
from typing import Any

from clew.base.python_processes import start_function
from clew.hallucination.legacy.records import write_samples


def serve(number: int) -> None:
    """Read the files that come through a socket, one by one."""
    with socket.socket(fileno=number) as requests:
        while True:
            arguments, files, _, _ = socket.recv_fds(requests, 1 << 16, 2)
            if not arguments:
                return
            child = os.fork()
            if not child:
                for standard, file in enumerate(files):
                    os.dup2(file, standard)
                write_samples(*json.loads(arguments))
                os._exit(0)
            for file in files:
                os.close(file)
            _, status = os.waitpid(child, 0)
            requests.send(str(os.waitstatus_to_exitcode(status)).encode())


class ForkServer:
    """`start` and its result are what `load_samples` uses of `start_function`."""

    def __enter__(self) -> "ForkServer":
        self._requests, theirs = socket.socketpair()
        with theirs:
            self._process = start_function(serve, theirs.fileno(), pass_fds=[theirs.fileno()])
        return self

    def __exit__(self, *_error: object) -> None:
        self._requests.close()
        self._process.wait()

    def start(
        self, function: object, *arguments: Any, stdin: Any, stdout: Any, stderr: int
    ) -> "ForkServer":
        assert function is write_samples and stderr == subprocess.DEVNULL
        files = [stdin.fileno(), stdout.fileno()]
        socket.send_fds(self._requests, [json.dumps(arguments).encode()], files)
        self._code: int | None = None
        return self

    def wait(self, _seconds: float | None = None) -> int:
        if self._code is None:
            self._code = int(self._requests.recv(100))
        return self._code

    def kill(self) -> None:
        """It has ended when `wait` has returned."""
