"""Splits: no question in two, classes in proportion, nothing moves when data is added."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from clew.base.errors import InputError
from clew.hallucination.samples.splits import (
    Splits,
    assign_splits,
    assign_splits_by_file,
    count_files,
    count_labels,
    find_thin_splits,
    hash_place,
    read_splits,
    write_splits,
)
from clew.loading.splits import Shares, parse_split

SHARES = Shares()


def make_labels(count: int, seed: int = 0, wrong: float = 0.6) -> np.ndarray:
    return (np.random.default_rng(seed).random(count) < wrong).astype(np.float32)


def make_ids(count: int, seed: int = 0) -> list[str]:
    return [f"question {seed}-{number}" for number in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("count", [40, 400, 3000])
@pytest.mark.parametrize("text", ["70/15/15", "80/10/10", "50/50/0", "34/33/33"])
def test_every_class_has_its_share_of_every_split(text: str, count: int, seed: int) -> None:
    shares, labels = parse_split(text), make_labels(count, seed, wrong=0.3)
    splits = assign_splits(make_ids(count, seed), None, labels, shares=shares)
    counts = count_labels(splits, labels)
    expected = np.outer(tuple(shares), counts.sum(0))
    assert np.abs(counts - expected).max() <= 2
    assert counts.sum() == count


def test_most_questions_are_where_their_hash_puts_them() -> None:
    ids, labels = make_ids(5000), make_labels(5000)
    splits = assign_splits(ids, None, labels, shares=SHARES)
    own = np.mean([SHARES.pick(hash_place(i)) == s for i, s in zip(ids, splits, strict=True)])
    assert own > 0.9


def test_new_questions_do_not_move_existing_ones() -> None:
    ids, labels = make_ids(600), make_labels(600)
    whole = assign_splits(ids, None, labels, shares=SHARES)
    for count in (0, 1, 57, 300, 599):
        part = assign_splits(ids[:count], None, labels[:count], shares=SHARES)
        np.testing.assert_array_equal(part, whole[:count])


def test_order_of_the_rows_does_not_matter() -> None:
    ids, labels = make_ids(300), make_labels(300)
    mixed = np.random.default_rng(1).permutation(300)
    expected = assign_splits(ids, None, labels, shares=SHARES)
    found = assign_splits([ids[i] for i in mixed], None, labels[mixed], shares=SHARES, order=mixed)
    np.testing.assert_array_equal(found, expected[mixed])


def test_other_labels_leave_most_questions_in_their_split() -> None:
    ids = make_ids(2000)
    one, other = (
        assign_splits(ids, None, make_labels(2000, seed), shares=SHARES) for seed in (1, 2)
    )
    assert (one == other).mean() > 0.8


def test_rows_of_a_question_stay_together_by_id_and_by_text() -> None:
    ids = [f"q{number // 3}" for number in range(300)]
    texts = [f"Text {number}" for number in range(300)]
    texts[4], texts[250] = "What is  the ÉTÉ?", "what is ete"
    splits = assign_splits(ids, texts, make_labels(300), shares=SHARES)
    groups = splits.reshape(100, 3)
    assert (groups == groups[:, :1]).all()
    assert groups[1, 0] == groups[83, 0]
    assert set(splits.tolist()) == {0, 1, 2}


@pytest.mark.parametrize("nothing", [None, "", "   "])
def test_questions_without_text_are_grouped_by_id(nothing: str | None) -> None:
    ids, labels = make_ids(200), make_labels(200)
    splits = assign_splits(ids, [nothing] * 200, labels, shares=SHARES)
    np.testing.assert_array_equal(splits, assign_splits(ids, None, labels, shares=SHARES))


def test_groups_of_any_size_keep_the_shares() -> None:
    random = np.random.default_rng(3)
    ids = np.repeat(make_ids(400), random.integers(1, 12, 400)).tolist()
    labels = make_labels(len(ids))
    counts = count_labels(assign_splits(ids, None, labels, shares=SHARES), labels)
    expected = np.outer(tuple(SHARES), counts.sum(0))
    assert np.abs(counts - expected).max() < 0.03 * len(ids)


def test_previous_splits_are_kept() -> None:
    ids, labels = make_ids(100), make_labels(100)
    previous = {name: "test" for name in ids[:30]}
    splits = assign_splits(ids, None, labels, shares=SHARES, previous=previous)
    assert (splits[:30] == 2).all()
    assert np.bincount(splits[30:], minlength=3)[2] == 0
    # A new spelling of an old question goes where the old one is.
    texts = [f"text {number}" for number in range(99)] + ["Text 5"]
    splits = assign_splits(ids, texts, labels, shares=SHARES, previous=previous)
    assert splits[99] == 2


def test_split_may_be_empty() -> None:
    splits = assign_splits(make_ids(50), None, make_labels(50), shares=parse_split("100/0/0"))
    assert set(splits.tolist()) == {0}


@pytest.mark.parametrize("text", ["70/15/15", "0.7/0.15/0.15", " 70 / 15 / 15 ", "70.0/15/15"])
def test_shares_can_be_percentages_or_fractions(text: str) -> None:
    assert str(parse_split(text)) == "70/15/15"


@pytest.mark.parametrize(
    "text", ["70/30", "70/15/16", "a/b/c", "", "-10/55/55", "nan/50/50", "inf/0/0", "1/2/3/4"]
)
def test_invalid_shares_are_rejected(text: str) -> None:
    with pytest.raises(InputError, match='split is .* such as `split="70/15/15"`'):
        parse_split(text)


@pytest.mark.parametrize(
    ("files", "shares", "expected"),
    [
        (44, "70/15/15", [31, 6, 7]),
        (3, "70/15/15", [1, 1, 1]),
        (4, "70/15/15", [2, 1, 1]),
        (10, "80/20/0", [8, 2, 0]),
        (2, "98/0/2", [1, 0, 1]),
    ],
)
def test_files_per_split_are_rounded_to_the_total(
    files: int, shares: str, expected: list[int]
) -> None:
    assert count_files(files, parse_split(shares)) == expected


def test_duplicate_question_follows_its_first_file_when_splitting_by_file() -> None:
    batches = np.repeat(np.arange(44), 10)
    ids = make_ids(440)
    ids[435] = ids[3]
    split, moved = assign_splits_by_file(batches, ids, None, shares=SHARES)
    expected = np.repeat([0, 1, 2], [310, 60, 70])
    expected[435] = 0
    np.testing.assert_array_equal(split, expected)
    assert moved == 1


def test_new_duplicate_follows_hand_edited_split_when_splitting_by_file() -> None:
    ids, texts = ["a", "b", "c", "again"], ["who?", "where?", "when?", "Who"]
    split, _ = assign_splits_by_file(
        [0, 1, 2, 3], ids, texts, shares=SHARES, previous={"a": "test", "b": "validation"}
    )
    assert split[3] == split[0] == 2


def test_new_files_do_not_move_existing_ones_when_splitting_by_file() -> None:
    ids = make_ids(500)
    first, _ = assign_splits_by_file(np.repeat(np.arange(44), 10), ids[:440], None, shares=SHARES)
    names = np.array(["train", "validation", "test"])[first]
    previous = dict(zip(ids[:440], names.tolist(), strict=True))
    grown, _ = assign_splits_by_file(
        np.repeat(np.arange(50), 10), ids, None, shares=SHARES, previous=previous
    )
    np.testing.assert_array_equal(grown[:440], first)
    assert np.bincount(grown).tolist() == [350, 80, 70]


def make_table() -> Splits:
    return Splits(
        global_example_id=np.array([3, 0, 7]),
        question_id=pa.array(["007", 'a,"b"\nñ', ""]),
        split=np.array([0, 1, 2], np.uint8),
        label=np.array([0, 1, 1], np.float32),
        score=np.array([1, 0.1, 1 / 3], np.float32),
    )


def test_splits_survive_a_round_trip(tmp_path: Path) -> None:
    table, path = make_table(), tmp_path / "splits.csv"
    write_splits(path, table)
    assert path.read_text().splitlines()[:2] == [
        "global_example_id,question_id,split,label,score",
        "3,007,train,0,1",
    ]
    found = read_splits(path)
    assert found.question_id.to_pylist() == table.question_id.to_pylist()
    for name in ("global_example_id", "split", "label", "score"):
        np.testing.assert_array_equal(getattr(found, name), getattr(table, name), strict=True)


def test_file_edited_by_hand_is_read(tmp_path: Path) -> None:
    """A byte order mark, other line endings, another column order, extra columns, other split
    names."""
    path = tmp_path / "splits.csv"
    rows = [
        "score,split,note,question_id,global_example_id,label",
        "0.5,Val,x,1,4,0",
        "1,dev,,2,5,1",
    ]
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(rows).encode())
    found = read_splits(path)
    assert (found.split.tolist(), found.question_id.to_pylist()) == ([1, 1], ["1", "2"])


HEADER = "global_example_id,question_id,split,label,score\n"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "is truncated or malformed"),
        ("a,b\n1,2\n", 'has no column "global_example_id"; it has: a, b'),
        (HEADER + "0,q,train,0,1\n1,r,trian,0,1\n", "line 3: unknown split 'trian': use"),
        (HEADER + "0,q,train,0,1\n1,r,te", "is truncated or malformed"),
        (HEADER + "0,q,train,0,1\n1,r,test,0,\n", 'line 3 has no "score"'),
        (HEADER + "0,q,train,0,1\n0,r,test,0,1\n", "line 3 repeats the global_example_id"),
        (HEADER + "0,q,train,0.5,1\n", "line 2 has a label that is neither 0 nor 1"),
        (HEADER + "x,q,train,0,1\n", "is truncated or malformed"),
        (HEADER.replace(",", ":") + "0:q:train:0:1\n", 'has no column "global_example_id"'),
    ],
)
def test_malformed_file_is_rejected_with_the_line(
    tmp_path: Path, content: str, sentence: str
) -> None:
    path = tmp_path / "splits.csv"
    path.write_text(content)
    with pytest.raises(InputError, match=sentence):
        read_splits(path)


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match='there is no ".*splits.csv": create it with "clew prep'):
        read_splits(tmp_path / "splits.csv")


def test_question_in_two_splits_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "splits.csv"
    path.write_text(HEADER + "0,q,train,0,1\n1,q,test,0,1\n")
    with pytest.raises(InputError, match="has question 'q' in train and in test"):
        read_splits(path).by_question(path)


def test_split_without_both_classes_is_named() -> None:
    counts = np.array([[5, 5], [2, 0], [0, 0]])
    [first, second] = find_thin_splits(counts, tuple(SHARES))
    assert first.startswith(
        "the validation split (2 answers in total) has no hallucinated answers,"
    )
    assert second.startswith(
        "the test split (0 answers in total) has no correct or hallucinated answers,"
    )
    assert not find_thin_splits(counts[[0, 0, 2]], (0.5, 0.5, 0))
