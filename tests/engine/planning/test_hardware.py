"""A container that may use two of sixty-four cores trains with two threads."""

from collections.abc import Iterator

import pytest
import torch

from clew.engine.planning.hardware import limit_threads


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("cores", "used"), [(1, 1), (2, 2), (64, 4)])
def test_threads_do_not_exceed_cores(cores: int, used: int) -> None:
    limit_threads(cores)
    assert torch.get_num_threads() == used
