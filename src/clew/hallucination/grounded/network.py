"""The network of a reader: a causal language model that reads source, question and answer in one
sequence, in both directions, with low-rank changes of its weights and a head per token."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention
from transformers import AttentionInterface

from clew.base.errors import InputError

# What a token attends to: all others, or those before it.
Attention = Literal["both", "causal"]
_BEFORE_SOURCE, _BEFORE_QUESTION, _BEFORE_ANSWER = "Source:\n", "\n\nQuestion: ", "\n\nAnswer:\n"
# Tokens that a question may have; the rest is cut.
_MOST_QUESTION = 256
_HEAD = ("head.weight", "head.bias")
# The names of attention in transformers: with padding and a mask, and without.
_PADDED, _PACKED = "sdpa", "clew_packed_rows"
# By how much the states may differ between both, relative to their norm.
_SAME = 0.02
# Of every character up to the last one that is white space, and one behind it.
_IS_SPACE = np.array([chr(code).isspace() for code in range(0x3002)])
Frame = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class ReaderPiece:
    """Tokens that are read at once: a window of the source, the question, and the answer's tokens
    from `first` on, which start at `place`."""

    row: int
    tokens: list[int]
    first: int
    place: int


_Piece = TypeVar("_Piece", bound=ReaderPiece)


class LowRank(nn.Module):
    """A frozen linear layer with a trained change of low rank (LoRA). It is added to what the layer
    gives: added to weights in 16 bits, small changes would be rounded away."""

    def __init__(self, layer: nn.Linear, rank: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.layer, self.dropout = layer, nn.Dropout(dropout)
        device = layer.weight.device
        down = torch.randn(rank, layer.in_features, device=device) / layer.in_features**0.5
        self.down = nn.Parameter(down)
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank, device=device))

    def forward(self, states: Tensor) -> Tensor:
        return self.layer(states) + linear(linear(self.dropout(states), self.down), self.up)


@dataclass(frozen=True, slots=True)
class _PackedRows:
    """Rows of tokens one behind the other, without padding: where each ends, from 0 on."""

    ends: Tensor
    longest: int
    is_causal: bool


def _attend_within_rows(
    _module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    _mask: Tensor | None,
    *,
    packed: _PackedRows,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention of the tokens of each row to those of the same row, without a mask, so that the
    fastest kernels run. Takes `[1, heads, tokens, dim]`, returns `[1, tokens, heads, dim]`."""
    query, key = query.to(value.dtype), key.to(value.dtype)
    if query.is_cuda:
        from torch.nn.attention.varlen import varlen_attn

        sizes: Any = (packed.ends, packed.ends, packed.longest, packed.longest)
        window = (-1, 0 if packed.is_causal else -1)
        q, k, v = (one[0].transpose(0, 1) for one in (query, key, value))
        # Before PyTorch 2.12, heads that share keys and values are not supported.
        k, v = (one.repeat_interleave(q.shape[1] // one.shape[1], 1) for one in (k, v))
        read: Any = varlen_attn(q, k, v, *sizes, scale=scaling, window_size=window)
        return read[None], None
    places = [slice(start, end) for start, end in pairwise(packed.ends.tolist())]
    found = [
        scaled_dot_product_attention(
            query[:, :, place],
            key[:, :, place],
            value[:, :, place],
            is_causal=packed.is_causal,
            scale=scaling,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        for place in places
    ]
    return torch.cat(found, 2).transpose(1, 2).contiguous(), None


AttentionInterface.register(_PACKED, _attend_within_rows)


class ReaderNetwork(nn.Module):
    """`model` is the language model without its head for the next token."""

    def __init__(self, model: Any, attention: Attention = "both") -> None:
        super().__init__()
        self.model, self.attention, self.is_packed = model, attention, False
        dim = model.get_input_embeddings().embedding_dim
        self.head = nn.Linear(dim, 1, device=model.device, dtype=torch.float32)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """The logit of every token, `[batch, tokens]`, that the source does not support it. The
        lengths are on the CPU; what is behind them is padding."""
        return self.head(self._read(tokens, lengths).float()).squeeze(-1)

    def _read(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """The last states, `[batch, tokens, dim]`."""
        is_mixed = tokens.is_cuda and self.model.dtype is torch.float32
        with torch.autocast(tokens.device.type, torch.bfloat16, enabled=is_mixed):
            read = self._read_packed if self.is_packed else self._read_padded
            return read(tokens, lengths)

    def _read_padded(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        there = lengths.to(tokens.device)
        mask = attention_mask(tokens.shape[1], there, self.attention, self.model.dtype)
        read = self.model(input_ids=tokens, attention_mask=mask, use_cache=False)
        return read.last_hidden_state

    def _read_packed(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        size = tokens.shape[1]
        inside = (torch.arange(size) < lengths[:, None]).flatten().nonzero().squeeze(1)
        inside = inside.to(tokens.device, non_blocking=True)
        ends = nn.functional.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
        states = self.model(
            input_ids=tokens.flatten()[inside][None],
            position_ids=(inside % size)[None],
            use_cache=False,
            packed=_PackedRows(ends.to(tokens.device), size, self.attention == "causal"),
        ).last_hidden_state[0]
        empty = states.new_zeros(tokens.numel(), states.shape[1])
        return empty.index_copy(0, inside, states).view(*tokens.shape, -1)

    @torch.no_grad()
    def pack_rows(self) -> None:
        """From now on, read rows without padding and masks, if the model reads them alike so. On a
        CPU, models of the Llama family are known to."""
        tokens = torch.arange(8, device=self.head.weight.device).view(2, 4)
        lengths = torch.tensor([4, 3])
        is_known = not tokens.is_cuda and self.model.config.model_type == "llama"
        expected = None if is_known else self._read(tokens, lengths)[:, :3].float()
        self.model.set_attn_implementation(_PACKED)
        self.is_packed = True
        if expected is None:
            return
        try:
            found = self._read(tokens, lengths)[:, :3].float()
            self.is_packed = bool((found - expected).norm() < _SAME * expected.norm())
        except (ImportError, NotImplementedError, RuntimeError, TypeError, ValueError):
            self.is_packed = False
        if not self.is_packed:
            self.model.set_attn_implementation(_PADDED)

    def insert_low_rank(self, rank: int, dropout: float = 0.0) -> list[nn.Parameter]:
        """Freeze the model and train changes of this rank instead; returns what is trained."""
        self.model.requires_grad_(False)
        for name, layer in list(linear_layers(self.model)):
            parent, _, last = name.rpartition(".")
            setattr(self.model.get_submodule(parent), last, LowRank(layer, rank, dropout))
        return [parameter for parameter in self.parameters() if parameter.requires_grad]

    def adapter(self) -> dict[str, Tensor]:
        """The trained weights by name, in float16: `NAME.down` and `NAME.up` of each layer."""
        found = {
            f"{name}.{side}": getattr(module, side)
            for name, module in self.model.named_modules()
            if isinstance(module, LowRank)
            for side in ("down", "up")
        }
        found |= dict(zip(_HEAD, self.head.parameters(), strict=True))
        return {name: value.detach().half().cpu() for name, value in found.items()}

    @torch.no_grad()
    def load_adapter(self, adapter: Mapping[str, Tensor]) -> None:
        """Continue from the changes of another training, of the same rank."""
        for name, module in self.model.named_modules():
            if isinstance(module, LowRank):
                module.down.copy_(adapter[f"{name}.down"])
                module.up.copy_(adapter[f"{name}.up"])
        self._load_head(adapter)

    def _load_head(self, adapter: Mapping[str, Tensor]) -> None:
        for parameter, name in zip((self.head.weight, self.head.bias), _HEAD, strict=True):
            parameter.copy_(adapter[name])

    @torch.no_grad()
    def merge(self, adapter: Mapping[str, Tensor]) -> None:
        """Add the changes to the weights of the model, and load the head."""
        device = self.head.weight.device
        for name, layer in linear_layers(self.model):
            if f"{name}.up" in adapter:
                sides = (adapter[f"{name}.{side}"] for side in ("up", "down"))
                layer.weight.addmm_(*(one.to(device, layer.weight.dtype) for one in sides))
        self._load_head(adapter)


def linear_layers(model: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    """The layers that an adapter changes. Raises InputError for a model that has none."""
    found = [(name, part) for name, part in model.named_modules() if type(part) is nn.Linear]
    if not found:
        raise InputError(
            f"a model of the class {type(model).__name__} has no linear layers that an adapter "
            "could change: choose another model, such as one of the Llama or Qwen family."
        )
    yield from found


def fuse_norms(model: nn.Module) -> None:
    """Replace the model's own code for RMS norms by PyTorch's, which takes one operation, where
    both give the same."""
    for name, part in list(model.named_modules()):
        epsilon, weight = getattr(part, "variance_epsilon", None), getattr(part, "weight", None)
        if epsilon is None or weight is None or weight.ndim != 1:
            continue
        fused = nn.RMSNorm(len(weight), eps=epsilon, device=weight.device, dtype=weight.dtype)
        fused.weight = weight
        sample = torch.linspace(-3, 3, 2 * len(weight), device=weight.device).view(2, -1)
        sample = sample.to(weight.dtype)
        with torch.no_grad():
            is_same = torch.allclose(fused(sample), part(sample), rtol=1e-2, atol=1e-4)
        if is_same:
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, fused)


def attention_mask(size: int, lengths: Tensor, attention: Attention, dtype: torch.dtype) -> Tensor:
    """What is added to the scores of attention, `[batch, 1, tokens, tokens]`: minus infinity for
    padding, which is on the right, and if attention is causal, for later tokens."""
    places = torch.arange(size, device=lengths.device)
    blocked = (places >= lengths[:, None])[:, None, None, :]
    if attention == "causal":
        blocked = blocked | (places[:, None] < places)
    mask = torch.zeros(blocked.shape, dtype=dtype, device=lengths.device)
    return mask.masked_fill_(blocked, -torch.inf).expand(-1, 1, size, -1).contiguous()


def encode_all(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """The tokens of each text."""
    encode = tokenizer.backend_tokenizer.encode_batch_fast
    return [found.ids for found in encode(list(texts), add_special_tokens=False)]


def encode_places(
    tokenizer: Any, texts: Sequence[str]
) -> list[tuple[list[int], list[tuple[int, int]]]]:
    """The tokens of each text and their places in it, without the white space before them."""
    encode = tokenizer.backend_tokenizer.encode_batch
    found = encode(list(texts), add_special_tokens=False)
    return [
        (one.ids, _without_blanks(text, np.array(one.offsets, np.int64).reshape(-1, 2)))
        for text, one in zip(texts, found, strict=True)
    ]


def _without_blanks(text: str, places: np.ndarray) -> list[tuple[int, int]]:
    """The places of tokens without the white space before them; a token of nothing else stays."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    ink = np.flatnonzero(~_IS_SPACE[np.minimum(codes, len(_IS_SPACE) - 1)])
    starts = np.append(ink, len(text))[np.searchsorted(ink, places[:, 0])]
    starts = np.where(starts < places[:, 1], starts, places[:, 0])
    return list(zip(starts.tolist(), places[:, 1].tolist(), strict=True))


def cut_pieces(
    frame: Frame,
    row: int,
    source: Sequence[int],
    question: Sequence[int],
    answer: Sequence[int],
    *,
    window: int,
    overlap: int,
) -> Iterator[ReaderPiece]:
    """Windows of the source that overlap, each with each part of the answer, of at most `window`
    tokens in all. A part of the answer takes at most half of them."""
    before, before_question, before_answer = frame
    asked = (*before_question, *question[:_MOST_QUESTION]) if question else ()
    middle = [*asked, *before_answer]
    part = min(len(answer), window // 2)
    room = max(window - part - len(before) - len(middle), 2 * overlap)
    starts = range(0, max(1, len(source) - overlap), room - overlap)
    if len(source) <= room:
        starts = range(1)
    for first in range(0, len(answer), part):
        for start in starts:
            tokens = [*before, *source[start : start + room], *middle]
            chosen = answer[first : first + part]
            yield ReaderPiece(row, [*tokens, *chosen], first, len(tokens))


def encode_frame(tokenizer: Any) -> Frame:
    """What stands before the source, the question and the answer."""
    return encode_all(tokenizer, (_BEFORE_SOURCE, _BEFORE_QUESTION, _BEFORE_ANSWER))


def batch_pieces(pieces: Sequence[_Piece], most_tokens: int) -> Iterator[list[_Piece]]:
    """Batches of similar length with at most this many tokens, padding included."""
    batch: list[_Piece] = []
    for piece in sorted(pieces, key=lambda piece: -len(piece.tokens)):
        if batch and (len(batch) + 1) * len(batch[0].tokens) > most_tokens:
            yield batch
            batch = []
        batch.append(piece)
    if batch:
        yield batch


def stack_pieces(batch: Sequence[ReaderPiece], device: torch.device) -> tuple[Tensor, Tensor]:
    """The tokens, padded with 0 to a multiple of 8, as suits GPUs, and the lengths, on the CPU."""
    lengths = torch.tensor([len(piece.tokens) for piece in batch])
    tokens = torch.zeros(len(batch), -(int(lengths.max()) // -8) * 8, dtype=torch.long)
    for row, piece in enumerate(batch):
        tokens[row, : len(piece.tokens)] = torch.tensor(piece.tokens)
    return tokens.to(device), lengths
