"""A container that may use two of sixty-four cores trains with two threads."""

from collections.abc import Iterator

import pytest
import torch

from clew.base.cpu import leave_slow_kernels
from clew.engine.plan import limit_threads


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


@pytest.mark.parametrize(
    ("machine", "capability", "is_left"),
    [("aarch64", "DEFAULT", True), ("aarch64", "SVE256", False), ("x86_64", "DEFAULT", False)],
)
def test_onednn_is_left_only_on_arm_without_vectors(
    monkeypatch: pytest.MonkeyPatch, machine: str, capability: str, is_left: bool
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    before = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = True
    try:
        leave_slow_kernels()
        assert torch.backends.mkldnn.enabled != is_left
    finally:
        torch.backends.mkldnn.enabled = before
