"""Commands are functions whose arguments are the fields of a class of settings: signature, flags,
help and run.toml come from it. Groups of settings that several commands have are its bases."""

import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from clew.base.errors import InputError
from clew.base.progress import Reporter
from clew.base.settings import check_least, check_numbers

Arguments = ParamSpec("Arguments")
Settings = TypeVar("Settings")
Result = TypeVar("Result")
# An argument and its text in the "Args:" of a docstring, up to the next one.
_ARGUMENT = re.compile(r"^ {4}(\w+): .*\n(?: {5,}.*\n)*", re.MULTILINE)
_DEVICE = re.compile(r"cpu|cuda(:\d+)?")
_SECTION = re.compile(r"^(?=(?:Returns|Raises|Examples):$)", re.MULTILINE)


def check_gpu_name(device: str | None) -> None:
    """Raises InputError for what names no device; PyTorch says later which there are."""
    if device is not None and not _DEVICE.fullmatch(device):
        raise InputError(
            "choose from: cpu, cuda, or cuda:N for a specific GPU.", setting="device", value=device
        )


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """The settings of every command that trains; None leaves the choice to the hardware plan.

    Args:
        device: cpu, cuda or cuda:1. [default: the GPU if there is one]
        amp: Train in mixed precision: bf16, or fp16 on GPUs that do not support bf16. [default: if
            faster]
        compile: Use torch.compile. [default: if the run is long enough to benefit]
        cuda_graph: Capture the training step as a CUDA graph. [default: if faster]
        num_workers: Number of threads that prefetch batches; 0 loads them on demand. [default: as
            many as needed]
        batch_size: Samples per batch, over all processes. [default: the fastest]
        max_cache_batches: Number of shards to keep open. [default: all]
        threads: CPU threads to use. [default: all cores, or fewer if that is faster while other
            processes use them]
    """

    device: str | None = None
    amp: bool | None = None
    compile: bool | None = None
    cuda_graph: bool | None = None
    num_workers: int | None = None
    batch_size: int | None = None
    max_cache_batches: int | None = None
    threads: int | None = None

    def __post_init__(self) -> None:
        check_numbers(self)
        for name in ("batch_size", "grad_accum", "max_cache_batches", "threads", "epochs"):
            check_least(name, getattr(self, name, None))
        check_least("num_workers", self.num_workers, 0)
        check_gpu_name(self.device)


@dataclass(frozen=True, kw_only=True)
class TrainingHardware(Hardware):
    """The same with what changes the steps of a training.

    Args:
        channels_last: Use the channels-last memory format for images. [default: if faster]
        grad_accum: Batches per optimizer step. [default: 1]
        gradient_checkpointing: Recompute activations instead of storing them: less memory, more
            time.
    """

    channels_last: bool | None = None
    grad_accum: int | None = None
    gradient_checkpointing: bool = False


@dataclass(frozen=True, kw_only=True)
class Watched:
    """How a long call is watched.

    Args:
        reporter: Called with progress events. [default: the log]
        should_stop: Called after every step; when it returns True, the run saves its progress and
            stops.
    """

    reporter: Reporter | None = None
    should_stop: Callable[[], bool] = lambda: False


@dataclass(frozen=True, kw_only=True)
class Cached:
    """Where stores at URLs are kept on this machine.

    Args:
        cache_dir: Folder for what is downloaded from a URL. [default: the user's cache folder]
        cache_size: The most that this folder may take, such as "50GB". [default: what was set last,
            or 64 GB, at most half of the free space]
    """

    cache_dir: str | Path | None = None
    cache_size: str | int | None = None


def takes(
    settings: Callable[Arguments, Settings],
) -> Callable[[Callable[[Settings], Result]], Callable[Arguments, Result]]:
    """Decorator: the function takes the fields of a class of settings as arguments, and gets an
    instance. Its signature lists the fields of the class before those of its bases, and its
    docstring has their "Args:"."""

    def decorate(function: Callable[[Settings], Result]) -> Callable[Arguments, Result]:
        found = _parameters(settings)
        result = inspect.signature(function).return_annotation
        signature = inspect.Signature(found, return_annotation=result)

        @functools.wraps(function)
        def call(*args: Arguments.args, **given: Arguments.kwargs) -> Result:
            bind(function, signature, *args, **given)
            return function(settings(*args, **given))

        call.__signature__ = signature  # type: ignore[attr-defined]
        call.__doc__ = _add_arguments(inspect.getdoc(function) or "", settings, found)
        return call

    return decorate


def bind(
    function: Callable[..., Any], signature: inspect.Signature, /, *args: Any, **given: Any
) -> inspect.BoundArguments:
    """Raises TypeError, with the name of the function, for arguments that it does not take."""
    try:
        return signature.bind(*args, **given)
    except TypeError as error:
        raise TypeError(f"{function.__name__}() {error}") from None


def select(kind: Callable[..., Settings], given: object, **others: Any) -> Settings:
    """Smaller settings from the fields of the same names in larger ones, and `others`."""
    names = (one.name for one in fields(kind) if one.init)  # type: ignore[arg-type]
    same = {name: getattr(given, name) for name in names if hasattr(given, name)}
    return kind(**{**same, **others})


def _parameters(settings: Any) -> list[inspect.Parameter]:
    """Positional ones first, then the class's own before those of its bases."""
    found = inspect.signature(settings).parameters
    own = [name for kind in settings.__mro__ for name in vars(kind).get("__annotations__", ())]
    order = {name: number for number, name in reversed([*enumerate(own)])}
    return sorted(found.values(), key=lambda one: (one.kind, order[one.name]))


def _add_arguments(text: str, settings: Any, found: list[inspect.Parameter]) -> str:
    texts: Mapping[str, str] = dict(_documented(settings))
    block = "Args:\n" + "".join(texts[one.name] for one in found if one.name in texts)
    parts = _SECTION.split(f"{text}\n", maxsplit=1)
    return "\n".join([parts[0].rstrip() + "\n", block, *parts[1:]]).rstrip()


def _documented(settings: Any) -> Iterator[tuple[str, str]]:
    """The text of each argument; a class overrides those of its bases."""
    for kind in reversed(settings.__mro__):
        if kind is not object and "Args:\n" in (text := inspect.getdoc(kind) or ""):
            for match in _ARGUMENT.finditer(text.partition("Args:\n")[2] + "\n"):
                yield match[1], match[0]
