"""Processes that decode photos: half of the time of a small one is spent in Python, where only one
thread of a process runs at a time. One process is started, which loads what is needed and forks."""

import os
import signal
import socket
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue

import numpy as np

from clew.base.python_processes import start_function
from clew.patterns.photos.photo import Photo
from clew.patterns.photos.squares import Squares, read_squares


class DecodingProcesses:
    """`count` processes, which end with the `with` block, or with this process. A photo gives the
    same pixels, and the same error, as when it is decoded here."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._pipes: list[Connection] = []
        self._free: SimpleQueue[Connection] = SimpleQueue()

    def __enter__(self) -> "DecodingProcesses":
        pairs = [socket.socketpair() for _ in range(self._count)]
        self._process = _start([theirs for _, theirs in pairs]) if pairs else None
        for ours, theirs in pairs:
            theirs.close()
            self._pipes.append(Connection(ours.detach()))
            self._free.put(self._pipes[-1])
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in self._pipes:
            pipe.close()
        if self._process is not None:
            # A process that was forked meanwhile may hold a copy of the pipes.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def read_squares(self, photos: Sequence[Photo], size: int) -> Squares:
        """As `squares.read_squares`, in a process that has nothing else to do. Threads may call
        this at the same time; without a process, the photos are decoded here."""
        try:
            pipe = self._free.get_nowait()
        except Empty:
            return read_squares(photos, size)
        try:
            pipe.send((photos, size))
            squares = _receive(pipe, len(photos), size)
        except (EOFError, OSError):  # killed, perhaps because memory is short
            pipe.close()
            return read_squares(photos, size)
        self._free.put(pipe)
        for place in squares.postponed():
            squares.read(place, photos[place], size)
        return squares


def _receive(pipe: Connection, photos: int, size: int) -> Squares:
    images = np.empty((photos, size * size * 3), np.uint8)
    squares: Squares = pipe.recv()
    # Straight into the array: pickled, the images would be copied four times.
    rest = images.data.cast("B")
    while rest:
        count = os.readv(pipe.fileno(), [rest])
        if not count:
            raise EOFError
        rest = rest[count:]
    return replace(squares, images=images)


def _start(sockets: Sequence[socket.socket]) -> subprocess.Popen[bytes] | None:
    numbers = [one.fileno() for one in sockets]
    try:
        return start_function(
            serve,
            numbers,
            stdin=subprocess.DEVNULL,
            pass_fds=numbers,
            # A process that forks should have no threads.
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            start_new_session=True,  # Ctrl+C is for the process that waits for these
        )
    except OSError:  # not a Python of its own: photos are decoded without processes
        return None


def serve(sockets: Sequence[int]) -> None:
    """Fork one process per socket and wait for all of them."""
    for mine in sockets:
        if os.fork() == 0:
            for other in sockets:
                if other != mine:
                    os.close(other)
            _answer(Connection(mine))
            os._exit(0)
    for each in sockets:
        os.close(each)
    for _ in sockets:
        os.wait()


def _answer(pipe: Connection) -> None:
    while True:
        try:
            photos, size = pipe.recv()
        except (EOFError, OSError):
            return
        squares = read_squares(photos, size, take_turns=False)
        pipe.send(replace(squares, images=squares.images[:0]))
        rest = squares.images.data.cast("B")
        while rest:
            rest = rest[os.write(pipe.fileno(), rest) :]
