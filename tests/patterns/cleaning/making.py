"""Real photos for the tests: pieces of the two that scikit-learn has, and findings about them."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image
from sklearn.datasets import load_sample_image

from clew.patterns.cleaning.findings import CleanPlace, Finding, Findings
from clew.patterns.cleaning.session import Cleaning, open_cleaning

SIDE = 120
_SOURCES = ("china.jpg", "flower.jpg")


@cache
def pieces() -> tuple[Image.Image, ...]:
    """Different photos: 40 pieces that do not overlap, of two pictures in turn."""
    whole = [Image.fromarray(load_sample_image(name)) for name in _SOURCES]
    places = [(x, y) for y in range(0, 360, SIDE) for x in range(0, 600, SIDE)]
    corners = [(x, y) for y in (360,) for x in range(0, 600, SIDE)]
    boxes = [(x, y, x + SIDE, min(y + SIDE, 427)) for x, y in (*places, *corners)]
    return tuple(picture.crop(box) for box in boxes for picture in whole)


@cache
def detailed() -> tuple[Image.Image, ...]:
    """The pieces that show more than sky or a blurred background."""
    return tuple(one for one in pieces() if np.diff(np.asarray(one.convert("L"), float)).std() > 7)


def as_squares(
    photos: list[Image.Image], side: int = 96
) -> UInt8[np.ndarray, "photos side side 3"]:
    sized = (photo.resize((side, side), Image.Resampling.LANCZOS) for photo in photos)
    return np.stack([np.asarray(photo.convert("RGB")) for photo in sized])


def write_set(folder: Path, *, per_class: int = 6) -> Path:
    """Two classes of real photos."""
    for number, photo in enumerate(pieces()[: 2 * per_class]):
        path = folder / ("temple", "flower")[number % 2] / f"{number // 2}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        photo.save(path)
    return folder


def make_finding(name: str, kind: str = "label", **more: object) -> Finding:
    label = name.split("/")[-2]
    about = {"score": 0.9, "reason": "it looks odd", "digest": f"digest of {name}", **more}
    return Finding(kind=kind, name=name, label=label, **about)  # type: ignore[arg-type]


def make_findings(data: Path, *findings: Finding, split_folders: bool = False) -> Findings:
    return Findings(
        data=data,
        photos=12,
        classes=("flower", "temple"),
        findings=findings,
        excluded={},
        split_folders=split_folders,
    )


@contextmanager
def clean_all(data: Path, out: Path) -> Iterator[Cleaning]:
    """A session with a finding about every photo, in the order of their names."""
    findings = [make_finding(name) for name in list_files(data)]
    place = CleanPlace.of_folder(data, out)
    with open_cleaning(place, make_findings(data, *findings)) as cleaning:
        yield cleaning


def list_files(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
