"""A set with a model that looks trained, and photos that it is uncertain about."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image

from clew.patterns.identification.results import Identified, IdentifiedWriter
from clew.patterns.library.choose import Chosen, choose_model
from clew.patterns.library.pattern_set import PatternSet
from clew.patterns.photos.photo import Fault
from clew.patterns.review import Review, open_review
from clew.patterns.settings import ReviewSettings

CLASSES = ("cat", "dog", "fox")
# The second name is one that file systems and terminals have trouble with.
NAMES = ("a.png", "señal \N{CAT FACE} b.png", "sub folder/c.png", "d.png")


def save_photo(path: Path, seed: int, side: int = 40) -> Path:
    """A unique image: bands of color, so that it looks like something."""
    generator = np.random.default_rng(seed)
    bands = generator.integers(0, 255, (5, 4, 3), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(bands).resize((side, side), Image.Resampling.BICUBIC).save(path)
    return path


def make_set(folder: Path, classes: Sequence[str] = CLASSES, name: str = "animals") -> PatternSet:
    made = PatternSet.create(name, folder / "patterns")
    for number, label in enumerate(classes):
        save_photo(made.photos / label / "first.png", 1000 + number)
    _make_model(made.runs / "001", classes, made.photos)
    return made


def make_model(folder: Path, data: Path, classes: Sequence[str] = CLASSES) -> Path:
    """A standalone model, trained on a folder of photos."""
    for number, label in enumerate(classes):
        save_photo(data / label / "first.png", 1000 + number)
    return _make_model(folder, classes, data)


def _make_model(folder: Path, classes: Sequence[str], data: Path) -> Path:
    folder.mkdir(parents=True)
    results = {"classes": list(classes), "data": {"folder": str(data)}}
    (folder / "results.json").write_text(json.dumps(results))
    (folder / "best.safetensors").touch()
    return folder


def identify(
    home: Path,
    photos: Path,
    classes: Sequence[str] = CLASSES,
    names: Sequence[str] = NAMES,
    sure: Sequence[str] = (),
) -> Path:
    """Photos, and what identify says about them: photo n is class n, with rising confidence."""
    out = home / "identified" / photos.name
    out.mkdir(parents=True, exist_ok=True)
    with (out / "identified.json").open("wb") as file:
        writer = IdentifiedWriter(file, {"folder": str(photos), "classes": list(classes)})
        for number, name in enumerate(names):
            path = photos / name
            if not path.exists():
                save_photo(path, number)
            writer.add(_identified(path, name, number, classes, is_sure=name in sure))
        fault = Fault(name="bad.jpg", label=None, kind="truncated", reason="it is truncated")
        writer.add(
            Identified(
                name="bad.jpg", path=photos / "bad.jpg", best=(), doubtful=False, fault=fault
            )
        )
        writer.end({})
    return out


def _identified(
    path: Path, name: str, number: int, classes: Sequence[str], *, is_sure: bool
) -> Identified:
    chances = (0.95, 0.04, 0.01) if is_sure else (0.3 + number / 100, 0.2, 0.1)
    turned = [classes[(number + place) % len(classes)] for place in range(3)]
    best = tuple(zip(turned, chances, strict=True))
    return Identified(name=name, path=path.absolute(), best=best, doubtful=not is_sure)


@contextmanager
def reviewing(pattern_set: PatternSet, **settings: object) -> Iterator[Review]:
    with open_review(choose(pattern_set), ReviewSettings(**settings)) as review:  # type: ignore[arg-type]
        yield review


def choose(pattern_set: PatternSet) -> Chosen:
    return choose_model(name=pattern_set.name, library=pattern_set.folder.parent)


def list_photos(folder: Path) -> list[str]:
    """Everything below a folder that is a file, hidden ones too."""
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
