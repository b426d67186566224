"""Formats what training found in the photos and what it decided, as lines of text."""

from typing import TYPE_CHECKING

from clew.base.texts import counted, duration_text, for_shell

if TYPE_CHECKING:
    from clew.engine import HardwarePlan
    from clew.patterns.training import Prepared

_NAMED_CLASSES = 12
_PLACES = {"ram": "in memory", "disk": "on disk", "gpu": "on the GPU"}


def describe_plan(plan: "HardwarePlan") -> str:
    """The plan in one line."""
    ways = {
        "CUDA graph": plan.cuda_graph,
        "torch.compile": plan.compile,
        "channels_last": plan.channels_last,
        "gradient checkpointing": plan.gradient_checkpointing,
    }
    processes = f"{plan.processes} processes" if plan.processes > 1 else ""
    batch = f"batch {plan.batch_size:,}"
    batch += f" x {plan.grad_accum}" if plan.grad_accum > 1 else ""
    parts = (plan.device, processes, plan.precision, batch, *(w for w, on in ways.items() if on))
    return ", ".join(part for part in parts if part)


def excluded_text(excluded: dict[str, int]) -> str:
    counts = ", ".join(f"{count:,} {kind}" for kind, count in excluded.items())
    return f"{counted(sum(excluded.values()), 'file')} ({counts})"


def describe_preparation(told: "Prepared") -> dict[str, str]:
    """One line per finding or decision, by name."""
    size, flip, place = told.image_size, told.flip, told.place
    lines = {
        "photos": f"{sum(told.classes.values()):,} in {_classes_text(told.classes)}",
        "excluded": f"{excluded_text(told.excluded)}: see {told.excluded_file} for the reasons",
        "ignored": f"{counted(told.other_files, 'file')} without an image extension",
        "splits": ", ".join(f"{count:,} for {split}" for split, count in told.splits.items()),
        "images": f"{size.value} x {size.value} pixels, {size.reason}",
        "cache": f"{_PLACES[place.value]}: {place.reason}",
        "flip": f"{'yes' if flip.value else 'no'}: {flip.reason}",
        "starts from": _start_text(told),
        "network": f"{told.network.value}, {told.network.reason}",
        "training": _method_text(told),
        "epochs": f"{told.epochs.value:,}, {told.epochs.reason}",
    }
    empty = {
        "excluded": not told.excluded,
        "ignored": not told.other_files,
        "starts from": told.started_from is None,
        "epochs": told.method.value is not None,
    }
    return {name: line for name, line in lines.items() if not empty.get(name)}


def _classes_text(classes: dict[str, int]) -> str:
    """All classes with their counts if they are few, otherwise the smallest and the largest."""
    many = counted(len(classes), "class", "classes")
    if len(classes) <= _NAMED_CLASSES:
        return f"{many}: {', '.join(f'{name} ({count:,})' for name, count in classes.items())}"
    few, most = (choose(classes, key=lambda name: classes[name]) for choose in (min, max))
    return f"{many}, from {few} ({classes[few]:,}) to {most} ({classes[most]:,})"


def _method_text(told: "Prepared") -> str:
    seconds = told.method.value
    return told.method.reason + ("" if seconds is None else f"; about {duration_text(seconds)}")


def _start_text(told: "Prepared") -> str:
    new = f"; new classes: {', '.join(told.new_classes)}" if told.new_classes else ""
    return f"the weights in {for_shell([told.started_from])}{new}"
