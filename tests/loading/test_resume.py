"""Resuming in the middle of an epoch, with and without torchdata's StatefulDataLoader."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import clear_frames
from typing import Any

import pytest
from torch.utils.data import DataLoader

from clew.base.errors import InputError
from clew.datasets import PreprocessedGNNDataset, PreprocessedLSTMDataset
from tests.loading.reading import COUNT, assert_same_batches, flat, places_of

torchdata = pytest.importorskip("torchdata.stateful_dataloader")

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),  # by torchdata
]


@contextmanager
def refused_by_workers(match: str) -> Iterator[None]:
    """PyTorch waits 10 s for its workers if only the garbage collector finds their error."""
    with pytest.raises(InputError, match=match) as caught:
        yield
    clear_frames(caught.tb)


def stateful(samples: Path, workers: int, **options: Any) -> Any:
    dataset = PreprocessedLSTMDataset(samples, batch_size=8)
    return torchdata.StatefulDataLoader(dataset, batch_size=8, num_workers=workers, **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "taken"), [(0, 1), (0, 6), (0, 13), (0, 14), (2, 1), (2, 5), (2, 14), (4, 2)]
)
def test_resume_gives_the_rest_of_the_epoch_and_then_the_next(
    samples: Path, workers: int, taken: int
) -> None:
    loader = stateful(samples, workers)
    batches = iter(loader)
    before = [next(batches)["index"].tolist() for _ in range(taken)]
    state = loader.state_dict()
    rest, following = places_of(batches), places_of(loader)
    assert sorted(flat(before + rest)) == list(range(COUNT))

    other = stateful(samples, workers)
    other.load_state_dict(state)
    assert places_of(other) == rest
    assert places_of(other) == following


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_dataset_resumes_between_two_epochs(samples: Path, workers: int) -> None:
    loader = stateful(samples, workers)
    first = places_of(loader)
    state = loader.state_dict()
    second = places_of(loader)
    assert first != second

    other = stateful(samples, workers)
    other.load_state_dict(state)
    assert places_of(other) == second


@pytest.mark.slow
def test_dataset_resumes_with_persistent_workers(samples: Path) -> None:
    loader = stateful(samples, 2, persistent_workers=True)
    places_of(loader)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    state = loader.state_dict()
    rest, following = places_of(batches), places_of(loader)

    other = stateful(samples, 2, persistent_workers=True)
    other.load_state_dict(state)
    assert [places_of(other), places_of(other)] == [rest, following]


@pytest.mark.slow
def test_without_a_batch_size_each_worker_resumes_in_its_own_shards(samples: Path) -> None:
    def plain() -> Any:
        dataset = PreprocessedLSTMDataset(samples)
        return torchdata.StatefulDataLoader(dataset, batch_size=8, num_workers=2)

    loader = plain()
    batches = iter(loader)
    before = [next(batches)["index"].tolist() for _ in range(3)]
    state = loader.state_dict()
    rest, following = places_of(batches), places_of(loader)
    assert sorted(flat(before + rest)) == list(range(COUNT))
    other = plain()
    other.load_state_dict(state)
    assert [places_of(other), places_of(other)] == [rest, following]


@pytest.mark.slow
def test_graph_dataset_resumes(samples: Path) -> None:
    loader = torchdata.StatefulDataLoader(PreprocessedGNNDataset(samples), batch_size=8)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    rest = list(batches)
    other = torchdata.StatefulDataLoader(PreprocessedGNNDataset(samples), batch_size=8)
    other.load_state_dict(state)
    assert_same_batches(list(other), rest)


def test_dataset_itself_resumes(samples: Path) -> None:
    dataset = PreprocessedLSTMDataset(samples)
    list(dataset)
    stream = iter(dataset)
    for _ in range(40):
        next(stream)
    state = dataset.state_dict()
    rest = [int(sample["index"]) for sample in stream]
    following = [int(sample["index"]) for sample in dataset]

    other = PreprocessedLSTMDataset(samples)
    other.load_state_dict(state)
    assert other.state_dict() == state
    assert [int(sample["index"]) for sample in other] == rest
    assert [int(sample["index"]) for sample in other] == following


def test_position_of_pytorch_workers_cannot_be_saved(samples: Path) -> None:
    dataset = PreprocessedLSTMDataset(samples)
    next(iter(DataLoader(dataset, batch_size=8, num_workers=2)))
    with pytest.raises(InputError, match="read by worker processes.*StatefulDataLoader"):
        dataset.state_dict()


def test_iterator_resumes_by_itself(samples: Path) -> None:
    stream = iter(PreprocessedLSTMDataset(samples))
    for _ in range(33):
        next(stream)
    state = stream.state_dict()
    other = iter(PreprocessedLSTMDataset(samples))
    next(other)
    other.load_state_dict(state)
    assert [int(s["index"]) for s in other] == [int(s["index"]) for s in stream]


def saved_halfway(samples: Path, workers: int = 0) -> dict[str, Any]:
    loader = stateful(samples, workers)
    batches = iter(loader)
    for _ in range(4):
        next(batches)
    return loader.dataset.state_dict() if not workers else loader.state_dict()


def test_pytorch_workers_cannot_resume_the_position_of_one_process(samples: Path) -> None:
    """Each would skip that many of its own samples, in every following epoch."""
    dataset = PreprocessedLSTMDataset(samples)
    dataset.load_state_dict(saved_halfway(samples))
    with refused_by_workers(r"StatefulDataLoader|num_workers=0"):
        places_of(DataLoader(dataset, batch_size=8, num_workers=2))


@pytest.mark.parametrize("options", [{"seed": 1}, {"split": "train"}, {"shuffle_buffer_size": 3}])
def test_position_in_another_order_is_refused(samples: Path, options: dict[str, Any]) -> None:
    dataset = PreprocessedLSTMDataset(samples, **options)
    with pytest.raises(InputError, match="the saved position belongs to"):
        dataset.load_state_dict(saved_halfway(samples))


@pytest.mark.slow
def test_workers_with_another_batch_size_are_refused(samples: Path) -> None:
    """They split the epoch by batches: what each has read would no longer be its own."""
    state = saved_halfway(samples, workers=2)
    dataset = PreprocessedLSTMDataset(samples, batch_size=4)
    loader = torchdata.StatefulDataLoader(dataset, batch_size=4, num_workers=2)
    loader.load_state_dict(state)
    with refused_by_workers(r"batches of 8, .* the same dataset batch_size"):
        places_of(loader)
