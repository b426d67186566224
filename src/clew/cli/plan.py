"""clew plan"""

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from clew.base.texts import bytes_text, counted, duration_text, for_terminal
from clew.cli.commands import Call, read_command
from clew.cli.errors import with_flags
from clew.cli.printing import make_table
from clew.hallucination.workflow import plan

if TYPE_CHECKING:
    from clew.engine import HardwarePlan
    from clew.engine.plan import Machine
    from clew.hallucination.workflow.results import Plans

COMMAND = read_command(plan)
# Choices that calibration makes by measuring the alternatives.
_MEASURED = ("precision", "channels_last", "cuda_graph", "batch_size")


def run(call: Call) -> None:
    waiting: AbstractContextManager = nullcontext()
    if call.progress.is_terminal and call.settings["preprocessed_dir"] is not None:
        waiting = call.progress.status("benchmarking the networks")
    with waiting:
        plans = plan(**call.settings)
    if call.as_json:
        call.print_json(plans.as_dict())
    else:
        _print_plans(call.console, plans)


def _print_plans(console: Console, plans: "Plans") -> None:
    for line in _describe(plans.machine):
        console.print(for_terminal(line))
    for name, made in plans.plans.items():
        took = duration_text(made.calibration_seconds)
        how = f"measured in {took}" if made.timings else "nothing measured"
        console.print()
        console.print(Text(f"{name}: {how}", style="bold"))
        console.print(plan_table(made))


def _describe(machine: "Machine") -> list[str]:
    bf16 = f", bf16 in {machine.bf16_instructions}" if machine.bf16_instructions else ""
    memory = bytes_text(machine.free_memory_bytes)
    lines = [f"CPU: {counted(machine.cores, 'core')}{bf16}; {memory} of memory free"]
    for gpu in machine.gpus:
        free, whole = bytes_text(gpu.free_bytes), bytes_text(gpu.memory_bytes)
        bf16 = ", bf16" if gpu.has_bf16 else ""
        lines.append(f"GPU: {gpu.name}{bf16}; {free} of {whole} GPU memory free")
    can = f"no: {machine.cannot_compile}" if machine.cannot_compile else "yes"
    return [*lines, f"torch.compile: {can}"]


def plan_table(made: "HardwarePlan", before: "HardwarePlan | None" = None) -> Table:
    """Every choice with its value and reason, or only those that differ from `before`."""
    table = make_table()
    for name in ("choice", "value", "why"):
        table.add_column(name, overflow="fold")
    for name, value in made.choices.items():
        if before is not None and not _is_news(made, before, name):
            continue
        why = with_flags(made.reasons.get(name, ""))
        table.add_row(name, _value_text(name, value), Text(for_terminal(why)))
    return table


def _is_news(made: "HardwarePlan", before: "HardwarePlan", name: str) -> bool:
    """Whether a choice is worth showing: its value differs from `before`, or was measured again for
    this network."""
    if made.choices[name] != before.choices[name]:
        return True
    is_measured = name in _MEASURED and len(made.timings) > 1
    is_weighed = name == "gradient_checkpointing"  # its peaks are measured in every run
    return (is_measured or is_weighed) and made.reasons.get(name) != before.reasons.get(name)


def _value_text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None and name == "max_cache_batches":
        return "all"
    return f"{value:,}" if isinstance(value, int) else str(value)
