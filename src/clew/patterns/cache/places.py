"""Where the decoded photos lie while they are trained on, and why there."""

from typing import Literal, NamedTuple

import torch

from clew.engine.planning.hardware import Machine, look_at_machine
from clew.errors import InputError
from clew.wording import bytes_text

Place = Literal["ram", "disk", "gpu"]

# A GPU's memory is left to the network, the machine's to whatever else runs on it.
_GPU_SHARE, _RAM_SHARE, _WANTED_RAM_SHARE = 0.3, 0.5, 0.8


class PlaceChoice(NamedTuple):
    place: Place
    reason: str


def choose_place(
    bytes_needed: int,
    *,
    wanted: str = "auto",
    device: str | torch.device = "cpu",
    machine: Machine | None = None,
    processes: int = 1,
) -> PlaceChoice:
    """For the pictures of all splits together. What does not fit is never taken into memory, also
    when it is asked for. Each of several processes on a machine has a copy of its own."""
    if wanted not in ("auto", "ram", "disk"):
        raise InputError("choose auto, ram or disk.", setting="cache", value=wanted)
    if wanted == "disk":
        return PlaceChoice("disk", 'as asked for with `cache="disk"`')
    machine, device = machine or look_at_machine(), torch.device(device)
    size = bytes_text(bytes_needed)
    if wanted == "auto" and device.type == "cuda":
        free = machine.gpu(str(device)).free_bytes
        if bytes_needed <= _GPU_SHARE * free:
            return PlaceChoice("gpu", f"{size} of pictures, {bytes_text(free)} free on the GPU")
    free = machine.free_memory_bytes // processes
    share = _RAM_SHARE if wanted == "auto" else _WANTED_RAM_SHARE
    have = f"{size} of pictures, {bytes_text(free)} of memory free"
    if bytes_needed <= share * free:
        return PlaceChoice("ram", have if wanted == "auto" else f"as asked for; {have}")
    too_much = f"{have}, of which they may take {share:.0%}"
    return PlaceChoice(
        "disk", too_much if wanted == "auto" else f'`cache="ram"` does not fit: {too_much}'
    )
