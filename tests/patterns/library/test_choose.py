"""Which model a command means."""

import json
import re
from pathlib import Path

import pytest

from clew.base.errors import InputError
from clew.patterns.library.choose import choose_model
from clew.patterns.library.pattern_set import PatternSet
from tests.patterns.library.making import make_photos, pretend_trained


@pytest.fixture
def library(tmp_path: Path) -> Path:
    return tmp_path / "patterns"


def test_set_resolves_to_its_newest_model(library: Path) -> None:
    animals = PatternSet.create("animals", library)
    for number in ("001", "002"):
        pretend_trained(animals.runs / number, [])
    for chosen in (
        choose_model(name="animals", library=library),
        choose_model(library=library),
        choose_model(model=animals.folder, library=library),
        choose_model(model=animals.runs / "002", library=library),
    ):
        assert chosen.model == animals.runs / "002"
        assert chosen.pattern_set == animals
        assert chosen.classes_folder == animals.photos


@pytest.mark.parametrize("layout", ["cats", "Train/cats"])
def test_standalone_model_knows_the_folder_it_was_trained_on(
    library: Path, tmp_path: Path, layout: str
) -> None:
    data = make_photos(tmp_path / "data", {layout: 1, layout.replace("cats", "dogs"): 1})
    out = pretend_trained(tmp_path / "out", [])
    about = {"folder": str(data), "split_folders": "/" in layout}
    (out / "results.json").write_text(json.dumps({"data": about}))
    chosen = choose_model(model=out, library=library)
    assert (chosen.model, chosen.pattern_set) == (out, None)
    assert chosen.classes_folder == (data / layout).parent


def test_set_given_as_the_current_folder_keeps_its_name(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    animals = PatternSet.create("animals", library)
    pretend_trained(animals.runs / "001", [])
    monkeypatch.chdir(animals.folder)
    chosen = choose_model(model=Path("."))
    wanted = f'clew.patterns.review_photos("animals", library="{library}")'
    assert str(chosen.call_to_review({})) == wanted


def test_model_can_be_named_without_a_set(library: Path) -> None:
    create = re.escape(f'clew.patterns.create_set("NAME", library="{library}")')
    with pytest.raises(InputError, match=f"{create}.* Or give a trained model with `model`"):
        choose_model(library=library)


def test_deleted_training_folder_is_not_used(library: Path, tmp_path: Path) -> None:
    out = pretend_trained(tmp_path / "out", [])
    assert choose_model(model=out, library=library).classes_folder is None


def test_ambiguous_or_missing_model_is_reported(library: Path, tmp_path: Path) -> None:
    animals = PatternSet.create("animals", library)
    train = re.escape(f'clew.patterns.train(name="animals", library="{library}")')
    with pytest.raises(InputError, match=f"is not trained yet: run {train} first"):
        choose_model(name="animals", library=library)
    (animals.runs / "001").mkdir(parents=True)
    with pytest.raises(InputError, match="has not finished training"):
        choose_model(library=library)
    with pytest.raises(InputError, match="give only one of them"):
        choose_model(model=tmp_path, name="animals", library=library)
    with pytest.raises(InputError, match="contains no trained model"):
        choose_model(model=tmp_path, library=library)
    with pytest.raises(InputError, match="the folder does not exist"):
        choose_model(model=tmp_path / "nowhere", library=library)
    with pytest.raises(InputError, match="is a file: give the folder"):
        choose_model(model=animals.folder / "set.json", library=library)
    (tmp_path / "last.safetensors").write_bytes(b"")
    with pytest.raises(InputError, match="is not finished: run its"):
        choose_model(model=tmp_path, library=library)
