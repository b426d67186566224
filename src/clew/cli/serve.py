"""clew serve"""

import os
import sys

import typer

from clew.cli.commands import Call, Command
from clew.cli.completion import suggest_words, suggest_words_and_paths
from clew.cli.long_runs import log_to_stderr
from clew.cli.options import Spelling
from clew.cli.printing import print_line
from clew.cli.renderer import Renderer
from clew.hallucination.workflow import serve
from clew.progress import Event

COMMAND = Command(
    function=serve,
    example="clew serve comparison/detector --port 8000",
    note="Without --api-keys-env, API keys are read from the environment variable CLEW_API_KEYS if "
    "it is set.",
    groups={
        "Model": ("model", "model_name", "prompt"),
        "Access": (
            *("host", "port", "api_keys_file", "api_keys_env", "allow_anonymous"),
            "allowed_hosts",
        ),
        "Limits": (
            *("max_rows", "max_waiting", "max_prompt_tokens", "max_tokens", "max_body_bytes"),
            *("request_seconds", "drain_seconds"),
        ),
        "Page": ("traces", "scores_file", "comparisons"),
        "Logs": ("log_requests",),
        "Hardware": ("device", "device_map", "offload_folder", "dtype", "threads"),
    },
    spelling=Spelling(
        completions={
            "model": suggest_words_and_paths("smollm2"),
            "device": suggest_words("auto", "cpu", "cuda"),
        },
        metavars={"host": "ADDRESS", "api_keys_env": "NAME", "model_name": "NAME"},
    ),
)


_KEYS_VARIABLE = "CLEW_API_KEYS"


def register(app: typer.Typer) -> None:
    COMMAND.register(app, run)


def run(call: Call) -> None:
    from clew.pages.api.running import ServiceReady, is_loading

    log_to_stderr()
    settings = dict(call.settings)
    if settings["api_keys_env"] is None and _KEYS_VARIABLE in os.environ:
        settings["api_keys_env"] = _KEYS_VARIABLE
    with Renderer(call.progress) as show:

        def report(event: Event, /) -> None:
            if isinstance(event, ServiceReady):
                print_line(call.console, f"{event}")
                print_line(call.console, f"page: {event.address} (Ctrl-C stops the server)")
            else:
                show(event)

        serve(**settings, reporter=report)
    print_line(call.progress, "stopped")
    if is_loading():
        # The libraries abort a process that ends while one of their threads is at work. What has
        # been built of a detector is complete by itself.
        sys.stdout.flush()
        os._exit(0)
