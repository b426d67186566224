"""Random numbers: seeded at the start of every epoch, and saved in the middle of one."""

import math
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor


def seed_epoch(seed: int, epoch: int, rank: int = 0) -> int:
    """Seeds all random number generators for an epoch, differently per process. Returns the
    seed."""
    words = np.random.SeedSequence([seed, epoch, rank]).generate_state(2, np.uint32)
    derived = int(words[0]) << 31 | int(words[1]) >> 1
    random.seed(derived)
    np.random.seed(int(words[0]))
    torch.manual_seed(derived)
    return derived


def random_state(device: torch.device) -> dict[str, Tensor]:
    """The random states of Python, NumPy and PyTorch."""
    _, keys, place, has_gauss, cached = np.random.get_state(legacy=True)
    _, words, gauss = random.getstate()
    state = {
        "torch": torch.get_rng_state(),
        "python": torch.tensor(words, dtype=torch.int64),
        "numpy": torch.tensor([*np.asarray(keys).tolist(), place, has_gauss], dtype=torch.int64),
        # Both draw normal numbers in pairs and keep the second for later.
        "gauss": torch.tensor([cached, math.nan if gauss is None else gauss], dtype=torch.float64),
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def check_random_state(state: Mapping[str, Tensor], device: torch.device) -> None:
    """Check that a saved random state can be restored. Raises ValueError."""
    for name, known in random_state(device).items():
        saved = state.get(name)
        if saved is None and name == "cuda":
            continue
        if saved is None:
            raise ValueError(f"its random state of {name} is missing")
        if (saved.shape, saved.dtype) != (known.shape, known.dtype):
            raise ValueError(
                f"its random state of {name} has shape {list(saved.shape)} and type {saved.dtype} "
                f"instead of {list(known.shape)} and {known.dtype}"
            )
    *keys, place, has_gauss = state["numpy"].tolist()
    in_range = min(keys) >= 0 and max(keys) < 2**32 and 0 <= place <= len(keys)
    if not in_range or has_gauss not in (0, 1):  # NumPy would read beyond its own memory
        raise ValueError("the random state of NumPy is invalid")
    try:
        torch.Generator().set_state(state["torch"])
        random.Random().setstate((random.getstate()[0], tuple(state["python"].tolist()), None))
    except (RuntimeError, OverflowError) as error:
        raise ValueError(f"its random state is invalid ({error})") from None


def restore_random_state(state: Mapping[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(state["torch"])
    cached, gauss = state["gauss"].tolist()
    version, words = random.getstate()[0], tuple(state["python"].tolist())
    random.setstate((version, words, None if math.isnan(gauss) else gauss))
    *keys, place, has_gauss = state["numpy"].tolist()
    np.random.set_state(("MT19937", np.array(keys, np.uint32), place, has_gauss, cached))
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)


@contextmanager
def same_random_numbers(device: torch.device) -> Iterator[None]:
    """Restore the random state at the end, so that the block does not change later random
    numbers."""
    before = random_state(device)
    try:
        yield
    finally:
        restore_random_state(before, device)


def seed_generators(batches: Any, seed: int) -> None:
    """Seed the generators that PyTorch's loaders and samplers may have."""
    batch_sampler = getattr(batches, "batch_sampler", None)
    owners = (
        batches,
        getattr(batches, "sampler", None),
        batch_sampler,
        getattr(batch_sampler, "sampler", None),
    )
    for owner in owners:
        generator = getattr(owner, "generator", None)
        if isinstance(generator, torch.Generator):
            generator.manual_seed(seed)
