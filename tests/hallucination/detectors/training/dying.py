"""`clew train` as torchrun starts it, except that the second process dies at step 12 the first
time."""

import os
import signal

from clew.cli import main
from clew.engine.loop import Loop

_STEP = 12
_after_step = Loop._after_step


def _die(loop: Loop) -> None:
    _after_step(loop)
    if loop.state.step == _STEP:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    if (os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]) == ("1", "0"):
        Loop._after_step = _die  # type: ignore[method-assign]
    main()
