"""clew plan"""

from contextlib import nullcontext
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from clew.base.texts import bytes_text, counted, duration_text, for_terminal
from clew.cli.commands import Call, read_command
from clew.cli.printing import plan_table
from clew.cli.progress import working
from clew.hallucination.workflow import plan

if TYPE_CHECKING:
    from clew.engine.plan import Machine
    from clew.hallucination.workflow.training import Plans

COMMAND = read_command(plan)


def run(call: Call) -> None:
    is_measured = call.settings["preprocessed_dir"] is not None
    with working(call.progress, "benchmarking the networks") if is_measured else nullcontext():
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
