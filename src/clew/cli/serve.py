"""clew serve"""

import typer

from clew.cli.commands import Call, Command
from clew.cli.completion import suggest_words, suggest_words_and_paths
from clew.cli.options import Spelling
from clew.cli.serving import run_api
from clew.hallucination.workflow import serve

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


def register(app: typer.Typer) -> None:
    COMMAND.register(app, run)


def run(call: Call) -> None:
    run_api(call, serve)
