"""Photos that are blurred, too dark, too bright, without contrast, or of an unusual size."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int32, UInt8
from torch.nn import functional as F

_DARK, _DARK_PARTS = 28, 70  # the mean, and the brightest twentieth, of 255
_BRIGHT, _BRIGHT_PARTS = 232, 200
_FLAT = 6.0  # standard deviation of the brightness
_BLUR_SPREADS, _BLUR_FACTOR = 4.0, 12.0
_SMALL, _STRETCHED = 1 / 3, 2.0  # of the usual side, times the usual aspect ratio
_NORMAL = 1.4826


@dataclass(frozen=True, kw_only=True)
class Light:
    """Per photo: mean, dark and bright parts and spread of the brightness (0 to 255), and the
    sharpness: the share of the contrast that is between neighboring pixels, as a logarithm."""

    mean: Float[np.ndarray, " photos"]
    dark_parts: Float[np.ndarray, " photos"]
    bright_parts: Float[np.ndarray, " photos"]
    spread: Float[np.ndarray, " photos"]
    sharpness: Float[np.ndarray, " photos"]


@dataclass(frozen=True, kw_only=True)
class QualityIssue:
    """What is wrong with the photo at `place`; `score` orders issues, the worst first."""

    place: int
    reason: str
    score: float


def measure_light(images: UInt8[np.ndarray, "photos size size 3"]) -> Light:
    gray = torch.from_numpy(images).permute(0, 3, 1, 2).float().mean(1, keepdim=True)
    flat = gray.flatten(1)
    kernel = torch.tensor([[0.0, 1, 0], [1, -4, 1], [0, 1, 0]])[None, None]
    edges = F.conv2d(gray, kernel).flatten(1).var(1)
    parts = torch.quantile(flat, torch.tensor([0.05, 0.95]), dim=1).numpy()
    return Light(
        mean=flat.mean(1).numpy(),
        dark_parts=parts[0],
        bright_parts=parts[1],
        spread=flat.std(1).numpy(),
        sharpness=torch.log((edges + 0.1) / (flat.var(1) + 1)).numpy(),
    )


def join_light(parts: list[Light]) -> Light:
    names = ("mean", "dark_parts", "bright_parts", "spread", "sharpness")
    return Light(**{name: np.concatenate([getattr(one, name) for one in parts]) for name in names})


def find_issues(light: Light, sizes: Int32[np.ndarray, "photos 2"]) -> list[QualityIssue]:
    """At most one issue per photo, the worst first."""
    found: dict[int, QualityIssue] = {}
    for issue in (*_light_issues(light), *_blur_issues(light), *_size_issues(sizes)):
        found.setdefault(issue.place, issue)
    return sorted(found.values(), key=lambda issue: (-issue.score, issue.place))


def _light_issues(light: Light) -> Iterator[QualityIssue]:
    for place in range(len(light.mean)):
        mean = float(light.mean[place])
        if mean < _DARK and light.bright_parts[place] < _DARK_PARTS:
            reason = f"it is very dark: its mean brightness is {mean / 255:.0%}"
            yield QualityIssue(place=place, reason=reason, score=1 - mean / 255)
        elif mean > _BRIGHT and light.dark_parts[place] > _BRIGHT_PARTS:
            reason = f"it is overexposed: its mean brightness is {mean / 255:.0%}"
            yield QualityIssue(place=place, reason=reason, score=mean / 255)
        elif light.spread[place] < _FLAT:
            yield QualityIssue(place=place, reason="it has hardly any contrast", score=0.9)


def _blur_issues(light: Light) -> Iterator[QualityIssue]:
    """Photos that are much less sharp than the others of the set."""
    if len(light.sharpness) < 4:
        return
    middle = np.median(light.sharpness)
    spread = _NORMAL * np.median(np.abs(light.sharpness - middle))
    limit = middle - max(_BLUR_SPREADS * spread, np.log(_BLUR_FACTOR))
    for place in np.flatnonzero(light.sharpness < limit).tolist():
        times = float(np.exp((middle - light.sharpness[place]) / 2))
        reason = f"it is blurred: {times:.1f} times less sharp than usual"
        yield QualityIssue(place=place, reason=reason, score=min(0.89, 1 - 1 / times))


def _size_issues(sizes: Int32[np.ndarray, "photos 2"]) -> Iterator[QualityIssue]:
    if len(sizes) < 4:
        return
    width, height = np.maximum(sizes.astype(np.float64), 1).T
    sides, ratios = np.sqrt(width * height), np.log(width / height)
    side, ratio = np.median(sides), np.median(ratios)
    for place in np.flatnonzero(sides < _SMALL * side).tolist():
        reason = f"it is small: {_shown(sizes[place])}; others have about {side:.0f} pixels a side"
        score = 0.5 * (1 - float(sides[place] / side))
        yield QualityIssue(place=place, reason=reason, score=score)
    for place in np.flatnonzero(np.abs(ratios - ratio) > np.log(_STRETCHED)).tolist():
        reason = f"it has an unusual shape: {_shown(sizes[place])}"
        score = 0.3 * float(np.tanh(abs(ratios[place] - ratio)))
        yield QualityIssue(place=place, reason=reason, score=score)


def _shown(size: Int32[np.ndarray, " 2"]) -> str:
    return f"{size[0]:,} x {size[1]:,} pixels"
