"""clew patterns serve"""

import typer

from clew.cli.commands import Call, Command
from clew.cli.help import suggest_words
from clew.cli.options import Spelling
from clew.cli.serve import run_api
from clew.patterns.workflow import serve

COMMAND = Command(
    function=serve,
    name="patterns serve",
    example="clew patterns serve --model trained --port 8000",
    note="Without --api-keys-env, API keys are read from the environment variable CLEW_API_KEYS if "
    "it is set.",
    groups={
        "Model": ("model", "name", "library", "top_k", "threshold", "unknown"),
        "Access": (
            *("host", "port", "api_keys_file", "api_keys_env", "allow_anonymous"),
            "allowed_hosts",
        ),
        "Limits": ("max_waiting", "max_body_bytes", "max_corrections", "drain_seconds"),
        "Hardware": ("device",),
    },
    spelling=Spelling(
        completions={"device": suggest_words("cpu", "cuda")},
        metavars={"host": "ADDRESS", "api_keys_env": "NAME"},
    ),
)


def register(app: typer.Typer) -> None:
    COMMAND.register(app, run)


def run(call: Call) -> None:
    run_api(call, serve)
