"""All augmentation of an image in two kernels on a GPU: one computes its value table, one moves,
recolors, sharpens and converts it. Launched one by one, the operations would take as long as a
network."""

import torch
import triton
import triton.language as tl

from clew.patterns.augment.operations import (
    PARAMETERS,
    SAMPLED_SIDE,
    Images,
    Parameters,
    Signs,
    Values,
)

_PIXELS_AT_ONCE = 256
_SAMPLES_AT_ONCE = 1024
_COUNT = tl.constexpr(len(PARAMETERS))
_ANGLE, _SHEAR_X, _SHEAR_Y, _SHIFT_X, _SHIFT_Y, _ZOOM = (tl.constexpr(i) for i in range(6))
_BRIGHTNESS, _CONTRAST, _COLOR, _SHARPNESS = (tl.constexpr(i) for i in range(6, 10))
_POSTERIZE, _SOLARIZE, _AUTOCONTRAST, _EQUALIZE = (tl.constexpr(i) for i in range(10, 14))
_STRETCH = tl.constexpr(14)


@triton.jit
def _load_samples(image, start, side, step, sampled, channel, SAMPLES: tl.constexpr):
    """Values of every n-th pixel, and a mask of the valid ones."""
    k = start + tl.arange(0, SAMPLES)
    there = k < sampled * sampled
    at = ((k // sampled) * step * side + (k % sampled) * step) * 3 + channel
    return tl.load(image + at, mask=there, other=0).to(tl.int32), there


@triton.jit
def _mean(image, side, step, sampled, channel, SAMPLES: tl.constexpr):
    total = 0.0
    for start in range(0, sampled * sampled, SAMPLES):
        values, _ = _load_samples(image, start, side, step, sampled, channel, SAMPLES)
        total += tl.sum(values, axis=0).to(tl.float32)
    return total / (255.0 * sampled * sampled)


@triton.jit
def _table_kernel(images, parameters, tables, side, step, sampled, SAMPLES: tl.constexpr):
    """One channel of one image per program."""
    picture, channel = tl.program_id(0), tl.program_id(1)
    image = images + picture.to(tl.int64) * side * side * 3
    own = parameters + picture * _COUNT
    counts = tl.zeros((256,), tl.int32)
    for start in range(0, sampled * sampled, SAMPLES):
        values, there = _load_samples(image, start, side, step, sampled, channel, SAMPLES)
        counts += tl.histogram(values, 256, mask=there)
    value = tl.arange(0, 256).to(tl.float32) / 255.0
    table = value
    low = tl.min(tl.where(counts > 0, value, 1.0), axis=0)
    high = tl.max(tl.where(counts > 0, value, 0.0), axis=0)
    wide = tl.maximum(high - low, 1.0 / 255.0)
    stretched = tl.minimum(tl.maximum((value - low) / wide, 0.0), 1.0)
    table = tl.where((tl.load(own + _AUTOCONTRAST) > 0) & (high > low), stretched, table)
    below = tl.cumsum(counts, axis=0).to(tl.float32)
    first = tl.min(tl.where(counts > 0, below, float("inf")), axis=0)
    rest = sampled * sampled - first
    spread = tl.minimum(tl.maximum((below - first) / tl.maximum(rest, 1.0), 0.0), 1.0)
    table = tl.where((tl.load(own + _EQUALIZE) > 0) & (rest > 0), spread, table)
    bits = tl.floor(tl.load(own + _POSTERIZE) + 0.5)
    coarse = tl.exp2(bits)
    table = tl.where(bits > 0, tl.floor(table * 255.0 / coarse + 1e-4) * coarse / 255.0, table)
    table = tl.where(table >= 1.0 - tl.load(own + _SOLARIZE) + 1e-4, 1.0 - table, table)
    table *= tl.exp(tl.load(own + _BRIGHTNESS))
    gray = 0.299 * _mean(image, side, step, sampled, 0, SAMPLES)
    gray += 0.587 * _mean(image, side, step, sampled, 1, SAMPLES)
    gray += 0.114 * _mean(image, side, step, sampled, 2, SAMPLES)
    table = gray + (table - gray) * tl.exp(tl.load(own + _CONTRAST))
    table = tl.minimum(tl.maximum(table, 0.0), 1.0)
    tl.store(tables + (picture * 3 + channel) * 256 + tl.arange(0, 256), table)


@triton.jit
def _reflect(place, side):
    """Reflects at the edges of the outermost pixels, as PyTorch's grid_sample does."""
    far = tl.abs(place + 0.5)
    times = tl.floor(far / side)
    inside = far - times * side
    odd = times - 2.0 * tl.floor(times / 2.0) > 0.5
    back = tl.where(odd, side - inside, inside) - 0.5
    return tl.minimum(tl.maximum(back, 0.0), side - 1.0)


@triton.jit
def _corner(image, table, row, column, weight, side):
    """What one of the four neighbors adds to the three channels."""
    there = (row < side) & (column < side)
    at = image + (row * side + column) * 3
    red = tl.load(table + tl.load(at, mask=there, other=0).to(tl.int32))
    green = tl.load(table + 256 + tl.load(at + 1, mask=there, other=0).to(tl.int32))
    blue = tl.load(table + 512 + tl.load(at + 2, mask=there, other=0).to(tl.int32))
    weight = tl.where(there, weight, 0.0)
    return red * weight, green * weight, blue * weight


@triton.jit
def _pixel(image, table, own, mirrored, row, column, side):
    """The moved and colored pixel at a position of the new image."""
    wide = tl.exp(tl.load(own + _STRETCH) / 2.0)
    x = ((2.0 * column + 1.0) / side - 1.0) * wide
    y = ((2.0 * row + 1.0) / side - 1.0) / wide
    angle, zoom = tl.load(own + _ANGLE), tl.exp(-tl.load(own + _ZOOM))
    cosine, sine = tl.cos(angle) * zoom, tl.sin(angle) * zoom
    shear_x, shear_y = tl.load(own + _SHEAR_X), tl.load(own + _SHEAR_Y)
    from_x = (cosine + shear_x * sine) * mirrored * x + (-sine + shear_x * cosine) * y
    from_y = (sine + shear_y * cosine) * mirrored * x + (cosine - shear_y * sine) * y
    from_x += 2.0 * tl.load(own + _SHIFT_X)
    from_y += 2.0 * tl.load(own + _SHIFT_Y)
    at_x = _reflect(((from_x + 1.0) * side - 1.0) / 2.0, side)
    at_y = _reflect(((from_y + 1.0) * side - 1.0) / 2.0, side)
    left, top = tl.floor(at_x), tl.floor(at_y)
    right_share, low_share = at_x - left, at_y - top
    c, r = left.to(tl.int32), top.to(tl.int32)
    upper, left_share = 1.0 - low_share, 1.0 - right_share
    red, green, blue = _corner(image, table, r, c, upper * left_share, side)
    red1, green1, blue1 = _corner(image, table, r, c + 1, upper * right_share, side)
    red2, green2, blue2 = _corner(image, table, r + 1, c, low_share * left_share, side)
    red3, green3, blue3 = _corner(image, table, r + 1, c + 1, low_share * right_share, side)
    red, green, blue = red + red1, green + green1, blue + blue1
    red, green, blue = red + red2 + red3, green + green2 + green3, blue + blue2 + blue3
    gray = 0.299 * red + 0.587 * green + 0.114 * blue
    factor = tl.exp(tl.load(own + _COLOR))
    red = tl.minimum(tl.maximum(gray + (red - gray) * factor, 0.0), 1.0)
    green = tl.minimum(tl.maximum(gray + (green - gray) * factor, 0.0), 1.0)
    blue = tl.minimum(tl.maximum(gray + (blue - gray) * factor, 0.0), 1.0)
    return red, green, blue


@triton.jit
def _move_kernel(images, tables, parameters, mirrors, out, side, PIXELS: tl.constexpr):
    """A run of one image's pixels per program."""
    picture = tl.program_id(0)
    image = images + picture.to(tl.int64) * side * side * 3
    table, own = tables + picture * 768, parameters + picture * _COUNT
    mirrored = tl.load(mirrors + picture)
    pixel = tl.program_id(1) * PIXELS + tl.arange(0, PIXELS)
    row, column = pixel // side, pixel % side
    red, green, blue = _pixel(image, table, own, mirrored, row, column, side)
    sharpness = tl.load(own + _SHARPNESS)
    if sharpness != 0.0:  # few images: only these need their neighbors
        soft_red, soft_green, soft_blue = 5.0 * red, 5.0 * green, 5.0 * blue
        for place in range(9):
            if place != 4:
                r = tl.minimum(tl.maximum(row + place // 3 - 1, 0), side - 1)
                c = tl.minimum(tl.maximum(column + place % 3 - 1, 0), side - 1)
                red1, green1, blue1 = _pixel(image, table, own, mirrored, r, c, side)
                soft_red += red1
                soft_green += green1
                soft_blue += blue1
        factor = tl.exp(sharpness)
        soft_red, soft_green, soft_blue = soft_red / 13.0, soft_green / 13.0, soft_blue / 13.0
        red = tl.minimum(tl.maximum(soft_red + (red - soft_red) * factor, 0.0), 1.0)
        green = tl.minimum(tl.maximum(soft_green + (green - soft_green) * factor, 0.0), 1.0)
        blue = tl.minimum(tl.maximum(soft_blue + (blue - soft_blue) * factor, 0.0), 1.0)
    there = pixel < side * side
    at = out + (picture.to(tl.int64) * side * side + pixel) * 3
    kind = out.dtype.element_ty
    tl.store(at, red.to(kind), mask=there)
    tl.store(at + 1, green.to(kind), mask=there)
    tl.store(at + 2, blue.to(kind), mask=there)


def apply_fused(
    images: Images, parameters: Parameters, mirrored: Signs, dtype: torch.dtype
) -> Values:
    """Apply the augmentation on a GPU; the result equals that of `apply_changes`."""
    count, side = images.shape[:2]
    step = max(1, side // SAMPLED_SIDE)
    images, parameters = images.contiguous(), parameters.contiguous()
    tables = torch.empty(count, 3, 256, device=images.device)
    _table_kernel[(count, 3)](
        images, parameters, tables, side, step, -(-side // step), SAMPLES=_SAMPLES_AT_ONCE
    )
    out = torch.empty(count, side, side, 3, dtype=dtype, device=images.device)
    _move_kernel[(count, triton.cdiv(side * side, _PIXELS_AT_ONCE))](
        images, tables, parameters, mirrored, out, side, PIXELS=_PIXELS_AT_ONCE, num_warps=4
    )
    return out
