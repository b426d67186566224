"""clew extract, and the prediction of its dry run."""

from typing import TYPE_CHECKING

from clew.base.texts import bytes_text, counted, duration_text, for_shell
from clew.cli.commands import Call, read_command
from clew.cli.errors import with_flags
from clew.cli.printing import print_line, print_table
from clew.cli.signals import log_to_stderr
from clew.hallucination.workflow import extract

if TYPE_CHECKING:
    from clew.hallucination.capture.dry_run import CapturePlan
    from clew.hallucination.traces import TraceBatchLoader


COMMAND = read_command(extract)


def run(call: Call) -> None:
    log_to_stderr()
    traces = call.run(extract)
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


def show_plan(call: Call, plan: "CapturePlan") -> None:
    if call.as_json:
        call.print_json(plan.as_dict())
        return
    print_line(
        call.console,
        f"measured: {counted(plan.sample, 'question')} in {duration_text(plan.sample_seconds)} on "
        f"{plan.device}, after {duration_text(plan.startup_seconds)} to load and check the model",
    )
    rows = ((name, with_flags(text)) for name, text in _rows(plan).items())
    print_table(call.console, ("of the run", "prediction"), rows)
    for note in plan.notes:
        print_line(call.console, note)


def _rows(plan: "CapturePlan") -> dict[str, str]:
    on = f", each with one {plan.gpu}" if plan.gpu else ""
    time = duration_text(plan.seconds)
    each = plan.bytes / max(1, plan.questions - plan.captured)
    memory = f"{bytes_text(plan.memory_bytes)} per worker"
    if plan.gpu_memory_bytes is not None:
        memory += f", {bytes_text(plan.gpu_memory_bytes)} of GPU memory"
    rows = {
        "questions": _questions_text(plan),
        "tokens": f"{plan.tokens:,} ({plan.tokens_per_trace:.0f} per trace)",
        "store": f"{bytes_text(plan.bytes)} ({bytes_text(int(each))} per trace)",
        "requests": f"{plan.requests:,} to the store" if plan.requests else "",
        "memory": f"{memory}; {plan.rows:,} questions at a time",
        "time": f"{time} ± {plan.error:.0%} ({plan.hours:.2f} hours) with "
        f"{counted(plan.workers, 'worker')}{on}",
        "bottleneck": plan.bottleneck,
    }
    return {name: text for name, text in rows.items() if text}


def _questions_text(plan: "CapturePlan") -> str:
    left = plan.questions - plan.captured
    text = f"{left:,} in {counted(plan.shards, 'shard')}"
    return f"{text} ({plan.captured:,} are captured already)" if plan.captured else text
