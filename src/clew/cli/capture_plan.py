"""What "clew extract --dry-run" prints."""

from typing import TYPE_CHECKING

from rich.text import Text

from clew.base.texts import bytes_text, counted, duration_text, for_terminal
from clew.cli.commands import Call
from clew.cli.errors import with_flags
from clew.cli.printing import make_table, print_line

if TYPE_CHECKING:
    from clew.hallucination.capture.dry_run import CapturePlan


def show_plan(call: Call, plan: "CapturePlan") -> None:
    if call.as_json:
        call.print_json(plan.as_dict())
        return
    print_line(
        call.console,
        f"measured: {counted(plan.sample, 'question')} in {duration_text(plan.sample_seconds)} on "
        f"{plan.device}, after {duration_text(plan.startup_seconds)} to load and check the model",
    )
    table = make_table()
    table.add_column("of the run")
    table.add_column("prediction", overflow="fold")
    for name, text in _rows(plan).items():
        table.add_row(name, Text(for_terminal(with_flags(text))))
    call.console.print(table)
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
