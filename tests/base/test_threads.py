"""Work in threads keeps its order, runs a bounded number of items ahead, and ends with its user."""

import threading
from collections.abc import Iterator

import pytest

from clew.base.cores import map_in_threads


def test_results_come_in_the_order_of_the_items() -> None:
    assert list(map_in_threads(lambda n: n * n, range(50), 3)) == [n * n for n in range(50)]


def test_no_more_items_run_ahead_than_allowed() -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for number in range(100):
            taken.append(number)
            yield number

    results = map_in_threads(lambda n: n, items(), 2, ahead=5)
    assert next(results) == 0
    assert len(taken) == 6
    results.close()


def test_error_is_raised_in_the_order_of_the_items() -> None:
    results = map_in_threads(lambda n: 1 // (2 - n), range(5), 2)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_stopping_early_leaves_no_thread_behind() -> None:
    results = map_in_threads(lambda n: n, range(100), 2)
    next(results)
    results.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("clew-map")]
