"""The compact record of traces: its fields, and how they follow from states and attention.

Everything kept of the attention is a reduction over its rows, so a pass over one new token adds one
row, and nothing larger than one layer's attention needs to be in memory.
"""

import platform
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from clew.hallucination.traces.basis import Basis
from clew.hallucination.traces.schema import DIAGONALS

FLOAT16_MAX = 65504.0
# PyTorch converts to and from float16 one value at a time on arm, NumPy several at once.
_BY_NUMPY = platform.machine() in ("aarch64", "arm64")
_TINY = 1e-30
# What can be recorded; "edges" are the columns edge_source and edge_weight.
COLUMNS = frozenset(
    (
        *("last_hidden", "answer_hidden", "nodes", "edges"),
        *(*DIAGONALS, "lookback"),
    )
)


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
    """The array fields of a batch of traces; ragged ones are concatenated."""

    last_hidden: Float[Tensor, "batch layers dim"]
    answer_hidden: Float[Tensor, "batch layers dim"]
    nodes: Float[Tensor, "layers_tokens node_dim"]
    edge_source: Int[Tensor, "layers_tokens k"]
    edge_weight: Float[Tensor, "layers_tokens k"]
    attention_log_diagonal: Float[Tensor, " layers_heads_tokens"]
    laplacian_diagonal: Float[Tensor, " layers_heads_tokens"]
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
            "nodes": basis.project(number, states[None])[0],
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
    source = whole["edge_source"].where(whole["edge_weight"] > 0, 0)
    return Reduced(
        last_hidden=whole["last_hidden"],
        answer_hidden=whole["answer_hidden"],
        nodes=whole["nodes"].flatten(0, 2),
        edge_source=source.flatten(0, 2),
        edge_weight=whole["edge_weight"].flatten(0, 2),
        attention_log_diagonal=log_diagonal(diagonal).flatten(),
        laplacian_diagonal=laplacian(whole["received"], diagonal, lengths, index).flatten(),
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
    reduced: Reduced, by_head: Mapping[str, Tensor] | None = None
) -> dict[str, np.ndarray]:
    """The array fields as flat NumPy arrays on the host, in their storage types; those of `by_head`
    instead of the diagonals."""
    names: tuple[str, ...] = ("last_hidden", "answer_hidden", "nodes", "edge_weight", "lookback")
    names = names if by_head is not None else (*names, *DIAGONALS)
    halves = {name: to_float16(getattr(reduced, name)) for name in names} | dict(by_head or {})
    # torch has few operations for uint16; int16 keeps the same bits.
    arrays = _to_host({**halves, "edge_source": reduced.edge_source.to(torch.int16)})
    arrays["edge_source"] = arrays["edge_source"].view(np.uint16)
    return arrays


def _to_host(tensors: dict[str, Tensor]) -> dict[str, np.ndarray]:
    """Copy to the host; from a GPU all at once, through pinned memory."""
    host = {}
    for name, tensor in tensors.items():
        if tensor.is_cuda:
            target = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            host[name] = target.copy_(tensor, non_blocking=True)
        else:
            host[name] = tensor
    if any(tensor.is_cuda for tensor in tensors.values()):
        torch.cuda.current_stream().synchronize()
    return {name: flat(tensor) for name, tensor in host.items()}


def flat(values: Tensor) -> np.ndarray:
    return values.reshape(-1).numpy()
