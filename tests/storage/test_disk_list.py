"""A list on disk gives back its items, in any thread and in another process."""

import pickle

import pytest

from clew.storage.disk_list import DiskList


def test_items_come_back_in_order_while_more_are_added() -> None:
    items = DiskList([{"text": "ä", "tokens": [1, 2]}])
    items.append("second")
    assert items == items[:] == [{"text": "ä", "tokens": [1, 2]}, "second"]
    items.append(3)
    assert (len(items), items[-1], items[1:]) == (3, 3, ["second", 3])
    with pytest.raises(IndexError):
        items[3]


def test_another_process_gets_all_items() -> None:
    assert pickle.loads(pickle.dumps(DiskList(range(5))))[:] == [0, 1, 2, 3, 4]
