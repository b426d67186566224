"""Looks for problems in a folder of photos: features from the pretrained network, then every check
on them. Nothing is changed."""

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float32

from clew.base.cores import count_cores
from clew.base.errors import InputError
from clew.base.progress import log_event
from clew.base.settings import check_positive
from clew.base.texts import counted, whole_percent
from clew.patterns.cache.build import CachedPhotos, cache_photos, choose_size
from clew.patterns.cache.samples import read_images
from clew.patterns.cleaning.checks import (
    FEWEST_PHOTOS,
    Chances,
    ClassOverlap,
    Features,
    Labels,
    Light,
    find_issues,
    find_outliers,
    find_overlaps,
    find_suspects,
    join_features,
    measure_light,
    predict_left_out,
)
from clew.patterns.cleaning.findings import KINDS, Finding, Findings, Kind, Overlap
from clew.patterns.features.compute import PhotoFeatures, compute_features
from clew.patterns.features.duplicates import (
    DuplicatePair,
    SmallImages,
    find_duplicates,
    make_small,
)
from clew.patterns.features.neighbors import find_neighbors, join_arrays, unit_rows
from clew.patterns.networks.lite0 import STAGE_CHANNELS
from clew.patterns.photos import (
    Photo,
    PhotoFolder,
    assign_splits,
    find_classes,
    find_photos,
    group_copies,
)
from clew.patterns.photos.photo import first_kept
from clew.patterns.settings import OfPhotos, SimilarSettings
from clew.patterns.trained.model import usual_device

# Sides in pixels that the network sees; fewer for tiny photos, to save time.
_FEATURE_SIZE, _TINY_SIZE, _TINY_PHOTO = 128, 96, 64
_NEIGHBORS = 3
_MOST_BY_FEATURES = 20_000  # in larger sets, only photos alike at a glance are compared
_BLANK = 0.9  # the score of a photo on which hardly anything can be seen
_MOST_OF_A_PAIR = 20  # photos that are listed for two classes that overlap


@dataclass(frozen=True, kw_only=True)
class LookedAt:
    """The photos of a folder with their features and the light of each, aligned."""

    folder: PhotoFolder
    cached: CachedPhotos
    features: PhotoFeatures
    small: SmallImages
    light: Light
    labels: Labels

    @property
    def photos(self) -> tuple[Photo, ...]:
        return self.cached.photos


def look_at(data: Path, cache: Path, given: OfPhotos) -> LookedAt:
    """Decode the photos and compute their features; what was computed before is in `cache` and
    reused.

    Raises InputError for a folder without classes, or if the weights of the network cannot be
    downloaded; TrainingStoppedError when `should_stop` returns true.
    """
    folder = find_classes(data, at_least=1)
    cached, features = _compute_features(folder, cache, given)
    pixels = [(make_small(images), measure_light(images)) for images in read_images(cached)]
    small, light = (join_arrays(parts) for parts in zip(*pixels, strict=True))
    places = {name: place for place, name in enumerate(folder.classes)}
    labels = np.array([places[photo.label or ""] for photo in cached.photos], np.int64)
    return LookedAt(
        folder=folder, cached=cached, features=features, small=small, light=light, labels=labels
    )


def _compute_features(
    folder: PhotoFolder, cache: Path, given: OfPhotos
) -> tuple[CachedPhotos, PhotoFeatures]:
    """The usable photos of a folder with their features."""
    threads, reporter = given.num_workers or count_cores(), given.reporter or log_event
    cached = cache_photos(
        folder,
        cache,
        choose_size(folder),
        workers=threads,
        reporter=reporter,
        should_stop=given.should_stop,
    )
    if len(cached.photos) < 2:
        raise InputError(
            f'"{folder.root}" contains {counted(len(cached.photos), "usable photo")}: there is '
            "nothing to compare. Check the path."
        )
    features = compute_features(
        cached,
        cache / "features",
        size=choose_features(cached),
        device=usual_device(given.device),
        threads=threads,
        reporter=reporter,
        should_stop=given.should_stop,
    )
    return cached, features


def choose_features(cached: CachedPhotos) -> int:
    """The side of the images whose features photos are compared by."""
    return _TINY_SIZE if cached.size <= _TINY_PHOTO else _FEATURE_SIZE


def find_problems(looked: LookedAt) -> Findings:
    """Every check on the photos."""
    features, classes = join_all(looked.features), looked.folder.classes
    # The probability of every class for every photo, according to the others.
    chances = np.ones((len(looked.labels), len(classes)))
    if len(classes) > 1:
        chances = predict_left_out(features, looked.labels, len(classes))
    overlaps = find_overlaps(chances, looked.labels)
    issues = find_issues(looked.light, looked.cached.sizes)
    quality = [_finding(looked, "quality", *issue) for issue in issues]
    # What shows hardly anything looks like any class.
    blank = {finding.name for finding in quality if finding.score >= _BLANK}
    about_labels = (
        *_label_findings(looked, chances),
        *_overlap_findings(looked, chances, overlaps),
    )
    findings = [
        *(finding for finding in about_labels if finding.name not in blank),
        *_duplicate_findings(looked),
        *(
            _finding(looked, "outlier", place, score, "it is unlike all other photos of the set")
            for place, score in find_outliers(features)
        ),
        *quality,
    ]
    faults = (*looked.folder.faults, *looked.cached.faults)
    kinds = (fault.kind for fault in faults if fault.kind not in ("duplicate", "contradiction"))
    return Findings(
        data=looked.folder.root,
        photos=len(looked.photos),
        classes=classes,
        findings=tuple(sorted(findings, key=lambda one: (KINDS.index(one.kind), -one.score))),
        overlaps=tuple(
            Overlap(classes[one.first], classes[one.second], one.share, len(one.places))
            for one in overlaps
        ),
        excluded=dict(Counter(kinds).most_common()),
        split_folders=looked.folder.split_folders,
        notes=tuple(_notes(looked)),
    )


def join_all(features: PhotoFeatures) -> Features:
    stages = np.split(features.stages, np.cumsum(STAGE_CHANNELS[:-2]), axis=1)
    return join_features(*stages, features.embedding)


def _label_findings(looked: LookedAt, chances: Chances) -> Iterator[Finding]:
    classes = looked.folder.classes
    for place in find_suspects(chances, looked.labels):
        label, suggested = int(looked.labels[place]), int(chances[place].argmax())
        own, other = float(chances[place, label]), float(chances[place, suggested])
        reason = (
            f'it looks like "{classes[suggested]}" ({whole_percent(other)}), not like '
            f'"{classes[label]}" ({whole_percent(own)})'
        )
        suggestion = classes[suggested]
        yield _finding(looked, "label", place, 1 - own, reason, suggestion=suggestion)


def _overlap_findings(
    looked: LookedAt, chances: Chances, overlaps: Sequence[ClassOverlap]
) -> Iterator[Finding]:
    classes = looked.folder.classes
    for overlap in overlaps:
        names = f'"{classes[overlap.first]}" and "{classes[overlap.second]}"'
        for place in overlap.places[:_MOST_OF_A_PAIR]:
            other = overlap.first + overlap.second - int(looked.labels[place])
            chance = float(chances[place, other])
            reason = (
                f"{names} overlap: this photo is {whole_percent(chance)} "
                f'"{classes[other]}"; {whole_percent(overlap.share)} of both are like it'
            )
            yield _finding(looked, "overlap", place, chance, reason, suggestion=classes[other])


def _finding(
    looked: LookedAt,
    kind: Kind,
    place: int,
    score: float,
    reason: str,
    *,
    suggestion: str | None = None,
) -> Finding:
    photo, digest = looked.photos[place], looked.cached.digests[place]
    return Finding(
        kind=kind,
        name=photo.name,
        label=photo.label or "",
        score=round(score, 4),
        reason=reason,
        digest=digest,
        suggestion=suggestion,
    )


def _duplicate_findings(looked: LookedAt) -> Iterator[Finding]:
    likely = []
    if len(looked.photos) <= _MOST_BY_FEATURES:
        likely = [find_neighbors(unit_rows(looked.features.embedding), _NEIGHBORS)]
    for digest, copies in looked.cached.copies.items():
        # Identical images: all but the first are superfluous.
        kept, *others = sorted(copies, key=first_kept)
        for photo in others:
            splits = (photo.split, kept.split) if photo.split else (None, None)
            where = ": in {} and in {}"
            yield _pair_finding((photo, digest), (kept, digest), "the same image as", splits, where)
    pairs = find_duplicates(looked.small, *likely)
    drawn = _splits(looked, pairs)
    for pair in pairs:
        kept_one, photo_one = _sort_pair(looked, pair)
        what = "a mirrored copy of" if pair.mirrored else "nearly the same image as"
        drawn_into = drawn.get(photo_one[1]), drawn.get(kept_one[1])
        where = ": training puts one into {}, the other into {}"
        yield _pair_finding(photo_one, kept_one, what, drawn_into, where, score=pair.likeness)


def _sort_pair(looked: LookedAt, pair: DuplicatePair) -> list[tuple[Photo, str]]:
    """The photo to remove first comes last: the training copy of a leak, else the smaller one."""
    places = sorted(
        (pair.first, pair.second),
        key=lambda place: (
            first_kept(looked.photos[place])[0],
            -int(looked.cached.sizes[place].prod(dtype=np.int64)),
            place,
        ),
    )
    return [(looked.photos[place], looked.cached.digests[place]) for place in places]


def _pair_finding(
    superfluous: tuple[Photo, str],
    original: tuple[Photo, str],
    what: str,
    splits: tuple[str | None, str | None],
    where: str,
    *,
    score: float = 1.0,
) -> Finding:
    """Two photos with the digests of their images; `where` says how their splits differ."""
    (photo, digest), (kept, kept_digest) = superfluous, original
    is_leak = splits[0] != splits[1]
    leak = where.format(*splits) if is_leak else ""
    return Finding(
        kind="leak" if is_leak else "duplicate",
        name=photo.name,
        label=photo.label or "",
        score=round(min(1.0, score), 4),
        reason=f'it is {what} "{kept.name}"{leak}{_contradiction(photo, kept)}',
        digest=digest,
        other=kept.name,
        other_label=kept.label,
        other_digest=kept_digest,
    )


def _contradiction(photo: Photo, kept: Photo) -> str:
    if photo.label == kept.label:
        return ""
    return f', in another class ("{kept.label}"): one of the labels is wrong'


def _splits(looked: LookedAt, pairs: Sequence[DuplicatePair]) -> dict[str, str]:
    """The split of each image: its folder's, or the one that training draws at its defaults."""
    digests = looked.cached.digests
    copies = [(pair.first, pair.second) for pair in pairs]
    try:
        splits = assign_splits(looked.photos, group_copies(looked.photos, digests, copies))
    except InputError:  # too few photos to train on: no photo has a split yet
        return {}
    return dict(zip(digests, splits, strict=True))


def _notes(looked: LookedAt) -> Iterator[str]:
    classes = looked.folder.classes
    if len(classes) < 2:
        yield "there is only one class: labels were not checked."
        return
    counts = np.bincount(looked.labels, minlength=len(classes))
    thin = [f'"{classes[place]}"' for place in np.flatnonzero(counts < FEWEST_PHOTOS)]
    if thin:
        shown = ", ".join(thin[:5]) + (f" and {len(thin) - 5:,} more" if len(thin) > 5 else "")
        yield (
            f"labels were not checked in classes with fewer than {FEWEST_PHOTOS} photos: {shown}."
        )


@dataclass(frozen=True, kw_only=True)
class SimilarPhoto:
    """A photo of the set, and its similarity to the given one: 1 for the same image, about 0 for
    any other photo."""

    name: str
    label: str
    path: Path
    similarity: float


def find_similar_photos(
    data: Path, cache: Path, given: SimilarSettings
) -> tuple[SimilarPhoto, ...]:
    """The photos of a folder that are most like an image, the most similar first. The file itself
    is not among them. Raises InputError if the image cannot be read."""
    image = Path(given.image)
    check_positive(given, "top_k")
    if not image.expanduser().is_file():
        raise InputError(f'there is no photo "{image}": check the path.')
    cached, features = _compute_features(find_classes(data, at_least=1), cache, given)
    asked = _look_at_one(image, given, cached)
    mean = features.embedding.mean(0)
    rows, queries = unit_rows(features.embedding, mean), unit_rows(asked, mean)
    nearest = find_neighbors(rows, given.top_k + 1, queries)
    own = image.expanduser().resolve()
    chosen = [cached.photos[place] for place in nearest.places[0].tolist()]
    found = [
        SimilarPhoto(
            name=photo.name,
            label=photo.label or "",
            path=photo.path,
            similarity=round(similarity, 4),
        )
        for photo, similarity in zip(chosen, nearest.similarity[0].tolist(), strict=True)
        if photo.path.resolve() != own
    ]
    return tuple(found[: given.top_k])


def _look_at_one(
    image: Path, given: OfPhotos, others: CachedPhotos
) -> Float32[np.ndarray, "1 1280"]:
    """The features of one photo, computed like those of the others."""
    with tempfile.TemporaryDirectory() as scratch:
        cached = cache_photos(find_photos(image), Path(scratch), others.size, workers=1)
        if not cached.photos:
            raise InputError(f'"{image}" cannot be read: {cached.faults[0].reason}.')
        return compute_features(
            cached,
            Path(scratch) / "features",
            size=choose_features(others),
            device=usual_device(given.device),
            threads=given.num_workers,
            reporter=lambda _: None,
        ).embedding
