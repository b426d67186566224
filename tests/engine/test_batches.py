"""Batches of every kind, and a feed that can start anywhere in an epoch."""

from collections import namedtuple
from typing import Any

import pytest
import torch

from clew.base.errors import InputError
from clew.datasets import Loader
from clew.engine.feed import Feed, Position, count_samples, map_tensors, named_tensors, sample_names
from tests.engine.learning import Samples, torch_loader

Pair = namedtuple("Pair", ["x", "y"])
X = torch.ones(4, 3)


@pytest.mark.parametrize(
    ("batch", "names"),
    [
        ({"x": X, "label": torch.ones(4), "question_id": ["a", "b", "c", "d"]}, ["x", "label"]),
        ((X, torch.ones(4)), ["0", "1"]),
        ([X, ["a", "b", "c", "d"]], ["0"]),
        (Pair(X, torch.ones(4)), ["0", "1"]),
        ((7, {"x": X}), ["x"]),
        (X, [""]),
    ],
)
def test_every_tensor_is_found_and_moved(batch: Any, names: list[str]) -> None:
    assert [name for name, _ in named_tensors(batch)] == names
    doubled = map_tensors(batch, lambda tensor: tensor * 2)
    assert type(doubled) is type(batch)
    for (_, old), (_, new) in zip(named_tensors(batch), named_tensors(doubled), strict=True):
        assert torch.equal(new, old * 2)
    assert count_samples(batch) == 4


def test_pyg_batch_is_moved_and_counted_by_samples() -> None:
    from torch_geometric.data import Batch, Data

    batch = Batch.from_data_list([Data(x=torch.ones(n, 2)) for n in (3, 4)])
    batch.label, batch.question_id = torch.zeros(1), ["q1"]
    doubled = map_tensors(batch, lambda tensor: tensor * 2)
    assert (doubled.x.sum(), batch.x.sum()) == (28, 14)
    assert doubled.question_id == ["q1"]
    assert (count_samples(batch), sample_names(batch)) == (1, ["q1"])


def test_names_are_ids_or_else_indices() -> None:
    assert sample_names({"index": torch.tensor([3, 5])}) == ["3", "5"]
    assert sample_names({"question_id": ["a"], "index": torch.tensor([3])}) == ["a"]
    assert sample_names((X,)) == []


def test_batch_without_tensors_is_refused() -> None:
    with pytest.raises(InputError, match="a batch of type dict contains no tensors"):
        count_samples({"question_id": ["a"]})


def feed_over(batches: Any, grad_accum: int = 2) -> Feed:
    return Feed(batches, device=torch.device("cpu"), grad_accum=grad_accum, seed=1)


def rest(feed: Feed) -> list[list[int]]:
    groups = []
    while (group := feed.next_group()) is not None:
        groups.append([i for batch in group.batches for i in batch["index"].tolist()])
    return groups


@pytest.mark.parametrize("kind", ["clew", "torch"])
@pytest.mark.parametrize("taken", [0, 1, 3])
def test_epoch_resumes_from_any_position(kind: str, taken: int) -> None:
    def batches() -> Any:
        if kind == "clew":
            return Loader(Samples(50), 8, shuffle=True, seed=1)
        return torch_loader(Samples(50), 8, shuffle=True)

    feed = feed_over(batches())
    feed.open(Position(epoch=2))
    for _ in range(taken):
        feed.next_group()
    position = feed.position()
    expected = rest(feed)
    assert len(expected) == feed.groups_an_epoch - taken

    other = feed_over(batches())
    other.open(position)
    assert rest(other) == expected
    other.open(Position(epoch=2, samples=position.samples))  # even without the loader's state
    assert rest(other) == expected
    other.open(Position(epoch=3))
    following = rest(other)
    assert len(following) == feed.groups_an_epoch
    assert following[-1] != expected[-1]


def test_position_beyond_the_epoch_is_refused() -> None:
    with pytest.raises(InputError, match="90 samples of epoch 1 were already used, but"):
        feed_over(torch_loader(Samples(50), 8)).open(Position(epoch=0, samples=90))
