"""clew plan"""

import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from clew.cli.errors import with_flags
from clew.cli.plan_flags import with_plan_flags
from clew.cli.printing import make_table, plain_text
from clew.wording import bytes_text, counted, duration_text

if TYPE_CHECKING:
    from clew.engine import HardwarePlan, PlanRequest
    from clew.engine.planning.hardware import Machine

_EPILOG = "Example: `clew plan --preprocessed-dir preprocessed_data`"

# What calibration chooses by timing one way against another.
_MEASURED = ("precision", "channels_last", "cuda_graph", "batch_size")


def register(app: typer.Typer) -> None:
    app.command(epilog=_EPILOG)(plan)


@with_plan_flags()
def plan(
    preprocessed_dir: Annotated[
        Path | None,
        typer.Option(help="Samples to measure on, as clew preprocess writes them."),
    ] = None,
    epochs: Annotated[int, typer.Option(help="As many as the run will have.")] = 50,
    *,
    request: "PlanRequest",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
) -> None:
    """Show how training would use this machine, and why: device, precision, batch size, ...

    With samples, the three networks are measured on them for a few seconds each, as "clew train"
    does when it starts; without, it is said what would be measured.
    """
    from clew.engine.planning.hardware import look_at_machine

    machine = look_at_machine()
    plans = _make_plans(request, machine, preprocessed_dir, epochs)
    if as_json:
        _print_json(machine, plans)
    else:
        _print_plans(Console(highlight=False), machine, plans)


def _make_plans(
    request: "PlanRequest", machine: "Machine", folder: Path | None, epochs: int
) -> dict[str, "HardwarePlan"]:
    """By network; "any network" when nothing was measured."""
    from clew.engine import TrainConfig, plan_hardware

    config = TrainConfig(epochs=epochs)
    if folder is None:
        return {"any network": plan_hardware(request, config=config, machine=machine)}
    from clew.hallucination.detectors.training import TrainRunConfig, plan_models

    told = Console(stderr=True)
    waiting: AbstractContextManager = nullcontext()
    if told.is_terminal:
        waiting = told.status("measuring the networks")
    with waiting:
        return plan_models(TrainRunConfig(preprocessed_dir=folder, train=config, request=request))


def _print_json(machine: "Machine", plans: dict[str, "HardwarePlan"]) -> None:
    told = {name: made.to_dict() for name, made in plans.items()}
    text = json.dumps({"machine": machine.to_dict(), "plans": told}, indent=1, ensure_ascii=False)
    typer.echo(plain_text(text, lines=True))


def _print_plans(console: Console, machine: "Machine", plans: dict[str, "HardwarePlan"]) -> None:
    for line in _describe(machine):
        console.print(plain_text(line), markup=False)
    for name, made in plans.items():
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
        lines.append(f"GPU: {gpu.name}{bf16}; {free} of {whole} of memory free")
    can = f"no: {machine.cannot_compile}" if machine.cannot_compile else "yes"
    return [*lines, f"torch.compile: {can}"]


def plan_table(made: "HardwarePlan", before: "HardwarePlan | None" = None) -> Table:
    """Every choice with its value and its reason, or what of it is other than `before`."""
    table = make_table()
    for name in ("choice", "value", "why"):
        table.add_column(name, overflow="fold")
    for name, value in made.choices.items():
        if before is not None and not _is_news(made, before, name):
            continue
        why = with_flags(made.reasons.get(name, ""))
        table.add_row(name, _value_text(name, value), Text(plain_text(why)))
    return table


def _is_news(made: "HardwarePlan", before: "HardwarePlan", name: str) -> bool:
    """Another value; or the same one, but measured for this network by itself."""
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
