"""`clew train` under torchrun's own launcher, except that the second process dies at step 12 the
first time. All are forked: nothing has to be imported again."""

import os
import signal
import sys
from pathlib import Path

from clew.cli import main
from clew.engine.loop import Loop

_STEP = 12
_after_step = Loop._after_step


def torchrun(words: tuple[str, ...], folder: Path) -> None:
    """In a process of its own: two processes, started again once; what they print is in
    `folder/stdout.txt` and `folder/stderr.txt`."""
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    for stream, name in ((1, "stdout.txt"), (2, "stderr.txt")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
    os.environ["COLUMNS"] = "300"
    place = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "run_id": str(os.getpid())}
    config = LaunchConfig(1, 1, 2, start_method="fork", max_restarts=1, **place)
    elastic_launch(config, _train)(words)


def _train(words: tuple[str, ...]) -> None:
    if (os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]) == ("1", "0"):
        Loop._after_step = _die  # type: ignore[method-assign]
    sys.argv = ["clew", *words]
    try:
        main()
    except SystemExit as ended:
        if ended.code:
            raise


def _die(loop: Loop) -> None:
    _after_step(loop)
    if loop.state.step == _STEP:
        os.kill(os.getpid(), signal.SIGKILL)
