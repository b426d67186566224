"""Several processes that train one model: connect, sum gradients, agree, share results."""

import atexit
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from clew.base.errors import ClewError, LostProcessError
from clew.engine.torchrun import count_processes, count_restarts, is_first_process

if TYPE_CHECKING:
    from lightning_fabric import Fabric


Value = TypeVar("Value")
_ANSWER_SECONDS = 5


def start_fabric(device: str) -> "Fabric":
    """Lightning Fabric on this process's device, connected to the others under torchrun.

    Precision is left to the step: calibration tries several with one Fabric.
    """
    from lightning_fabric import Fabric  # slow to import, and errors should come without a wait

    # The plan already reports what Fabric logs at INFO about precision and processes.
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    kind, _, number = device.partition(":")
    devices: int | list[int] = [int(number)] if number else 1
    if count_processes() == 1:
        fabric = Fabric(accelerator=kind, devices=devices, strategy="auto")
    else:
        # torchrun tells a process its rank only through the environment.
        here = int(os.environ["LOCAL_WORLD_SIZE"])
        nodes = count_processes() // here
        fabric = Fabric(accelerator=kind, devices=here, num_nodes=nodes, strategy="ddp")
        # A process that exits while the others are still connected to it makes them abort.
        atexit.register(_part)
        if count_restarts() and not dist.is_initialized():
            _connect_again(kind)
    fabric.launch()
    return fabric


def _connect_again(kind: str) -> None:
    """Connect before Fabric does. torchrun keeps its store over restarts, with the addresses of
    processes that have ended: the new ones must use other keys."""
    store, rank, count = next(dist.rendezvous("env://"))
    dist.init_process_group(
        "nccl" if kind == "cuda" else "gloo",
        store=dist.PrefixStore(f"restart-{count_restarts()}", store),
        rank=rank,
        world_size=count,
    )


def _part() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


class Wishes:
    """Requests to stop or save: what one process wants, all must do after the same step.

    With several processes a request travels with the gradients, so it costs no message of its own.
    """

    def __init__(self) -> None:
        self.stop = self.save = False
        self.together: Tensor | None = None

    def granted(self) -> tuple[bool, bool]:
        """(stop, save) as all processes know it after the last step; waits for the device."""
        if self.together is None:
            return self.stop, self.save
        stop, save = self.together.tolist()
        return stop > 0, save > 0


class GradientSum:
    """Makes the gradients those of the whole batch, however unevenly it was split.

    Buffers such as running means are averaged the same way, so that all processes stay one model.
    """

    def __init__(self, model: nn.Module, wishes: Wishes) -> None:
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._buffers = [b for b in model.buffers() if b.is_floating_point()]
        self._wishes = wishes

    def run(self, samples: int) -> None:
        """One message: gradients and buffers times the samples behind them, and the requests."""
        device = self._parameters[0].device
        about = torch.tensor([samples, self._wishes.stop, self._wishes.save], dtype=torch.float32)
        own = (torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters)
        values = [*own, *self._buffers]
        flat = torch.cat([value.detach().float().flatten() for value in values])
        message = torch.cat([flat * samples, about.to(device, non_blocking=True)])
        with joined():
            dist.all_reduce(message)
        self._wishes.together = message[-2:]
        means = (message[:-3] / message[-3]).split([value.numel() for value in values])
        for parameter, mean in zip(self._parameters, means, strict=False):
            parameter.grad = mean.view_as(parameter).to(parameter.dtype)
        for buffer, mean in zip(self._buffers, means[len(self._parameters) :], strict=True):
            buffer.copy_(mean.view_as(buffer))


def gather(fabric: "Fabric", value: Value) -> list[Value]:
    """The value of every process, in rank order, on every process."""
    if fabric.world_size == 1:
        return [value]
    values: list[Any] = [None] * fabric.world_size
    with joined():
        dist.all_gather_object(values, value)
    return values


def broadcast_weights(fabric: "Fabric", model: nn.Module) -> None:
    """Every process starts with the first one's weights."""
    if fabric.world_size > 1:
        with joined():
            for value in model.state_dict().values():
                dist.broadcast(value, src=0)


def share_first(value: Value) -> Value:
    """The first process's value, on every process."""
    values = [value]
    if count_processes() > 1:
        with joined():
            dist.broadcast_object_list(values, src=0)
    return values[0]


def wait_for_all(fabric: "Fabric") -> None:
    """Return when every process has called it."""
    with joined():
        fabric.barrier()


def first_does(work: Callable[[], Value]) -> Value:
    """The first process does the work; all processes get its result or raise its error."""
    done: tuple[Value | None, ClewError | None] = (None, None)
    if is_first_process():
        try:
            done = (work(), None)
        except ClewError as error:
            done = (None, error)
    value, failed = share_first(done)
    if failed is not None:
        raise failed
    return value  # type: ignore[return-value]


@contextmanager
def joined() -> Iterator[None]:
    """Around what all processes do together. Raises LostProcessError if one of them has ended: the
    connection to it is then closed, and the others cannot go on without it."""
    try:
        yield
    except RuntimeError as error:  # that of the connection has no class of its own
        raise LostProcessError(
            "another training process has ended or lost its connection: training resumes from the "
            "last checkpoint when torchrun starts the processes again. If it does not (its "
            "max-restarts are used up), run the same command again.",
            is_first=_is_first_to_notice(),
        ) from error


def _is_first_to_notice() -> bool:
    """Asks torchrun's own process, which outlives all of ours."""
    try:
        store = dist.TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            timeout=timedelta(seconds=_ANSWER_SECONDS),
            wait_for_workers=False,
        )
        return store.add(f"clew/lost/{count_restarts()}", 1) == 1
    except RuntimeError:
        return True
