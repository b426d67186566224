"""How many wrong labels and near duplicates `clew patterns clean` finds, planted in real photos.

    python benchmarks/patterns_clean.py --data sign-digits
    python benchmarks/patterns_clean.py --fashion /usr/share/datasets/fashion-mnist

`--data` is any folder with one folder per class, `--fashion` the folder of the Debian package
dataset-fashion-mnist, whose 10,000 test photos are taken. `--work` keeps what was computed.
"""

import argparse
import gzip
import io
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from clew.base.progress import ignore_event
from clew.patterns.cleaning.checks import find_suspects, predict_left_out
from clew.patterns.cleaning.search import find_problems, join_all, look_at
from clew.patterns.features.duplicates import compare_pairs, find_duplicates
from clew.patterns.photos import find_classes
from clew.patterns.settings import OfPhotos

SHARES = (0.05, 0.2)
RECALLS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
RANDOM_PAIRS = 1_000


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--fashion", type=Path)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--copies", type=int, default=50, help="planted of each kind")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        work = given.work or Path(scratch)
        if given.data:
            measure_folder(given.data, work / given.data.name, given.seeds, given.copies)
        if given.fashion:
            photos = write_fashion(given.fashion, work / "fashion")
            measure_labels(look(photos, work / "fashion-cache"), given.seeds)


def measure_folder(data, work, seeds, copies):
    """Wrong labels in the photos as they are, then copies among them."""
    started = time.perf_counter()
    looked = look(data, work / "cache")
    computed = time.perf_counter()
    found = find_problems(looked)
    shown = ", ".join(f"{count:,} {kind}" for kind, count in found.counts.items())
    print(f"{len(looked.photos):,} photos: features in {computed - started:.0f} s, findings in ")
    print(f"{time.perf_counter() - computed:.0f} s: {shown}\n")
    measure_labels(looked, seeds)
    measure_copies(data, work, copies)
    measure_pairs(looked)


def look(data, cache):
    return look_at(data, cache, OfPhotos(device="cpu", reporter=ignore_event))


def measure_labels(looked, seeds):
    features, classes = join_all(looked.features), len(looked.folder.classes)
    for share in SHARES:
        curves, cuts = [], []
        for seed in range(seeds):
            labels, is_wrong = swap_labels(looked.labels, classes, share, seed)
            chances = predict_left_out(features, labels, classes)
            curves.append(precisions(chances[np.arange(len(labels)), labels], is_wrong))
            suspects = find_suspects(chances, labels)
            right = is_wrong[suspects].sum()
            cuts.append((right / is_wrong.sum(), right / max(1, len(suspects)), len(suspects)))
        recall, precision, count = np.mean(cuts, axis=0)
        print(f"{share:.0%} of {len(labels):,} labels swapped, {seeds} seeds:")
        print(f"  suspects: {count:.0f}, recall {recall:.1%}, precision {precision:.1%}")
        points = zip(RECALLS, np.mean(curves, axis=0), strict=True)
        print("  precision at recall:", ", ".join(f"{at:.0%}: {value:.1%}" for at, value in points))


def swap_labels(labels, classes, share, seed):
    random = np.random.default_rng(seed)
    chosen = random.choice(len(labels), round(share * len(labels)), replace=False)
    swapped, is_wrong = labels.copy(), np.zeros(len(labels), bool)
    swapped[chosen] = (labels[chosen] + random.integers(1, classes, len(chosen))) % classes
    is_wrong[chosen] = True
    return swapped, is_wrong


def precisions(confidence, is_wrong):
    """Precision where each recall is reached, by the confidence in the label, lowest first."""
    found = np.cumsum(is_wrong[np.argsort(confidence, kind="stable")])
    precision = found / np.arange(1, len(found) + 1)
    return [precision[np.argmax(found >= recall * is_wrong.sum())] for recall in RECALLS]


def recompress(photo):
    file = io.BytesIO()
    photo.save(file, "JPEG", quality=40)
    return Image.open(file)


def crop(photo):
    width, height = photo.size
    left, top = round(0.05 * width), round(0.02 * height)
    return photo.crop((left, top, left + round(0.95 * width), top + round(0.95 * height)))


def in_other_light(photo):
    warm = np.asarray(photo) * [1.15, 1.0, 0.8]
    return recompress(Image.fromarray(warm.clip(0, 255).astype(np.uint8)))


def dye_middle(photo):
    """The hues in the middle of the photo turned around: another color of what it shows."""
    hues = np.array(photo.convert("HSV"))
    rows, columns = (slice(side // 4, 3 * side // 4) for side in hues.shape[:2])
    hues[rows, columns, 0] += 128
    return Image.fromarray(hues, "HSV").convert("RGB")


CHANGES = {
    "resized to 60%": lambda photo: photo.resize([round(0.6 * side) for side in photo.size]),
    "recompressed": recompress,
    "cropped by 5%": crop,
    "mirrored": ImageOps.mirror,
    "white-balanced and recompressed": in_other_light,
    "all but mirrored": lambda photo: recompress(crop(photo.resize([80, 80]))),
}
# Not the same photo: it must not be found.
OTHER = "another color in the middle"


def measure_copies(data, work, count):
    planted = plant_copies(data, work / "planted", count)
    looked = look(work / "planted", work / "planted-cache")
    started = time.perf_counter()
    pairs = find_duplicates(looked.small)
    seconds = time.perf_counter() - started
    names = [photo.name for photo in looked.photos]
    found = {frozenset((names[pair.first], names[pair.second])) for pair in pairs}
    for change, copies in planted.items():
        share = np.mean([frozenset(pair) in found for pair in copies])
        print(f"near duplicates, {change}: {share:.1%} of {len(copies)} found")
    known = {frozenset(pair) for copies in planted.values() for pair in copies}
    print(f"other pairs called duplicates: {len(found - known)}; compared in {seconds:.0f} s")


def plant_copies(data, target, count):
    """A copy of the folder with `count` copies per change in it: names of both, by change."""
    shutil.rmtree(target, ignore_errors=True)
    random = np.random.default_rng(0)
    photos = find_classes(data).photos
    for photo in photos:
        (target / photo.name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(photo.path, target / photo.name)
    changes = {**CHANGES, OTHER: dye_middle}
    chosen = random.choice(len(photos), count * len(changes), replace=False)
    planted = {change: [] for change in changes}
    for number, place in enumerate(chosen):
        change = list(changes)[number % len(changes)]
        name = f"{Path(photos[place].name).parent}/copy{number}.png"
        changes[change](Image.open(photos[place].path).convert("RGB")).save(target / name)
        planted[change].append((photos[place].name, name))
    return planted


def measure_pairs(looked):
    random = np.random.default_rng(1)
    pairs = []
    while len(pairs) < RANDOM_PAIRS:
        of_class = np.flatnonzero(looked.labels == random.integers(len(looked.folder.classes)))
        pairs.append(random.choice(of_class, 2, replace=False))
    found = compare_pairs(looked.small, np.sort(np.array(pairs), axis=1))
    share = len({(pair.first, pair.second) for pair in found}) / RANDOM_PAIRS
    print(f"of {RANDOM_PAIRS:,} random pairs of one class called duplicates: {share:.1%}")


def write_fashion(folder, target):
    """The test photos of Fashion-MNIST, one folder per class."""
    if target.is_dir():
        return target
    images, labels = (
        np.frombuffer(gzip.decompress((folder / name).read_bytes()), np.uint8, offset=offset)
        for name, offset in (("t10k-images-idx3-ubyte.gz", 16), ("t10k-labels-idx1-ubyte.gz", 8))
    )
    for number, (pixels, label) in enumerate(zip(images.reshape(-1, 28, 28), labels, strict=True)):
        path = target / str(label) / f"{number:05}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    return target


if __name__ == "__main__":
    main()
