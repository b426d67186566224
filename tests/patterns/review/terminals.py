"""A process with a real (pseudo-)terminal of its own, where keys are typed."""

import os
import pty
import select
import sys
from collections.abc import Callable


def in_a_terminal(work: Callable[[], None], *typed: tuple[str, bytes]) -> str:
    """What `work` shows in a process with its own terminal. Each of `typed` is what must be shown
    before it, and the keys."""
    child, terminal = pty.fork()
    if not child:
        code: object = 1
        try:
            sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
            work()
            code = 0
        except SystemExit as end:
            code = end.code
        finally:
            sys.stdout.flush()
            os._exit(1 if code else 0)
    shown = ""
    try:
        for prompt, keys in typed:
            shown += read_until(terminal, prompt)
            os.write(terminal, keys)
        shown += read_until(terminal, None)
    finally:
        os.close(terminal)  # ends a process that still waits for keys
    assert os.waitpid(child, 0)[1] == 0, shown
    return shown


def read_until(terminal: int, prompt: str | None) -> str:
    """What is shown up to the prompt, or to the end."""
    shown = bytearray()
    while prompt is None or prompt.encode() not in shown:
        assert select.select([terminal], [], [], 60)[0], shown.decode(errors="replace")
        try:
            more = os.read(terminal, 1 << 16)
        except OSError:  # how Linux signals that the other side has closed
            more = b""
        if not more:
            break
        shown += more
    return shown.decode(errors="replace")
