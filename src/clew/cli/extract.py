"""clew extract"""

from typing import TYPE_CHECKING, Any

import typer

from clew.base.texts import counted, for_shell
from clew.cli.capture_plan import show_plan
from clew.cli.commands import Call, Command
from clew.cli.completion import GPUS, QUESTIONS, suggest_words, suggest_words_and_paths
from clew.cli.long_runs import load_libraries, log_to_stderr, long_run
from clew.cli.options import Spelling
from clew.cli.printing import print_line
from clew.cli.renderer import Renderer
from clew.hallucination.workflow import extract

if TYPE_CHECKING:
    from clew.hallucination.traces import TraceBatchLoader

COMMAND = Command(
    function=extract,
    example="clew extract --questions facts --num-samples 200 --out traces_data",
    groups={
        "Input and output": ("model", "questions", "num_samples", "out", "shard_size"),
        "Several processes": ("cluster", "workers", "join", "part"),
        "Planning": ("dry_run", "gpu"),
        "Answers": (
            *("prompt", "chat", "cut", "max_new_tokens", "num_beams", "draws"),
            *("draw_temperature", "self_evaluation", "entailment"),
        ),
        "Stored data": ("keep", "node_dim", "edges_per_token", "basis"),
        "Hardware": (
            *("device", "device_map", "offload_folder", "dtype", "quantize"),
            *("generation_batch", "threads"),
        ),
    },
    spelling=Spelling(
        flags={
            "shard_size": ("--shard-size", "--batch-size"),
            "draw_temperature": ("--draw-temperature", "--sample-temperature"),
        },
        kinds={"model": str, "questions": str},
        completions={
            "model": suggest_words_and_paths("smollm2"),
            "questions": suggest_words_and_paths(*QUESTIONS),
            "device": suggest_words("auto", "cpu", "cuda"),
            "gpu": suggest_words(*GPUS),
        },
        metavars={"part": "I/N", "cluster": "ray|ray://HOST:PORT", "gpu": "NAME"},
    ),
    has_json=True,
    is_resumable=True,
)


def register(app: typer.Typer) -> None:
    COMMAND.register(app, run)


def run(call: Call) -> None:
    log_to_stderr()
    with (
        long_run(call.progress, "finishing the current batch of answers") as stop,
        Renderer(call.progress) as reporter,
    ):
        if call.settings["cluster"] is None or call.settings["dry_run"]:
            load_libraries(reporter)
        traces: Any = extract(**call.settings, reporter=reporter, should_stop=stop)
    if call.settings["dry_run"]:
        show_plan(call, traces)
        return
    if call.as_json:
        call.print_json(_describe(traces))
        return
    _print(call, traces)


def _describe(traces: "TraceBatchLoader") -> dict[str, object]:
    return {
        "store": f"{traces.traces_dir}",
        "traces": traces.num_traces,
        "planned": traces.manifest.planned_rows,
        "excluded": len(traces.manifest.skipped),
        "bytes": traces.manifest.bytes,
    }


def _print(call: Call, traces: "TraceBatchLoader") -> None:
    out, part = f"{traces.traces_dir}", call.settings["part"]
    whose = "done" if part.endswith("/1") else f"part {part} is done"
    planned, excluded = traces.manifest.planned_rows or 0, len(traces.manifest.skipped)
    more = f" ({counted(excluded, 'question')} excluded; see its manifest)" if excluded else ""
    print_line(call.console, f"{whose}: {traces.num_traces:,} of {planned:,} traces in {out}{more}")
    print_line(call.progress, f"inspect them with: {for_shell(['clew', 'inspect', out])}")
