"""Answers are applied at once, noted, undone; nothing is asked twice, nothing is lost."""

import json
import re
from pathlib import Path

import pytest

from clew.base.errors import InputError, StoreError, StoreLockedError
from clew.cli.errors import call_text
from clew.patterns.library.choose import choose_model
from clew.patterns.library.pattern_set import PatternSet
from clew.patterns.review import open_review
from clew.patterns.review.journal import DecisionJournal, digest_file
from clew.patterns.settings import ReviewSettings
from tests.patterns.review.making import (
    NAMES,
    identify,
    list_photos,
    make_model,
    reviewing,
    save_photo,
)

FIRST = ["cat/first.png", "dog/first.png", "fox/first.png"]


def test_photos_are_copied_into_the_right_class_at_once(animals: PatternSet, photos: Path) -> None:
    with reviewing(animals) as review:
        assert [question.name for question in review.queue.questions] == list(NAMES)
        assert review.approve().action == "approved"
        assert (animals.photos / "cat/a.png").read_bytes() == (photos / "a.png").read_bytes()
        assert review.correct("fox").action == "corrected"
        assert review.correct("  FOX ").action == "approved"  # c.png was predicted as one
        review.skip()
        assert review.current is None and review.counts().total() == 4
    added = {"cat/a.png", "fox/c.png", f"fox/{NAMES[1]}"}
    assert set(list_photos(animals.photos)) == {*FIRST, *added}
    assert list_photos(photos) == sorted(NAMES)


def test_no_photo_is_asked_about_twice(animals: PatternSet, photos: Path) -> None:
    with reviewing(animals) as review:
        review.approve()
        review.skip()
    (photos / "a.png").rename(photos / "renamed.png")
    identify(animals.folder, photos, names=("renamed.png", *NAMES[1:]))  # identified again
    with reviewing(animals) as review:
        assert [question.name for question in review.queue.questions] == list(NAMES[2:])
        assert (review.queue.decided, review.queue.skipped) == (1, 1)


def test_the_review_says_what_waits_behind_it(animals: PatternSet, tmp_path: Path) -> None:
    save_photo(tmp_path / "newer" / "new.png", 77)
    identify(animals.folder, tmp_path / "newer", names=("new.png",))
    with reviewing(animals) as review:
        waiting = f"waiting behind these: {len(NAMES)} photos of earlier identifications"
        assert waiting in review.queue.tell(str)
        review.approve()
        assert any(f"{len(NAMES)} photos of earlier" in line for line in review.tell_end(str))
    with reviewing(animals) as review:
        assert len(review.queue.questions) == len(NAMES) and not review.queue.behind


def test_photos_moved_by_a_review_count_as_decided(animals: PatternSet) -> None:
    with reviewing(animals, move=True) as review:
        review.approve()
    for every in (False, True):
        with reviewing(animals, every=every) as review:
            assert (review.queue.decided, review.queue.gone) == (1, ())


def test_option_all_also_asks_about_confident_and_skipped_photos(
    animals: PatternSet, photos: Path
) -> None:
    identify(animals.folder, photos, sure=NAMES[:2])
    with reviewing(animals) as review:
        assert [question.name for question in review.queue.questions] == list(NAMES[2:])
        assert review.queue.sure == 2
        review.skip()
        review.approve()
    with reviewing(animals, every=True) as review:
        asked = {question.name for question in review.queue.questions}
        assert asked == {*NAMES[:2], "sub folder/c.png"} and review.queue.sure == 0


def test_missing_and_faulty_photos_are_named(animals: PatternSet, photos: Path) -> None:
    (photos / "a.png").unlink()
    with reviewing(animals) as review:
        assert review.queue.gone == ("a.png",) and review.queue.faulty == ("bad.jpg",)


def test_undo_removes_a_copy_and_asks_again(animals: PatternSet) -> None:
    with reviewing(animals) as review:
        review.correct("red panda")
        assert review.new_classes() == {"red panda": 1} and "red panda" in review.classes
        assert review.undo().name == "a.png"
        assert list_photos(animals.photos) == FIRST and "red panda" not in review.classes
        assert not (animals.photos / "red panda").exists()
        review.skip()
        review.undo()
        with pytest.raises(InputError, match="there is nothing to undo"):
            review.undo()
    assert len(DecisionJournal(animals.folder / "review.jsonl")) == 0


def test_moving_deletes_the_original_and_undo_restores_it(
    animals: PatternSet, photos: Path
) -> None:
    before = (photos / "a.png").read_bytes(), (photos / "a.png").stat().st_mtime_ns
    save_photo(animals.photos / "cat" / "a.png", 77)  # another photo has the name
    with reviewing(animals, move=True) as review:
        assert review.approve().target == "cat/a-2.png"
        assert not (photos / "a.png").exists()
        review.undo()
        assert ((photos / "a.png").read_bytes(), (photos / "a.png").stat().st_mtime_ns) == before
        assert "cat/a-2.png" not in list_photos(animals.photos)


def test_undo_overwrites_nothing(animals: PatternSet, photos: Path) -> None:
    with reviewing(animals, move=True) as review:
        review.approve()
        (photos / "a.png").write_text("mine")
        with pytest.raises(InputError, match="is now a different file"):
            review.undo()
        assert review.place == 1 and (animals.photos / "cat/a.png").exists()
    assert (photos / "a.png").read_text() == "mine"


def test_undo_never_deletes_the_last_copy(animals: PatternSet, photos: Path) -> None:
    content = (photos / "a.png").read_bytes()
    with reviewing(animals) as review:
        review.approve()
        (photos / "a.png").unlink()  # tidied up: it was copied, after all
        review.undo()
    assert (photos / "a.png").read_bytes() == content
    assert list_photos(animals.photos) == FIRST


def test_undo_reports_a_missing_photo(animals: PatternSet) -> None:
    with reviewing(animals, move=True) as review:
        review.approve()
        (animals.photos / "cat/a.png").unlink()
        with pytest.raises(InputError, match="no longer exists: it cannot be restored"):
            review.undo()


def test_undo_leaves_a_copy_that_was_changed_since(animals: PatternSet) -> None:
    with reviewing(animals) as review:
        review.approve()
        (animals.photos / "cat/a.png").write_text("mine")
        with pytest.raises(InputError, match="has changed since then, so it is not removed"):
            review.undo()
    assert (animals.photos / "cat/a.png").read_text() == "mine"


def test_photo_already_in_the_class_is_not_copied_again(animals: PatternSet, photos: Path) -> None:
    (animals.photos / "cat" / "same.png").write_bytes((photos / "a.png").read_bytes())
    with reviewing(animals) as review:
        decision = review.approve()
        assert decision.target == "cat/same.png" and "already there" in review.describe_result(
            decision
        )
        review.undo()
        assert (animals.photos / "cat/same.png").exists()  # it was not the review's
        with pytest.raises(InputError, match='is already in the class "cat"'):
            review.correct("dog")


def test_moving_a_photo_already_in_the_class_reports_the_deletion(
    animals: PatternSet, photos: Path
) -> None:
    (animals.photos / "cat" / "same.png").write_bytes((photos / "a.png").read_bytes())
    with reviewing(animals, move=True) as review:
        sentence = review.describe_result(review.approve())
        assert sentence.endswith("cat/same.png; the original was deleted")
        review.undo()
    assert (photos / "a.png").exists() and (animals.photos / "cat/same.png").exists()


def test_photos_of_the_set_itself_are_never_moved_away(animals: PatternSet) -> None:
    identify(animals.folder, animals.photos, names=("cat/first.png",))
    with reviewing(animals, move=True) as review:
        assert not review.approve().moves
    assert list_photos(animals.photos) == FIRST


def test_vanished_photo_can_only_be_skipped(animals: PatternSet, photos: Path) -> None:
    with reviewing(animals) as review:
        (photos / "a.png").unlink()
        with pytest.raises(InputError, match="can no longer be read .* or skip it"):
            review.approve()
        review.skip()
        assert review.current and review.current.name == NAMES[1]
        review.undo()


@pytest.mark.parametrize("label", ["", "a/b", "..", ".hidden", "x" * 300, "tab\there"])
def test_invalid_classes_are_refused(animals: PatternSet, label: str) -> None:
    with reviewing(animals) as review, pytest.raises(InputError, match="cannot be the name of"):
        review.correct(label)
    assert list_photos(animals.photos) == FIRST


def test_without_a_set_photos_go_to_the_training_folder(tmp_path: Path, photos: Path) -> None:
    data = tmp_path / "data"
    save_photo(data / "test" / "cat" / "x.png", 5)
    model = make_model(tmp_path / "out", data / "train")
    results = {"data": {"folder": str(data), "split_folders": True}}
    (model / "results.json").write_text(json.dumps(results))
    identify(model, photos)
    with open_review(choose_model(model=model), ReviewSettings()) as review:
        review.approve()
        assert call_text(review.next_call) == (
            f"clew patterns train --data {data} --start-from {model} --out {model}-2"
        )
    assert (data / "train" / "cat" / "a.png").exists() and (model / "review.jsonl").exists()


def test_folder_with_splits_receives_photos_in_train(tmp_path: Path, photos: Path) -> None:
    model = make_model(tmp_path / "out", tmp_path / "data" / "Train")
    save_photo(tmp_path / "data" / "test" / "cat" / "x.png", 5)
    identify(model, photos)
    with open_review(choose_model(model=model), ReviewSettings(data=tmp_path / "data")) as review:
        assert review.classes == ["cat", "dog", "fox"]
        review.approve()
        assert f"--data {tmp_path / 'data'} " in call_text(review.next_call)
    assert (tmp_path / "data" / "Train" / "cat" / "a.png").exists()


def test_file_that_training_would_skip_is_not_put_into_a_class(
    tmp_path: Path, photos: Path
) -> None:
    model = make_model(tmp_path / "out", tmp_path / "data")
    save_photo(photos / "a.png", 0).rename(photos / "without ending")
    identify(model, photos, names=("without ending",))
    with open_review(choose_model(model=model), ReviewSettings()) as review:
        with pytest.raises(InputError, match="does not have a photo extension .* rename it first"):
            review.approve()
        assert review.place == 0
    assert list_photos(tmp_path / "data") == FIRST


def test_next_command_trains_the_set(animals: PatternSet) -> None:
    with reviewing(animals) as review:
        library = animals.folder.parent
        assert call_text(review.next_call) == f"clew patterns train animals --library {library}"
        assert call_text(review.again_call) == f"clew patterns review animals --library {library}"


def test_error_says_what_to_run_if_nothing_is_identified_yet(
    animals: PatternSet, tmp_path: Path
) -> None:
    (animals.folder / "identified").rename(tmp_path / "elsewhere")
    where = f'name="animals", library="{animals.library}"'
    with pytest.raises(InputError, match=re.escape(f'clew.patterns.identify("FOLDER", {where})')):
        reviewing(animals).__enter__()
    with reviewing(animals, identified=tmp_path / "elsewhere" / "my holiday") as review:
        assert len(review.queue.questions) == 4
        assert "elsewhere/my holiday'" in call_text(review.again_call)


def test_error_asks_for_missing_training_folder(tmp_path: Path, photos: Path) -> None:
    model = make_model(tmp_path / "out", tmp_path / "data")
    identify(model, photos)
    (tmp_path / "data").rename(tmp_path / "moved")
    chosen = choose_model(model=model)
    with pytest.raises(InputError, match="set `data` to a folder to add the photos to"):
        open_review(chosen, ReviewSettings()).__enter__()
    with open_review(chosen, ReviewSettings(data=tmp_path / "moved")) as review:
        review.approve()
    assert (tmp_path / "moved" / "cat" / "a.png").exists()


def test_second_review_at_the_same_time_is_refused(animals: PatternSet) -> None:
    with reviewing(animals), pytest.raises(StoreLockedError, match="another review of"):
        reviewing(animals).__enter__()


def test_unreadable_journal_is_left_alone(animals: PatternSet) -> None:
    old = ("{", "[]", '{"format": "clew-review", "version": 99}')
    for name, text in (("review.jsonl", "{}\n"), *(("review.json", text) for text in old)):
        journal = animals.folder / name
        journal.write_text(text)
        with pytest.raises(StoreError, match="cannot be read .* rename it to start over"):
            reviewing(animals).__enter__()
        assert journal.read_text() == text
        journal.unlink()


def decide(animals: PatternSet, **changes: object) -> None:
    """Notes a decision that a review was killed in, as somebody else may have written it."""
    photo = animals.photos / "cat/first.png"
    decision = {
        "name": "a.png",
        "path": str(photo),
        "bytes": photo.stat().st_size,
        "modified_ns": 0,
        "digest": digest_file(photo),
        "action": "approved",
        "label": "cat",
        "placed": "cat/first.png",
    }
    content = {"format": "clew-review", "version": 1, "decisions": [decision | changes]}
    (animals.folder / "review.json").write_text(json.dumps(content), encoding="utf-8")


def test_review_of_an_earlier_version_is_continued(animals: PatternSet, photos: Path) -> None:
    photo = photos / "a.png"
    decide(
        animals,
        path=str(photo),
        bytes=photo.stat().st_size,
        digest=digest_file(photo),
        action="skipped",
        label=None,
        placed=None,
    )
    with reviewing(animals) as review:
        assert (review.queue.skipped, len(review.queue.questions)) == (1, len(NAMES) - 1)
        review.approve()
    assert not (animals.folder / "review.json").exists()
    with reviewing(animals) as review:
        assert (review.queue.skipped, review.queue.decided) == (1, 1)


@pytest.mark.parametrize("step", ["take back", "take away"])
def test_foreign_journal_writes_and_deletes_only_photos(
    animals: PatternSet, tmp_path: Path, step: str
) -> None:
    script = tmp_path / "autostart" / "run.sh"
    decide(animals, step=step, path=str(script), moves=True)
    with pytest.raises(StoreError, match=r"name is .*run\.sh"), reviewing(animals):
        pass
    assert not script.exists()


def test_foreign_journal_deletes_nothing_outside(animals: PatternSet, tmp_path: Path) -> None:
    outside = tmp_path / "mine.png"
    outside.write_bytes((animals.photos / "cat/first.png").read_bytes())
    decide(animals, step="take back", placed="../../../mine.png", is_new=True)
    with pytest.raises(StoreError, match="name is '../../../mine.png'"), reviewing(animals):
        pass
    assert outside.exists()


def test_predicted_class_cannot_lead_out_of_the_folder(tmp_path: Path, photos: Path) -> None:
    model = make_model(tmp_path / "model", tmp_path / "data")
    out = identify(model, photos, classes=("../../x", "dog", "fox"))
    chosen = choose_model(model=model)
    with (
        open_review(chosen, ReviewSettings(identified=out)) as review,
        pytest.raises(InputError, match='"../../x" cannot be the name of a class'),
    ):
        review.approve()
    assert not (tmp_path.parent / "x").exists()
