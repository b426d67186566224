"""A stand-in for photos of groceries, drawn: 81 kinds of food, as four vendors draw their emoji, on
tables with other food beside them, small, turned, shaded, blurred and recompressed. It says
which of two settings is better on a set of this size and kind; its accuracy says nothing about
photos.

    npm pack emoji-datasource-apple@16.0.0   (and -google, -twitter, -facebook)
    python benchmarks/grocery_stand_in.py sprites --from emoji-datasource-*.tgz
    python benchmarks/grocery_stand_in.py draw --to groceries --from sprites.zip

The first step keeps only the food, in 2 MB. `draw` writes train (32 or 33 of each class), val and
test folders, the same ones every time.
"""

import argparse
import io
import tarfile
import zipfile
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image, ImageFilter

CLASSES, SIDE = 81, 140
FOOD = (*range(0x1F345, 0x1F376), *range(0x1F950, 0x1F970), *range(0x1FAD0, 0x1FADB))
SPLITS = {"train": 2_640, "val": 296, "test": 1_620}
GROUNDS = ((188, 154, 116), (226, 221, 210), (120, 132, 140), (92, 70, 54), (168, 186, 176))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("step", choices=("sprites", "draw"))
    parser.add_argument("--from", dest="sources", type=Path, nargs="+", required=True)
    parser.add_argument("--to", type=Path, default=Path("sprites.zip"))
    parser.add_argument("--only-train", action="store_true", help="3,068 photos, without splits")
    args = parser.parse_args()
    if args.step == "sprites":
        keep_food(args.sources, args.to)
        return
    counts = {"": 3_068} if args.only_train else SPLITS
    with ProcessPoolExecutor() as processes:
        for place, (split, count) in enumerate(counts.items()):
            seeds = range(100_000 * place, 100_000 * place + count)
            draw = partial(draw_photo, args.sources[0], args.to / split)
            list(processes.map(draw, seeds, chunksize=64))


def keep_food(tarballs, path):
    """The pictures of 81 kinds that all vendors draw: "code/vendor.png"."""
    found = {}
    for number, tarball in enumerate(sorted(tarballs)):
        with tarfile.open(tarball) as file:
            for member in file:
                name = Path(member.name)
                if name.parent.name == "64" and name.stem in {f"{code:x}" for code in FOOD}:
                    content = file.extractfile(member).read()
                    found.setdefault(name.stem, {})[number] = content
    complete = [code for code in sorted(found) if len(found[code]) == len(tarballs)][:CLASSES]
    with zipfile.ZipFile(path, "w") as file:
        for code in complete:
            for number, content in found[code].items():
                file.writestr(f"{code}/{number}.png", content)


def draw_photo(sprites, folder, seed):
    random = np.random.default_rng(seed)
    with zipfile.ZipFile(sprites) as file:
        names = sorted(file.namelist())
        classes = sorted({name.split("/")[0] for name in names})
        kind = classes[seed % len(classes)]

        def pick(code):
            own = [name for name in names if name.startswith(code)]
            return Image.open(io.BytesIO(file.read(own[random.integers(len(own))]))).convert("RGBA")

        table = draw_table(random)
        for code in random.choice(classes, random.integers(1, 4)):
            put(table, pick(code), random, size=(25, 50), reach=0.5)
        put(table, pick(kind), random, size=(45, 80), reach=0.2)
    path = folder / kind / f"{seed}.jpg"
    path.parent.mkdir(parents=True, exist_ok=True)
    photograph(table, random).save(path, quality=int(random.integers(50, 90)))


def draw_table(random):
    color = np.array(GROUNDS[random.integers(len(GROUNDS))]) + random.uniform(-25, 25, 3)
    grain = random.normal(0, 25, (SIDE // 7, SIDE // 7, 1)).repeat(3, 2) + color
    table = Image.fromarray(np.clip(grain, 0, 255).astype(np.uint8))
    return table.resize((SIDE, SIDE), Image.Resampling.BICUBIC)


def put(table, sprite, random, *, size, reach):
    side = int(random.integers(*size))
    tall = max(8, int(side * random.uniform(0.7, 1.3)))
    turned = sprite.resize((side, tall), Image.Resampling.BICUBIC)
    turned = turned.rotate(random.uniform(-70, 70), Image.Resampling.BICUBIC, expand=True)
    shift = random.uniform(-reach, reach, 2) * SIDE
    corner = [int((SIDE - one) / 2 + by) for one, by in zip(turned.size, shift, strict=True)]
    table.paste(turned, tuple(corner), turned.getchannel("A"))


def photograph(table, random):
    """Light, focus and noise of a camera."""
    table = table.filter(ImageFilter.GaussianBlur(random.uniform(0.3, 1.6)))
    light = random.uniform(0.45, 1.15) * random.uniform(0.82, 1.18, 3)
    slope = np.linspace(random.uniform(0.6, 1.0), random.uniform(0.6, 1.2), SIDE)[:, None, None]
    pixels = np.asarray(table, np.float32) * light * slope
    pixels = pixels + random.normal(0, random.uniform(3, 14), pixels.shape)
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


if __name__ == "__main__":
    main()
