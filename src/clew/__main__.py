"""The command `clew`, and `python -m clew`. Imports almost nothing before it can be interrupted: a
signal that comes while the rest is imported ends the process with a message."""

import atexit
import os
import signal
import sys


def main() -> None:
    """Entry point; see `clew.cli.main`."""
    _open_streams()
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as after nohup
            signal.signal(number, _end)
            # Python restores the default handlers last: the exit code would be lost.
            atexit.register(signal.signal, number, signal.SIG_IGN)
    from clew.cli import main as run

    run()


def _end(number: int, _: object) -> None:
    try:
        os.write(2, b"clew: stopped. It is safe to run the same command again.\n")
    finally:
        os._exit(128 + number)


def _open_streams() -> None:
    """Streams that were closed (`>&-`) lead nowhere: otherwise the next file that is opened would
    get their number, and messages would be written into it. Characters that a terminal cannot
    show are escaped."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number: this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


if __name__ == "__main__":
    main()
