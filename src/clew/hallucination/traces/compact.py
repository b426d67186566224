"""The compact record of traces: its fields, how they follow from states and attention, and the
basis that reduces a token's state to a few numbers. What is kept of the attention is a reduction
over its rows, so a pass over one new token adds one row."""

import platform
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Bool, Float, Float16, Int, UInt8
from torch import Tensor
from torch.nn.functional import pad

from clew.base.errors import StoreError
from clew.hallucination.traces.schema import (
    BASIS_NAME,
    BLOCK,
    DIAGONALS,
    LAPLACIAN_ANSWER,
    LOG_ALL,
    LOG_ANSWER,
    SPECTRUM,
)
from clew.storage.arrow import ARROW_ERRORS, encode_table, read_table
from clew.storage.reading import hash_file
from clew.storage.uploading import write_side_file
from clew.storage.working_copy import fetched

# Of a component, relative to the first: with less, its direction is noise.
_NO_VARIANCE = 1e-6
# Of states in 8 bits.
_LARGEST = 127
# Of a larger one, 127 times the scale would be beyond the range of float16.
_LARGEST_SCALE = 512.0


@dataclass(frozen=True, kw_only=True)
class Basis:
    """Projects a layer's states onto its principal components: `(state - mean) @ components`."""

    mean: Float[Tensor, "layers dim"]
    components: Float[Tensor, "layers dim node_dim"]

    @property
    def node_dim(self) -> int:
        return self.components.shape[-1]

    def project(
        self, states: Float[Tensor, "layers tokens dim"]
    ) -> Float[Tensor, "layers tokens node_dim"]:
        """Project the states of all layers. Computed on the device in the basis's precision;
        returned in float32."""
        centered = states.to(self.components.dtype) - self.mean[:, None]
        return (centered @ self.components).float()

    def of_layers(self, layers: Sequence[int]) -> "Basis":
        """The basis of some layers."""
        return Basis(mean=self.mean[list(layers)], components=self.components[list(layers)])

    def to(self, device: torch.device, dtype: torch.dtype) -> "Basis":
        return Basis(mean=self.mean.to(device, dtype), components=self.components.to(device, dtype))


def fit_basis(states: Iterable[Float[Tensor, "tokens dim"]], node_dim: int) -> Basis:
    """Principal components of each layer's states, padded with zeros if there are fewer."""
    fitted = [_fit_layer(layer, node_dim) for layer in states]
    means, components = zip(*fitted, strict=True)
    return Basis(mean=torch.stack(means).cpu(), components=torch.stack(components).cpu())


def _fit_layer(
    states: Float[Tensor, "tokens dim"], node_dim: int
) -> tuple[Float[Tensor, " dim"], Float[Tensor, "dim node_dim"]]:
    states = states[states.isfinite().all(1)]
    components = torch.zeros(states.shape[1], node_dim, device=states.device)
    if not len(states):
        return components.new_zeros(states.shape[1]), components
    mean = states.mean(0)
    rows = _fix_signs(_principal(states - mean, node_dim))
    components[:, : len(rows)] = rows.T
    return mean, components


def _principal(centered: Float[Tensor, "tokens dim"], most: int) -> Float[Tensor, "components dim"]:
    """The directions of largest variance, largest first. The eigenvectors of the smaller product
    of the states with themselves take a third to a half of the time of a singular value
    decomposition, and in float64 they are as good."""
    states = centered.double()
    is_wide = states.shape[0] < states.shape[1]
    _, vectors = torch.linalg.eigh(states @ states.T if is_wide else states.T @ states)
    largest = vectors.flip(1)[:, : min(most, *states.shape)]
    if is_wide:
        largest = states.T @ largest
        norms = largest.norm(dim=0)
        largest = largest * torch.where(norms > _NO_VARIANCE * norms[0], 1 / norms, 0.0)
    return largest.T.to(centered.dtype)


def _fix_signs(rows: Float[Tensor, "k dim"]) -> Float[Tensor, "k dim"]:
    """Fix the sign of each component, which is arbitrary: the largest entry becomes positive."""
    largest = rows.gather(1, rows.abs().argmax(1, keepdim=True))
    return rows * torch.where(largest < 0, -1.0, 1.0)


def save_basis(store: Path, basis: Basis) -> str:
    """Write the basis of a store; returns the SHA-256 of the one that is there, which at a URL may
    be another process's."""
    return write_side_file(store, BASIS_NAME, encode_basis(basis))


def encode_basis(basis: Basis, **about: str) -> bytes:
    layers, dim, node_dim = basis.components.shape
    table = pa.table(
        {
            "mean": _as_lists(basis.mean.numpy(), dim),
            "components": _as_lists(basis.components.reshape(layers, -1).numpy(), dim * node_dim),
        }
    ).replace_schema_metadata({"shape": f"{layers},{dim},{node_dim}", **about})
    return encode_table(table)


def load_basis(store: Path, sha256: str | None) -> Basis:
    """The basis in a folder, whose hash is known unless an earlier version wrote it; raises
    StoreError if it is missing or damaged."""
    try:
        with fetched(store, BASIS_NAME) as path:
            if sha256 not in (None, hash_file(path)):
                raise ValueError("it has changed since it was written")
            return decode_basis(read_table(path))
    except (*ARROW_ERRORS, KeyError, TypeError) as error:
        raise StoreError(
            f"{store / BASIS_NAME} cannot be read ({str(error).splitlines()[0]}): restore it from "
            "a backup of the store, or start a new store with another `out`."
        ) from None


def decode_basis(table: pa.Table) -> Basis:
    """The basis in a table that `encode_basis` made; raises KeyError, TypeError or ValueError for
    another one."""
    layers, dim, node_dim = (int(n) for n in table.schema.metadata[b"shape"].split(b","))
    return Basis(
        mean=_as_tensor(table["mean"], (layers, dim)),
        components=_as_tensor(table["components"], (layers, dim, node_dim)),
    )


def _as_lists(values: np.ndarray, size: int) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), size)


def _as_tensor(column: pa.ChunkedArray, shape: tuple[int, ...]) -> Tensor:
    flat = column.combine_chunks().flatten().to_numpy(zero_copy_only=True)
    return torch.from_numpy(flat.copy()).reshape(shape)


FLOAT16_MAX = 65504.0
# PyTorch converts to and from float16 one value at a time on arm, NumPy several at once.
_BY_NUMPY = platform.machine() in ("aarch64", "arm64")
_TINY = 1e-30
# The columns with one entry per token, and the dimension of the tokens.
_TOKENS = {"nodes": 2, "edge_source": 2, "edge_weight": 2, **dict.fromkeys(DIAGONALS, 3)}
_PACKED_ROWS = 64
# On a GPU, several layers are sorted at once: fewer kernels.
_SORTED_LAYERS = {"cuda": 4}
# Those of states.
STATES = frozenset(("last_hidden", "answer_hidden", "nodes"))
# What can be recorded; "edges" are the columns edge_source and edge_weight.
COLUMNS = STATES | {"edges", *DIAGONALS, "lookback"}


def log_diagonal(diagonal: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """The logarithm of each token's attention to itself."""
    return diagonal.clamp(min=_TINY).log()


def laplacian(
    received: Float[Tensor, "batch layers heads slots"],
    diagonal: Float[Tensor, "batch layers heads slots"],
    lengths: Int[Tensor, " batch"],
    index: Int[Tensor, "batch slots"],
) -> Float[Tensor, "batch layers heads slots"]:
    """The diagonal of the attention's Laplacian: what a token receives on average from itself and
    those after it, less what it gives itself. `index` is each slot's place in its row."""
    below = (lengths[:, None] - index).clamp(min=1)[:, None, None]
    return received / below - diagonal


def lookback(
    masses: Float[Tensor, "batch layers heads slots 2"],
    lengths: Int[Tensor, " batch"],
    answers: Int[Tensor, " batch"],
    index: Int[Tensor, "batch slots"],
    used: Bool[Tensor, "batch slots"],
) -> Float[Tensor, "batch layers heads"]:
    """Attention to the prompt relative to that to the prompt and the answer, per token of either,
    averaged over the answer. `masses` are each token's attention to the prompt and to the
    answer."""
    prompts = (lengths - answers)[:, None]
    is_answer = used & (index >= prompts)
    context = masses[..., 0] / prompts.clamp(min=1)[:, None, None]
    generated = masses[..., 1] / (index - prompts + 1).clamp(min=1)[:, None, None]
    ratio = context / (context + generated).clamp(min=_TINY)
    weight = is_answer[:, None, None] / answers.clamp(min=1)[:, None, None, None]
    return (ratio * weight).sum(-1)


@dataclass(frozen=True, kw_only=True)
class Reduced:
    """The array fields of a batch of traces; those of tokens have zeros after each trace's own. One
    that was not recorded is empty."""

    last_hidden: Float[Tensor, "batch layers dim"]
    answer_hidden: Float[Tensor, "batch layers dim"]
    nodes: Float[Tensor, "batch layers tokens node_dim"]
    edge_source: Int[Tensor, "batch layers tokens k"]
    edge_weight: Float[Tensor, "batch layers tokens k"]
    attention_log_diagonal: Float[Tensor, "batch layers heads tokens"]
    laplacian_diagonal: Float[Tensor, "batch layers heads tokens"]
    lookback: Float[Tensor, "batch layers heads"]


def reduce_whole(
    layers: Iterable[tuple[Float[Tensor, "tokens dim"], Float[Tensor, "heads tokens tokens"]]],
    prompt: int,
    basis: Basis,
    edges_per_token: int,
) -> Reduced:
    """The fields of one trace, from the states and the attention of all its tokens in each layer;
    the first `prompt` tokens are the prompt's."""
    found: dict[str, list[Tensor]] = defaultdict(list)
    for number, (states, weights) in enumerate(layers):
        tokens = len(states)
        strongest = weights.mean(0).topk(min(edges_per_token, tokens), dim=-1)
        empty = (0, max(0, edges_per_token - tokens))
        in_prompt = torch.arange(tokens) < prompt
        values = {
            "last_hidden": states[-1],
            "answer_hidden": states[prompt:].sum(0) / max(1, tokens - prompt),
            "nodes": basis.of_layers([number]).project(states[None])[0],
            "edge_weight": pad(strongest.values, empty),
            "edge_source": pad(strongest.indices.int(), empty),
            "diagonal": weights.diagonal(dim1=-2, dim2=-1),
            "received": weights.sum(-2),
            "masses": weights @ torch.stack([in_prompt, ~in_prompt], dim=-1).float(),
        }
        for name, value in values.items():
            found[name].append(value)
    whole = {name: torch.stack(parts)[None] for name, parts in found.items()}
    lengths, answers = torch.tensor([tokens]), torch.tensor([tokens - prompt])
    index, diagonal = torch.arange(tokens)[None], whole["diagonal"]
    return Reduced(
        **{name: whole[name] for name in ("last_hidden", "answer_hidden", "nodes", "edge_weight")},
        edge_source=whole["edge_source"].where(whole["edge_weight"] > 0, 0),
        attention_log_diagonal=log_diagonal(diagonal),
        laplacian_diagonal=laplacian(whole["received"], diagonal, lengths, index),
        lookback=lookback(whole["masses"], lengths, answers, index, index >= 0),
    )


def to_float16(values: Tensor) -> Tensor:
    """Float16, with values beyond its range clamped to its maximum; infinities and NaN stay."""
    if values.dtype == torch.float16:
        return values
    if _BY_NUMPY and values.is_cpu and values.dtype == torch.float32:
        array = values.detach().numpy()
        if _is_small(array):
            return torch.from_numpy(array.astype(np.float16))
    clipped = values.clamp(-FLOAT16_MAX, FLOAT16_MAX)  # NaN stays
    return torch.where(values.isinf(), values, clipped).to(torch.float16)


def to_float32(halves: Tensor) -> Tensor:
    if _BY_NUMPY and halves.is_cpu and halves.dtype == torch.float16:
        return torch.from_numpy(halves.numpy().astype(np.float32))
    return halves.float()


def _is_small(values: Float[np.ndarray, "..."]) -> bool:
    """Whether all values are in the range of float16; NaN is not."""
    return bool(values.min(initial=0) >= -FLOAT16_MAX and values.max(initial=0) <= FLOAT16_MAX)


def reduced_columns(
    reduced: Reduced, tokens: Sequence[int], by_head: Mapping[str, Tensor] | None = None
) -> dict[str, np.ndarray]:
    """The array fields of traces with so many tokens as flat NumPy arrays on the host, in their
    storage types; those of `by_head` instead of the diagonals."""
    return start_columns(reduced, tokens, by_head, packed=False)()


def start_columns(
    reduced: Reduced,
    tokens: Sequence[int],
    by_head: Mapping[str, Tensor] | None,
    *,
    packed: bool,
) -> Callable[[], dict[str, np.ndarray]]:
    """Start to copy what `reduced_columns` returns to the host, `packed` states in 8 bits; the
    returned function waits for it, in any thread."""
    names: tuple[str, ...] = ("last_hidden", "answer_hidden", "nodes", "edge_weight", "lookback")
    names = names if by_head is not None else (*names, *DIAGONALS)
    halves = {name: to_float16(getattr(reduced, name)) for name in names} | dict(by_head or {})
    if packed:  # a few rows at a time: it takes several times the memory of what is packed
        for name in STATES:
            halves[name] = torch.cat([pack(some) for some in halves[name].split(_PACKED_ROWS)])
    # torch has few operations for uint16; int16 keeps the same bits.
    stored = {**halves, "edge_source": reduced.edge_source.to(torch.int16)}
    for name, along in _TOKENS.items():
        if name in stored and min(tokens) < max(tokens) and stored[name].numel():
            stored[name] = _drop_padding(stored[name], along, tokens)
    finish = _to_host(stored)

    def wait() -> dict[str, np.ndarray]:
        arrays = finish()
        return arrays | {"edge_source": arrays["edge_source"].view(np.uint16)}

    return wait


def _drop_padding(values: Tensor, along: int, tokens: Sequence[int]) -> Tensor:
    """The entries of tokens that exist, which are counted in that dimension; flat."""
    lengths = torch.tensor(list(tokens), device=values.device)
    used = torch.arange(values.shape[along], device=values.device) < lengths[:, None]
    used = used.view(len(used), *[1] * (along - 1), -1)
    return values[used.expand(values.shape[: along + 1])]


def _to_host(tensors: dict[str, Tensor]) -> Callable[[], dict[str, np.ndarray]]:
    """Start to copy to the host; from a GPU all at once, through pinned memory."""
    host, copied = dict(tensors), None
    for name, tensor in tensors.items():
        if tensor.is_cuda:
            target = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            host[name] = target.copy_(tensor, non_blocking=True)
    if any(tensor.is_cuda for tensor in tensors.values()):
        copied = torch.cuda.Event(blocking=True)
        copied.record()

    def wait() -> dict[str, np.ndarray]:
        if copied is not None:
            copied.synchronize()
        return {name: flat(tensor) for name, tensor in host.items()}

    return wait


def flat(values: Tensor) -> np.ndarray:
    return values.reshape(-1).numpy()


def reduce_heads(
    reduced: Reduced,
    tokens: Sequence[int],
    prompts: Sequence[int],
    eigenvalues: int,
) -> dict[str, Float16[Tensor, "rows layers heads ..."]]:
    """The columns of a batch of traces with so many tokens, of which so many are the prompt's.
    A few layers at a time: sorting takes several times the memory of what is sorted."""
    device = reduced.laplacian_diagonal.device
    lengths, borders = torch.tensor([list(tokens), list(prompts)], device=device)
    places = torch.arange(max(tokens), device=device)
    used = places < lengths[:, None]
    is_answer = used & (places >= borders[:, None])
    logs, eigen = (
        to_float16(diagonal).mT
        for diagonal in (reduced.attention_log_diagonal, reduced.laplacian_diagonal)
    )
    some = _SORTED_LAYERS.get(device.type, 1)
    pairs = list(zip(logs.split(some, dim=1), eigen.split(some, dim=1), strict=True))
    return {
        LOG_ALL: torch.cat([average(log, used) for log, _ in pairs], dim=1),
        LOG_ANSWER: torch.cat([average(log, is_answer) for log, _ in pairs], dim=1),
        SPECTRUM: torch.cat([largest(value, used, eigenvalues) for _, value in pairs], dim=1),
        LAPLACIAN_ANSWER: torch.cat([average(value, is_answer) for _, value in pairs], dim=1),
    }


def average(
    values: Float16[Tensor, "rows layers tokens features"], tokens: Bool[Tensor, "rows tokens"]
) -> Float16[Tensor, "rows layers features"]:
    """The mean over some tokens; 0 if there are none."""
    total: Float[Tensor, "rows layers features"]
    total = torch.where(tokens[:, None, None], to_float32(values.mT), 0).sum(3)
    return to_float16(total / tokens.sum(1).clamp(min=1)[:, None, None])


def largest(
    values: Float16[Tensor, "rows layers tokens heads"],
    used: Bool[Tensor, "rows tokens"],
    count: int,
) -> Float16[Tensor, "rows layers heads count"]:
    """The largest values of every head, falling; zeros if there are fewer tokens."""
    if values.is_cpu:
        return _find_largest(values, used, count)
    heads = values.mT.float().masked_fill(~used[:, None, None], -torch.inf)
    kept = min(count, used.shape[1])
    falling = heads.sort(dim=-1, descending=True).values[..., :kept]
    lengths: Int[Tensor, " rows"] = used.sum(1)
    exists = torch.arange(kept, device=used.device) < lengths[:, None]
    falling = torch.where(exists[:, None, None], falling, 0)
    return torch.nn.functional.pad(falling, (0, count - kept)).half()


def _find_largest(
    values: Float16[Tensor, "rows layers tokens heads"],
    used: Bool[Tensor, "rows tokens"],
    count: int,
) -> Float16[Tensor, "rows layers heads count"]:
    """On a CPU. NumPy sorts in a tenth of the time: it does not sort the places as well."""
    heads, unused = to_float32(values.mT).numpy(), ~used.numpy()
    is_padded = unused.any()
    if is_padded:
        heads = np.where(unused[:, None, None], -np.inf, heads)
    falling = np.sort(heads, axis=-1)[..., ::-1][..., :count]
    if is_padded:
        lengths = used.shape[1] - unused.sum(axis=1)
        exists = np.arange(falling.shape[-1]) < lengths[:, None]
        falling = np.where(exists[:, None, None], falling, 0)
    found = np.zeros((*falling.shape[:-1], count), np.float32)
    found[..., : falling.shape[-1]] = falling
    return to_float16(torch.from_numpy(found))


def pack(values: Float16[Tensor, "*rows size"]) -> UInt8[Tensor, "*rows bytes"]:
    """Round each vector to 8 bits per value: by at most 1/254 of the largest of its block. A block
    with NaN or infinity becomes NaN."""
    size = values.shape[-1]
    blocks = pad(values.float(), (0, -size % BLOCK)).unflatten(-1, (-1, BLOCK))
    scales = blocks.abs().amax(-1) / _LARGEST
    scales = torch.where(scales.isfinite(), scales.clamp(max=_LARGEST_SCALE), torch.nan).bfloat16()
    divisors = torch.where(scales > 0, scales, 1).float()[..., None]
    whole = (blocks / divisors).round_().nan_to_num_(0).clamp_(-_LARGEST, _LARGEST)
    integers = whole.to(torch.int8).flatten(-2)[..., :size]
    return torch.cat([integers.view(torch.uint8), scales.view(torch.uint8)], dim=-1)
