"""Draws photos of fruit, leaves and cups for the pictures in the documentation: every pixel is our
own. `draw_set` writes class folders with the faults that people's sets have."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

SIZE = 224
CLASSES = ("apple", "banana", "cup", "leaf", "lemon", "pear")
_BIG = 2 * SIZE
_WRONG_LABELS = (("lemon", "pear"), ("cup", "apple"), ("pear", "leaf"), ("banana", "lemon"))
# The ranges of red, green and blue of each kind.
_COLORS = {
    "apple": ((165, 215), (25, 60), (30, 50)),
    "banana": ((225, 250), (190, 220), (50, 90)),
    "cup": ((60, 230), (90, 220), (110, 230)),
    "leaf": ((50, 110), (110, 160), (40, 70)),
    "lemon": ((225, 250), (205, 230), (40, 90)),
    "pear": ((150, 200), (170, 200), (50, 80)),
    "mushroom": ((150, 190), (95, 120), (60, 85)),
}
_GROUNDS = ((188, 154, 116), (226, 221, 210), (120, 132, 140), (92, 70, 54), (168, 186, 176))

Draw = ImageDraw.ImageDraw


def draw_set(folder: Path, per_class: int = 40) -> None:
    """Class folders with a few wrong labels, near duplicates, and blurred and dark photos."""
    drawn = {
        name: [draw_photo(name, 1000 * place + number) for number in range(per_class)]
        for place, name in enumerate(CLASSES)
    }
    for name, photos in drawn.items():
        for number, photo in enumerate(photos, 1):
            _save(photo, folder / name / f"{name}_{number:02}.jpg")
    for number, (right, wrong) in enumerate(_WRONG_LABELS):
        _save(draw_photo(right, 9000 + number), folder / wrong / f"img_{31 + number}.jpg")
    for name in CLASSES[::2]:
        copy = drawn[name][4].crop((5, 4, SIZE - 4, SIZE - 5)).resize((180, 180))
        _save(copy, folder / name / f"{name}_05_small.jpg")
    mirrored = drawn["cup"][7].transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    _save(mirrored, folder / "cup" / "cup_mirrored.jpg")
    blurred = draw_photo("leaf", 9100).filter(ImageFilter.GaussianBlur(9))
    _save(blurred, folder / "leaf" / "leaf_moved.jpg")
    dark = draw_photo("banana", 9101).point(lambda value: value // 8)
    _save(dark, folder / "banana" / "night.jpg")


def draw_photo(kind: str, seed: int) -> Image.Image:
    """One object on a table, under a light from the upper left."""
    random = np.random.default_rng(seed)
    mask = Image.new("L", (_BIG, _BIG))
    _SHAPES[kind](ImageDraw.Draw(mask), random)
    mask = _place(mask, random, turns=kind not in ("cup", "mushroom"))
    covered = np.asarray(mask, np.float32)[..., None] / 255
    color = np.array([random.uniform(*ends) for ends in _COLORS[kind]], np.float32)
    lit = _shade(mask, color + _grain(random, 14, 40), flat=kind == "leaf")
    shadow = Image.new("L", mask.size)
    shadow.paste(mask, (16, 22))
    shade = np.asarray(shadow.filter(ImageFilter.GaussianBlur(20)), np.float32)[..., None] / 255
    pixels = _ground(random) * (1 - 0.55 * shade) * (1 - covered) + lit * covered
    return _photograph(pixels, random)


def _polar(draw: Draw, radius: Callable[[np.ndarray], np.ndarray], fill: int = 255) -> None:
    turn = np.linspace(0, 2 * math.pi, 181)
    reach = radius(turn) * _BIG
    x, y = _BIG / 2 + reach * np.sin(turn), _BIG / 2 - reach * np.cos(turn)
    draw.polygon(list(zip(x.tolist(), y.tolist(), strict=True)), fill=fill)


def _apple(draw: Draw, random: np.random.Generator) -> None:
    wide = random.uniform(0.26, 0.3)
    dip = random.uniform(0.05, 0.09)
    _polar(
        draw,
        lambda t: wide - dip * np.exp(-((np.cos(t / 2) ** 2 - 1) ** 2) * 60) - 0.02 * np.cos(t),
    )
    draw.line([(_BIG * 0.5, _BIG * 0.31), (_BIG * random.uniform(0.5, 0.56), _BIG * 0.18)], 255, 12)


def _pear(draw: Draw, random: np.random.Generator) -> None:
    long = random.uniform(0.11, 0.15)
    _polar(draw, lambda t: 0.24 + long * np.exp(-((np.sin(t / 2) * 3.2) ** 2)) - 0.03 * np.cos(t))
    draw.line([(_BIG * 0.5, _BIG * 0.18), (_BIG * random.uniform(0.5, 0.57), _BIG * 0.08)], 255, 12)


def _lemon(draw: Draw, random: np.random.Generator) -> None:
    tip = random.uniform(0.05, 0.08)
    _polar(draw, lambda t: 0.22 + 0.05 * np.sin(t) ** 2 + tip * np.abs(np.sin(t)) ** 24)


def _leaf(draw: Draw, random: np.random.Generator) -> None:
    slim = random.uniform(1.6, 2.4)
    _polar(draw, lambda t: 0.4 / (1 + slim * np.abs(np.sin(t))) + 0.006 * np.sin(40 * t))
    draw.line([(_BIG * 0.5, _BIG * 0.15), (_BIG * 0.5, _BIG * 0.96)], 205, 7)
    for step in np.linspace(0.3, 0.7, 5):
        for side in (-0.09, 0.09):
            ends = [(_BIG * 0.5, _BIG * step), (_BIG * (0.5 + side), _BIG * (step - 0.08))]
            draw.line(ends, 215, 4)


def _banana(draw: Draw, random: np.random.Generator) -> None:
    bend = random.uniform(0.9, 1.3)
    for way in np.linspace(-1, 1, 90):
        thick = _BIG * 0.075 * (1 - abs(way) ** 3) ** 0.5 + 6
        x = _BIG * (0.5 + 0.36 * math.sin(bend * way))
        y = _BIG * (0.35 + 0.36 * math.cos(bend * way) - 0.1)
        draw.ellipse((x - thick, y - thick, x + thick, y + thick), 255)


def _cup(draw: Draw, random: np.random.Generator) -> None:
    left, right = _BIG * random.uniform(0.24, 0.32), _BIG * random.uniform(0.58, 0.68)
    top, bottom = _BIG * random.uniform(0.22, 0.4), _BIG * 0.74
    reach = random.uniform(0.1, 0.18) * _BIG
    draw.ellipse((right - 40, top + 50, right + reach, bottom - 50), outline=255, width=22)
    draw.rounded_rectangle((left, top, right, bottom), random.uniform(20, 60), 255)
    draw.ellipse((left, top - 30, right, top + 34), 255)
    draw.ellipse((left + 14, top - 20, right - 14, top + 26), 90)


def _mushroom(draw: Draw, random: np.random.Generator) -> None:
    thin = random.uniform(0.07, 0.1)
    draw.rounded_rectangle(
        (_BIG * (0.5 - thin), _BIG * 0.45, _BIG * (0.5 + thin), _BIG * 0.8), 30, 255
    )
    draw.pieslice((_BIG * 0.2, _BIG * 0.2, _BIG * 0.8, _BIG * 0.8), 180, 360, 255)


_SHAPES: dict[str, Callable[[Draw, np.random.Generator], None]] = {
    "apple": _apple,
    "banana": _banana,
    "cup": _cup,
    "leaf": _leaf,
    "lemon": _lemon,
    "pear": _pear,
    "mushroom": _mushroom,
}


def _place(mask: Image.Image, random: np.random.Generator, *, turns: bool) -> Image.Image:
    """Mirrored or not, turned, of another size and off the center."""
    if random.random() < 0.5:
        mask = mask.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    most = 180 if turns else 8
    turned = mask.rotate(random.uniform(-most, most), Image.Resampling.BICUBIC)
    side = int(_BIG * random.uniform(0.85, 1.2))
    placed = Image.new("L", mask.size)
    spot = tuple(int(random.uniform(-0.07, 0.07) * _BIG + (_BIG - side) / 2) for _ in range(2))
    placed.paste(turned.resize((side, side), Image.Resampling.LANCZOS), spot)
    return placed


def _shade(mask: Image.Image, color: np.ndarray, *, flat: bool) -> np.ndarray:
    """The object lit as if the outline were inflated."""
    inside = np.asarray(mask, np.float32) / 255
    slope_y, slope_x = np.gradient(_inflate(inside, (3, 6) if flat else (6, 14, 28, 40)))
    length = np.sqrt(slope_x**2 + slope_y**2 + 0.35**2)
    facing = (0.55 * slope_x + 0.6 * slope_y + 0.58 * 0.35) / length
    gloss = np.clip(facing, 0, 1) ** (60 if flat else 28)
    bright = 0.36 + 0.85 * np.clip((facing + 0.4) / 1.4, 0, 1)
    return color * (bright * (0.35 + 0.65 * inside))[..., None] + 90 * gloss[..., None]


def _inflate(inside: np.ndarray, widths: tuple[int, ...]) -> np.ndarray:
    """The height of each pixel: a sum of the outline under Gaussian blurs of these widths."""
    rows, columns = np.fft.fftfreq(_BIG)[:, None], np.fft.rfftfreq(_BIG)
    passed = sum(w * np.exp(-2 * (math.pi * w) ** 2 * (rows**2 + columns**2)) for w in widths)
    return np.fft.irfft2(np.fft.rfft2(inside) * passed, inside.shape)


def _ground(random: np.random.Generator) -> np.ndarray:
    """A table top: wood with planks, or cloth."""
    color = np.array(_GROUNDS[random.integers(len(_GROUNDS))], np.float32)
    color = color + random.uniform(-12, 12, 3)
    pixels = color + _grain(random, 11, random.choice([9, 160]), stretch=12)
    if random.random() < 0.5:
        every = int(random.uniform(90, 150))
        pixels[::every, :] *= 0.7
        pixels[1::every, :] *= 0.8
    return pixels * np.linspace(random.uniform(0.75, 1.0), 1.08, _BIG)[:, None, None]


def _grain(random: np.random.Generator, strength: float, cell: int, stretch: int = 1) -> np.ndarray:
    rows, columns = max(2, _BIG // cell), max(2, _BIG // cell // stretch)
    noise = Image.fromarray(random.normal(0, strength, (rows, columns)).astype(np.float32))
    return np.asarray(noise.resize((_BIG, _BIG), Image.Resampling.BICUBIC))[..., None]


def _photograph(pixels: np.ndarray, random: np.random.Generator) -> Image.Image:
    """Light, focus and noise of a camera."""
    light = random.uniform(0.8, 1.12) * np.array(
        [random.uniform(0.96, 1.05), 1, random.uniform(0.9, 1.05)]
    )
    image = Image.fromarray(np.clip(pixels * light, 0, 255).astype(np.uint8))
    image = image.filter(ImageFilter.GaussianBlur(random.uniform(0.6, 2.0)))
    small = np.asarray(image.resize((SIZE, SIZE), Image.Resampling.LANCZOS), np.float32)
    noisy = small + random.normal(0, 3, small.shape)
    return Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8))


def _save(photo: Image.Image, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    photo.save(path, quality=90)
