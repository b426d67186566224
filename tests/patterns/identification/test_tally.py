"""Which photos are shown when not all are."""

from pathlib import Path

from clew.patterns.identification.results import Identified, Tally, share_out


def make_tally(counts: dict[str, int], doubtful: int) -> Tally:
    tally = Tally(list(counts))
    labels = [(label, False) for label, count in counts.items() for _ in range(count)]
    labels += [(next(iter(counts)), True)] * doubtful
    for place, (label, is_doubtful) in enumerate(labels):
        best = ((label, 0.5 if is_doubtful else 0.99 - place / 1000),)
        tally.add(Identified(name="a", path=Path("a"), best=best, doubtful=is_doubtful), place)
    return tally


def test_doubtful_photos_come_first_then_the_least_confident_of_each_class() -> None:
    groups = make_tally({"a": 3, "b": 0, "c": 2}, doubtful=2).groups(most=100)
    assert [(group.label, group.count) for group in groups] == [(None, 2), ("a", 3), ("c", 2)]
    assert groups[1].places.tolist() == [2, 1, 0]


def test_doubtful_photos_get_half_of_the_room() -> None:
    groups = make_tally({"a": 50, "b": 3}, doubtful=40).groups(most=20)
    assert [len(group.places) for group in groups] == [10, 7, 3]
    assert [group.count for group in groups] == [40, 50, 3]
    alone = make_tally({"a": 2}, doubtful=40).groups(most=20)
    assert [len(group.places) for group in alone] == [18, 2]
    assert [len(group.places) for group in make_tally({"a": 2}, doubtful=1).groups(most=0)] == [
        0,
        0,
    ]


def test_shares_fill_the_room_and_no_more() -> None:
    assert share_out([5, 1, 9], 9) == [4, 1, 4]
    assert share_out([5, 1, 9], 100) == [5, 1, 9]
    assert sum(share_out([7] * 30, 10)) == 10
    assert share_out([], 4) == []
