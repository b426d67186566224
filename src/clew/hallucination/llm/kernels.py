"""The attention of a packed pass on a GPU, and what is recorded of it; norms, gates and rotations.
Every token looks at its own row of the cache, up to itself: only the columns that it can see are
read."""

from collections.abc import Mapping

import torch
import triton
import triton.language as tl
from torch import Tensor

_TILE = 2048
# Columns at once and warps: few programs have to hurry, many share the memory best if small.
_FEW, _MANY, _MANY_PROGRAMS = (64, 2), (16, 1), 4096


@triton.jit
def _write(  # type: ignore[no-untyped-def]
    key, value, keys, values, rows, positions,
    s_head, s_token, v_head, v_token, s_row, s_kv, s_slot,
    HEADS: tl.constexpr, SOME: tl.constexpr, D: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Copy the keys and values of one token in some heads to their place in the cache."""
    token, head = tl.program_id(0), (tl.program_id(1) * SOME + tl.arange(0, SOME))[:, None]
    row, slot = tl.load(rows + token), tl.load(positions + token)
    dim = tl.arange(0, SIZE)[None, :]
    inside = (head < HEADS) & (dim < D)
    source = head * s_head + token * s_token + dim
    other = head * v_head + token * v_token + dim
    target = row * s_row + head * s_kv + slot * s_slot + dim
    tl.store(keys + target, tl.load(key + source, mask=inside), mask=inside)
    tl.store(values + target, tl.load(value + other, mask=inside), mask=inside)


@triton.jit
def _attend(  # type: ignore[no-untyped-def]
    query, keys, values, output, weights, rows, positions, scaling, softcap, window,
    s_head, s_token, s_row, s_kv, s_slot, columns,
    HEADS: tl.constexpr, REPEATS: tl.constexpr, D: tl.constexpr, SIZE: tl.constexpr,
    BLOCK: tl.constexpr, KEEPS: tl.constexpr, CAPS: tl.constexpr,
):  # fmt: skip
    """One token and head: a softmax over the columns, block by block. If there are several, the
    scores are kept in `weights` on the way, and become weights at the end."""
    token, head = tl.program_id(0), tl.program_id(1)
    row, position = tl.load(rows + token), tl.load(positions + token)
    first = tl.maximum(position - window + 1, 0)
    dim, place = tl.arange(0, SIZE), tl.arange(0, BLOCK)
    inside = dim < D
    asked = tl.load(query + head * s_head + token * s_token + dim, mask=inside, other=0.0)
    asked = asked.to(tl.float32) * scaling
    base = row * s_row + (head // REPEATS) * s_kv
    kept = weights + (token * HEADS + head).to(tl.int64) * columns
    highest, total = -float("inf"), 0.0
    mixed, share = tl.zeros([SIZE], dtype=tl.float32), tl.zeros([BLOCK], dtype=tl.float32)
    is_one = position < BLOCK
    for start in range((first // BLOCK) * BLOCK, position + 1, BLOCK):
        column = start + place
        seen = (column <= position) & (column >= first)
        where = base + column[:, None] * s_slot + dim[None, :]
        both = seen[:, None] & inside[None, :]
        key = tl.load(keys + where, mask=both, other=0.0).to(tl.float32)
        score = tl.sum(key * asked[None, :], axis=1)
        if CAPS:
            score = softcap * (2.0 * tl.sigmoid(2.0 * score / softcap) - 1.0)
        score = tl.where(seen, score, -float("inf"))
        if KEEPS:
            tl.store(kept + column, score, mask=(column < columns) & (position >= BLOCK))
        now = tl.maximum(highest, tl.max(score, axis=0))
        share = tl.exp(score - now)
        before = tl.exp(highest - now)
        value = tl.load(values + where, mask=both, other=0.0).to(tl.float32)
        mixed = mixed * before + tl.sum(value * share[:, None], axis=0)
        total = total * before + tl.sum(share, axis=0)
        highest = now
    target = output + (token * HEADS + head) * D + dim
    tl.store(target, (mixed / total).to(output.dtype.element_ty), mask=inside)
    if KEEPS:
        if is_one:
            tl.store(kept + place, share / total, mask=place < columns)
        else:
            tl.debug_barrier()
            for start in range(0, position + 1, BLOCK):
                column = start + place
                seen = (column <= position) & (column >= first)
                score = tl.load(kept + column, mask=seen, other=-float("inf"))
                tl.store(kept + column, tl.exp(score - highest) / total, mask=column < columns)


def write_tokens(
    key: Tensor, value: Tensor, cache: tuple[Tensor, Tensor], where: tuple[Tensor, Tensor]
) -> None:
    """Write keys and values to the cache; see `attend_packed`."""
    kv_heads, tokens, dim = key.shape
    key, value = (part if part.stride(2) == 1 else part.contiguous() for part in (key, value))
    size = triton.next_power_of_2(dim)
    some = min(triton.next_power_of_2(kv_heads), max(1, _TILE // size))
    _write[(tokens, triton.cdiv(kv_heads, some))](
        key, value, *cache, *where, key.stride(0), key.stride(1), value.stride(0),
        value.stride(1), *cache[0].stride()[:3],
        HEADS=kv_heads, SOME=some, D=dim, SIZE=size, num_warps=4,
    )  # fmt: skip


def attend_packed(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cache: tuple[Tensor, Tensor],
    where: tuple[Tensor, Tensor],
    *,
    scaling: float,
    weights: Tensor | None = None,
    softcap: float | None = None,
    window: int | None = None,
) -> Tensor:
    """Write keys and values [heads, tokens, dim] to the `cache` (keys and values, [rows, kv_heads,
    capacity, dim]) at `where` (row and position of each token), and attend. Returns the outputs
    [tokens, heads, dim]; the attention weights go to `weights` [tokens, heads, columns], in
    float32: only those of columns that a token can see."""
    keys, values = cache
    heads, tokens, dim = query.shape
    kv_heads, size = key.shape[0], triton.next_power_of_2(dim)
    strides = (keys.stride(0), keys.stride(1), keys.stride(2))
    write_tokens(key, value, cache, where)
    query = query if query.stride(2) == 1 else query.contiguous()
    output = query.new_empty(tokens, heads, dim)
    block, warps = _MANY if tokens * heads >= _MANY_PROGRAMS else _FEW
    _attend[(tokens, heads)](
        query, keys, values, output, weights if weights is not None else output, *where,
        scaling, softcap or 1.0, window or 1 << 30, query.stride(0), query.stride(1), *strides,
        0 if weights is None else weights.shape[2],
        HEADS=heads, REPEATS=heads // kv_heads, D=dim, SIZE=size, BLOCK=block,
        KEEPS=weights is not None, CAPS=softcap is not None, num_warps=warps,
    )  # fmt: skip
    return output


@triton.jit
def _attend_segments(  # type: ignore[no-untyped-def]
    query, keys, values, output, weights, begins, sizes, starts, origins, scaling, softcap, window,
    q_head, q_token, k_row, k_head, k_slot, v_row, v_head, v_slot, w_lane, w_head, columns,
    HEADS: tl.constexpr, REPEATS: tl.constexpr, D: tl.constexpr, SIZE: tl.constexpr,
    BLOCK: tl.constexpr, PRECISION: tl.constexpr, KEEPS: tl.constexpr, CAPS: tl.constexpr,
):  # fmt: skip
    """Some tokens of one segment in one head: the softmax's sum first, then block by block of
    columns its weights and the values that they mix."""
    part, head, segment = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    size, start = tl.load(sizes + segment), tl.load(starts + segment)
    token = part * BLOCK + tl.arange(0, BLOCK)
    if part * BLOCK < size:
        dim, place = tl.arange(0, SIZE), tl.arange(0, BLOCK)
        is_token, inside = token < size, dim < D
        packed = tl.load(begins + segment) + token
        here = is_token[:, None] & inside[None, :]
        asked = query + head * q_head + packed[:, None] * q_token + dim[None, :]
        asked = tl.load(asked, mask=here, other=0.0)
        origin, shared = tl.load(origins + segment), head // REPEATS
        k_base = keys + origin * k_row + shared * k_head
        v_base = values + origin * v_row + shared * v_head
        position = start + token
        end = start + tl.minimum(size, (part + 1) * BLOCK)
        first = (tl.maximum(start + part * BLOCK - window + 1, 0) // BLOCK) * BLOCK
        highest = tl.full([BLOCK], -float("inf"), dtype=tl.float32)
        total = tl.zeros([BLOCK], dtype=tl.float32)
        mixed = tl.zeros([BLOCK, SIZE], dtype=tl.float32)
        for turn in tl.static_range(2):
            for begin in range(first, end, BLOCK):
                column = begin + place
                is_column = column < end
                key = k_base + column[None, :] * k_slot + dim[:, None]
                key = tl.load(key, mask=is_column[None, :] & inside[:, None], other=0.0)
                score = tl.dot(asked, key, input_precision=PRECISION) * scaling
                if CAPS:
                    score = softcap * (2.0 * tl.sigmoid(2.0 * score / softcap) - 1.0)
                seen = column[None, :] <= position[:, None]
                seen &= column[None, :] > position[:, None] - window
                score = tl.where(seen, score, -float("inf"))
                if turn == 0:
                    now = tl.maximum(highest, tl.max(score, axis=1))
                    still = tl.where(now == -float("inf"), 0.0, now)
                    total = total * tl.exp(highest - still)
                    total += tl.sum(tl.exp(score - still[:, None]), axis=1)
                    highest = now
                else:
                    weight = tl.exp(score - highest[:, None]) / total[:, None]
                    weight = weight.to(query.dtype.element_ty)
                    value = v_base + column[:, None] * v_slot + dim[None, :]
                    value = tl.load(value, mask=is_column[:, None] & inside[None, :], other=0.0)
                    mixed += tl.dot(weight, value, input_precision=PRECISION)
                    if KEEPS:
                        kept = weights + segment.to(tl.int64) * w_lane + head * w_head
                        kept += token[:, None] * columns + column[None, :]
                        fits = is_token[:, None] & (column < columns)[None, :]
                        tl.store(kept, weight, mask=fits)
        target = output + (packed[:, None] * HEADS + head) * D + dim[None, :]
        tl.store(target, mixed.to(output.dtype.element_ty), mask=here)


def attend_segments(
    query: Tensor,
    cache: tuple[Tensor, Tensor],
    origins: Tensor,
    tokens: tuple[Tensor, Tensor, Tensor],
    width: int,
    *,
    scaling: float,
    weights: Tensor | None = None,
    softcap: float | None = None,
    window: int | None = None,
) -> Tensor:
    """The attention of segments of up to `width` tokens: where each begins among the queries
    [heads, tokens, dim], its size and its first position are `tokens`. Keys and values are those of
    the `cache` [rows, kv_heads, slots, dim], where `origins` are rows, or of the pass [kv_heads,
    tokens, dim], where they are tokens. Returns outputs [tokens, heads, dim]; the attention weights
    go to `weights` [segments, heads, tokens, columns], which are 0 where a token cannot look."""
    heads, count, dim = query.shape
    keys, values = (one if one.stride(-1) == 1 else one.contiguous() for one in cache)
    query = query if query.stride(2) == 1 else query.contiguous()
    size = max(16, triton.next_power_of_2(dim))
    block = max(16, min(64, 8192 // size))
    output = query.new_empty(count, heads, dim)
    kept = output if weights is None else weights
    _attend_segments[(triton.cdiv(width, block), heads, len(origins))](
        query, keys, values, output, kept, *tokens, origins, scaling, softcap or 1.0,
        window or 1 << 30, query.stride(0), query.stride(1), *_strides(keys), *_strides(values),
        kept.stride(0), kept.stride(1), kept.shape[-1],
        HEADS=heads, REPEATS=heads // keys.shape[-3], D=dim, SIZE=size, BLOCK=block,
        PRECISION="ieee" if query.dtype == torch.float32 else "tf32", KEEPS=weights is not None,
        CAPS=softcap is not None, num_warps=4, num_stages=1 if query.dtype == torch.float32 else 2,
    )  # fmt: skip
    return output


def _strides(kept: Tensor) -> tuple[int, int, int]:
    """The strides of rows, heads and slots; tokens of a pass are both rows and slots."""
    if kept.dim() == 4:
        return kept.stride(0), kept.stride(1), kept.stride(2)
    return kept.stride(1), kept.stride(0), kept.stride(1)


@triton.jit
def _reduce(  # type: ignore[no-untyped-def]
    weights, rows, positions, prompts, alive, diagonal, received, masses,
    tokens, layers, columns, capacity,
    HEADS: tl.constexpr, SOME: tl.constexpr, SIZE: tl.constexpr,
    DIAGONAL: tl.constexpr, RECEIVED: tl.constexpr, MASSES: tl.constexpr,
):  # fmt: skip
    """One token in some heads of one layer: what the record keeps of its attention."""
    token, layer = tl.program_id(0), tl.program_id(1)
    row, position = tl.load(rows + token), tl.load(positions + token)
    head, column = tl.program_id(2) * SOME + tl.arange(0, SOME), tl.arange(0, SIZE)
    is_head = head < HEADS
    inside = is_head[:, None] & (column <= position)[None, :]
    source = ((layer * tokens + token) * HEADS + head).to(tl.int64) * columns
    weight = tl.load(weights + source[:, None] + column[None, :], mask=inside, other=0.0)
    target = ((row * layers + layer) * HEADS + head) * capacity
    if DIAGONAL:
        own = tl.sum(tl.where((column == position)[None, :], weight, 0.0), axis=1)
        tl.store(diagonal + target + position, own, mask=is_head)
    if MASSES:
        in_prompt = (column < tl.load(prompts + row))[None, :]
        first = (target + position) * 2
        tl.store(masses + first, tl.sum(tl.where(in_prompt, weight, 0.0), axis=1), mask=is_head)
        tl.store(masses + first + 1, tl.sum(tl.where(in_prompt, 0.0, weight), axis=1), mask=is_head)
    if RECEIVED:
        where = received + target[:, None] + column[None, :]
        tl.atomic_add(where, weight, mask=inside & tl.load(alive + token), sem="relaxed")


@triton.jit
def _sum_states(  # type: ignore[no-untyped-def]
    states, rows, positions, prompts, alive, sums, tokens, layers,
    D: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Add the state of one token in one layer to the sum of its answer."""
    token, layer = tl.program_id(0), tl.program_id(1)
    row = tl.load(rows + token)
    if tl.load(alive + token) & (tl.load(positions + token) >= tl.load(prompts + row)):
        dim = tl.arange(0, SIZE)
        inside = dim < D
        source = (layer * tokens + token).to(tl.int64) * D + dim
        state = tl.load(states + source, mask=inside, other=0.0).to(tl.float32)
        target = sums + (row * layers + layer) * D + dim
        tl.atomic_add(target, state, mask=inside, sem="relaxed")


@triton.jit
def _keep_last(  # type: ignore[no-untyped-def]
    states, rows, last, alive, kept, tokens, layers, D: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Copy the state of a segment's last token in one layer to its row."""
    segment, layer = tl.program_id(0), tl.program_id(1)
    token = tl.load(last + segment)
    if tl.load(alive + token):
        row = tl.load(rows + token)
        dim = tl.arange(0, SIZE)
        inside = dim < D
        source = (layer * tokens + token).to(tl.int64) * D + dim
        state = tl.load(states + source, mask=inside, other=0.0)
        target = kept + (row * layers + layer) * D + dim
        tl.store(target, state.to(kept.dtype.element_ty), mask=inside)


def reduce_weights(
    weights: Tensor,
    where: tuple[Tensor, Tensor],
    prompts: Tensor,
    alive: Tensor,
    kept: Mapping[str, Tensor],
) -> None:
    """Add the attention weights of a pass [layers, tokens, heads, columns] to what is kept of them:
    "diagonal", "received" and "masses", those that there are, [rows, layers, heads, capacity]."""
    some = next((kept[name] for name in ("diagonal", "masses", "received") if name in kept), None)
    if some is None:
        return
    layers, tokens, heads, columns = weights.shape
    targets = [kept.get(name, some) for name in ("diagonal", "received", "masses")]
    size = triton.next_power_of_2(columns)
    # A program for each head would do too little.
    at_once = min(triton.next_power_of_2(heads), max(1, _TILE // size))
    _reduce[(tokens, layers, triton.cdiv(heads, at_once))](
        weights, *where, prompts, alive, *targets, tokens, layers, columns, some.shape[3],
        HEADS=heads, SOME=at_once, SIZE=size, DIAGONAL="diagonal" in kept,
        RECEIVED="received" in kept, MASSES="masses" in kept, num_warps=4,
    )  # fmt: skip


def sum_states(
    states: Tensor, where: tuple[Tensor, Tensor], prompts: Tensor, alive: Tensor, sums: Tensor
) -> None:
    """Add the states of a pass [layers, tokens, dim] that are of answers to their sums [rows,
    layers, dim]."""
    layers, tokens, dim = states.shape
    _sum_states[(tokens, layers)](
        states, *where, prompts, alive, sums, tokens, layers,
        D=dim, SIZE=triton.next_power_of_2(dim), num_warps=4,
    )  # fmt: skip


def keep_last(states: Tensor, rows: Tensor, last: Tensor, alive: Tensor, kept: Tensor) -> None:
    """Copy the states of a pass [layers, tokens, dim] at the `last` tokens of its segments to what
    is kept of their rows [rows, layers, dim]."""
    layers, tokens, dim = states.shape
    _keep_last[(len(last), layers)](
        states, rows, last, alive, kept, tokens, layers,
        D=dim, SIZE=triton.next_power_of_2(dim), num_warps=4,
    )  # fmt: skip


@triton.jit
def _normalize(  # type: ignore[no-untyped-def]
    given, weight, output, eps, D: tl.constexpr, SIZE: tl.constexpr
):  # fmt: skip
    """The root mean square norm of one row, rounded where PyTorch's operations round."""
    dim = tl.arange(0, SIZE)
    inside = dim < D
    place = tl.program_id(0).to(tl.int64) * D + dim
    x = tl.load(given + place, mask=inside, other=0.0).to(tl.float32)
    kind = output.dtype.element_ty
    scaled = (x * tl.rsqrt(tl.sum(x * x, axis=0) / D + eps)).to(kind).to(tl.float32)
    scale = tl.load(weight + dim, mask=inside, other=0.0).to(tl.float32)
    tl.store(output + place, (scaled * scale).to(kind), mask=inside)


@triton.jit
def _gate(gates, values, output, count, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """SiLU of one part times the other."""
    place = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    inside = place < count
    x = tl.load(gates + place, mask=inside, other=0.0).to(tl.float32)
    kind = output.dtype.element_ty
    opened = (x / (1.0 + tl.exp(-x))).to(kind).to(tl.float32)
    value = tl.load(values + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(output + place, (opened * value).to(kind), mask=inside)


@triton.jit
def _rotate(  # type: ignore[no-untyped-def]
    given, cos, sin, output, s_head, s_token,
    HEADS: tl.constexpr, SOME: tl.constexpr, HALF: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Rotary embedding of one token in some heads: the two halves are rotated together."""
    token, head = tl.program_id(0), tl.program_id(1) * SOME + tl.arange(0, SOME)
    dim = tl.arange(0, SIZE)
    inside = (head < HEADS)[:, None] & (dim < HALF)[None, :]
    source = given + head[:, None] * s_head + token * s_token + dim[None, :]
    target = output + (token * HEADS + head[:, None]).to(tl.int64) * (2 * HALF) + dim[None, :]
    low = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    high = tl.load(source + HALF, mask=inside, other=0.0).to(tl.float32)
    kind = output.dtype.element_ty
    for half in tl.static_range(2):
        angle = token * (2 * HALF) + half * HALF + dim
        c = tl.load(cos + angle, mask=dim < HALF, other=0.0).to(tl.float32)[None, :]
        s = tl.load(sin + angle, mask=dim < HALF, other=0.0).to(tl.float32)[None, :]
        if half == 0:
            own, other = low * c, -high * s
        else:
            own, other = high * c, low * s
        rotated = own.to(kind).to(tl.float32) + other.to(kind).to(tl.float32)
        tl.store(target + half * HALF, rotated.to(kind), mask=inside)


def normalize(given: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root mean square norm of the last dimension."""
    given = given.contiguous()
    output, size = torch.empty_like(given), triton.next_power_of_2(len(weight))
    rows = given.numel() // len(weight)
    _normalize[(rows,)](
        given, weight, output, eps, D=len(weight), SIZE=size, num_warps=8 if size > 2048 else 4
    )
    return output


def gate(gates: Tensor, values: Tensor) -> Tensor:
    """silu(gates) * values."""
    gates, values = gates.contiguous(), values.contiguous()
    output, count = torch.empty_like(gates), gates.numel()
    _gate[(triton.cdiv(count, _TILE),)](gates, values, output, count, SIZE=_TILE, num_warps=4)
    return output


def rotate(given: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of queries or keys [1, heads, tokens, dim] by [tokens, dim]."""
    _, heads, tokens, dim = given.shape
    given = given if given.stride(3) == 1 else given.contiguous()
    output = given.new_empty(1, tokens, heads, dim)
    size = triton.next_power_of_2(dim // 2)
    some = min(triton.next_power_of_2(heads), max(1, _TILE // size))
    _rotate[(tokens, triton.cdiv(heads, some))](
        given, cos.contiguous(), sin.contiguous(), output, given.stride(1), given.stride(2),
        HEADS=heads, SOME=some, HALF=dim // 2, SIZE=size, num_warps=4,
    )  # fmt: skip
    return output.transpose(1, 2)
