"""The order of an epoch: how well it is shuffled, and how it is split."""

import numpy as np
import pytest

from clew.base.errors import InputError
from clew.datasets import Rank
from clew.loading.order import buffered_order, deal_batches, deal_shards, global_order

COUNT = 5_000
SHARDS = np.repeat(np.arange(50), 100)


def correlation(order: np.ndarray, what: np.ndarray) -> float:
    return float(np.corrcoef(np.arange(len(order)), what[order])[0, 1])


@pytest.mark.parametrize("epoch", range(3))
def test_global_shuffle_leaves_no_trace_of_position_or_shard(epoch: int) -> None:
    order = global_order(COUNT, seed=0, epoch=epoch)
    assert sorted(order) == list(range(COUNT))
    assert abs(correlation(order, np.arange(COUNT))) < 0.07  # five standard deviations
    assert abs(correlation(order, SHARDS)) < 0.07
    neighbors = np.mean(SHARDS[order][1:] == SHARDS[order][:-1])
    assert neighbors < 0.04  # 0.02 by chance


def test_orders_of_epochs_and_seeds_are_independent() -> None:
    one = global_order(COUNT, seed=0, epoch=0)
    for seed, epoch in ((0, 1), (1, 0), (1, 1)):
        other = global_order(COUNT, seed=seed, epoch=epoch)
        assert abs(np.corrcoef(one, other)[0, 1]) < 0.07
    np.testing.assert_array_equal(one, global_order(COUNT, seed=0, epoch=0))


@pytest.mark.parametrize("buffer", [1, 2, 37, 250, 4_999])
def test_buffer_moves_no_sample_further_than_its_size(buffer: int) -> None:
    order = buffered_order(SHARDS, buffer, seed=3, epoch=1)
    assert sorted(order) == list(range(COUNT))
    at = np.empty(COUNT, np.int64)
    at[order] = np.arange(COUNT)
    # Where a sample would come if the shards came one after the other, unshuffled.
    mean_place = [at[shard == SHARDS].mean() for shard in range(50)]
    turn = np.argsort(np.argsort(mean_place))
    own = turn[SHARDS] * 100 + np.arange(COUNT) % 100
    if buffer <= 250:  # beyond that, the order of the shards can no longer be recovered
        assert np.abs(at - own).max() <= buffer


def test_buffer_shuffles_locally_and_takes_shards_in_random_order() -> None:
    order = buffered_order(SHARDS, 250, seed=0, epoch=0)
    assert abs(correlation(order, np.arange(COUNT))) < 0.5
    assert len(set(SHARDS[order[:100]])) >= 2
    assert np.mean(np.diff(order) == 1) < 0.1
    other = buffered_order(SHARDS, 250, seed=0, epoch=1)
    assert SHARDS[order[:50]].tolist() != SHARDS[other[:50]].tolist()


def test_buffer_as_large_as_the_data_is_a_global_shuffle() -> None:
    for buffer in (COUNT, 10 * COUNT):
        np.testing.assert_array_equal(
            buffered_order(SHARDS, buffer, seed=2, epoch=4), global_order(COUNT, seed=2, epoch=4)
        )


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 105])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_together_take_every_sample_once(count: int, ranks: int) -> None:
    order = global_order(count, seed=0, epoch=0)
    shares = [Rank(number=r, count=ranks).share_all(order, 4) for r in range(ranks)]
    assert sorted(np.concatenate(shares)) == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_workers_take_batches_or_shards_in_turn() -> None:
    order = np.arange(10)
    assert deal_batches(order, 3, 0, 2).tolist() == [0, 1, 2, 6, 7, 8]
    assert deal_batches(order, 3, 1, 2).tolist() == [3, 4, 5, 9]
    shards = np.array([4, 4, 7, 7, 9, 9, 9, 30, 30, 30])  # a split need not have all of them
    assert deal_shards(order, shards, 0, 2).tolist() == [0, 1, 4, 5, 6]
    assert deal_shards(order, shards, 1, 2).tolist() == [2, 3, 7, 8, 9]


@pytest.mark.parametrize(("number", "count"), [(2, 2), (-1, 2), (0, 0)])
def test_invalid_rank_is_refused(number: int, count: int) -> None:
    with pytest.raises(
        InputError, match=f"rank {number} of {count} does not exist: ranks count from 0"
    ):
        Rank(number=number, count=count)
