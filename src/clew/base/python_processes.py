"""The one way to start Python in another process. Its modules are those of this process, never
files that happen to lie in the current folder."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

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
