"""The inputs of probes for an answer: its text, token probabilities, and the attention and states
of all layers, reduced to arrays of the same size for every answer."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from jaxtyping import Float, Float16, Int

from clew.hallucination.samples.making.config import Lengths, SampleShape
from clew.hallucination.samples.making.flat import as_fixed, split_rows
from clew.hallucination.samples.making.source import LAPLACIAN_TOP, TOKEN_LABELS
from clew.hallucination.traces.schema import (
    ANSWER,
    ANSWER_HIDDEN,
    BY_HEAD,
    CONTEXT,
    EVALUATION,
    evaluation_fields,
    fixed_type,
    shaped,
)

_AS_THEY_ARE = (
    *("question", CONTEXT, "category", "accepted_answers", "answer", "stop_reason", "samples"),
    *("prompt_length", "token_logprobs", "token_entropies", TOKEN_LABELS, "lookback"),
    *BY_HEAD,
    *EVALUATION,
)
_NODE_FIELDS = ("node_mean", "node_max", "node_prompt")
_TEXTS = {"accepted_answers": pa.list_(pa.string()), "samples": pa.list_(pa.string())}


def answer_fields(shape: SampleShape) -> list[pa.Field]:
    """The columns of answers/: those that all traces of the store have."""
    source = shape.source
    layers, heads, features = source.layers, source.heads or 0, shape.features
    sizes = {
        "lookback": (layers, heads),
        "log_diagonal_all": (layers, heads),
        "log_diagonal_answer": (layers, heads),
        "laplacian_top": (layers, heads, source.eigenvalues),
        "laplacian_answer": (layers, heads),
        "node_mean": (layers, features),
        "node_max": (layers, features),
        "node_prompt": (layers, features),
        "state_mean": (layers, source.dim),
    }
    evaluated = {one.name: one for one in evaluation_fields(source.evaluation, source.dim)}
    return [
        shaped(name, fixed_type(*sizes[name]), *sizes[name])
        if name in sizes
        else evaluated.get(name) or _plain_field(name)
        for name in _names(shape)
    ]


def answer_columns(
    batch: pa.RecordBatch, shape: SampleShape, lengths: Lengths
) -> dict[str, pa.Array]:
    """The columns of answers/ from usable traces; an answer without tokens has means of 0."""
    names, has = set(_names(shape)), shape.source.extras
    columns = {name: batch.column(name) for name in _AS_THEY_ARE if name in has}
    if "state_mean" in names:
        columns["state_mean"] = batch.column(ANSWER_HIDDEN)
    wanted = names - columns.keys()
    made = {name: values for name, values in _reduce(batch, shape, lengths) if name in wanted}
    return columns | {name: as_fixed(values) for name, values in made.items()}


def answer_bytes(shape: SampleShape, lengths: Lengths) -> Int[np.ndarray, " rows"]:
    """The disk space of the answers without their text."""
    kinds = [field.type for field in answer_fields(shape)]
    fixed = sum(_fixed_bytes(kind) for kind in kinds if pa.types.is_fixed_size_list(kind))
    return fixed + 9 * lengths.answer + 128


def _names(shape: SampleShape) -> Iterator[str]:
    """The names of the columns, in order."""
    has = shape.source.extras
    yield from (name for name in _AS_THEY_ARE if name in has)
    knows_border = "prompt_length" in has
    of_tokens = has if has.isdisjoint(BY_HEAD) else ()
    if "attention_log_diagonal" in of_tokens:
        yield from ["log_diagonal_all", *(["log_diagonal_answer"] if knows_border else [])]
    if "laplacian_diagonal" in of_tokens:
        yield from ["laplacian_top", *(["laplacian_answer"] if knows_border else [])]
    if knows_border:
        yield from _NODE_FIELDS
    if knows_border and ANSWER_HIDDEN in has:
        yield "state_mean"


def _plain_field(name: str) -> pa.Field:
    if name == TOKEN_LABELS:
        return shaped(name, pa.list_(pa.int8()), ANSWER)
    if name.startswith("token_"):
        return shaped(name, pa.list_(pa.float32()), ANSWER)
    return pa.field(name, _TEXTS.get(name, pa.int32() if name == "prompt_length" else pa.string()))


def _fixed_bytes(kind: pa.DataType) -> int:
    count = 1
    while pa.types.is_fixed_size_list(kind):
        count, kind = count * kind.list_size, kind.value_type
    return count * kind.byte_width


def _reduce(
    batch: pa.RecordBatch, shape: SampleShape, lengths: Lengths
) -> Iterator[tuple[str, Float16[np.ndarray, "rows layers ..."]]]:
    """The computed arrays. Trace by trace, since NumPy's reductions over ragged segments take
    several times as long, especially for the maximum."""
    source, prompts = shape.source, lengths.prompt.tolist()
    heads, rows = source.layers * (source.heads or 0), len(prompts)
    by_head, by_node = (rows, source.layers, -1), (rows, source.layers, shape.features)
    if "attention_log_diagonal" in source.extras:
        logs = split_rows(batch.column("attention_log_diagonal"), heads, lengths.tokens)
        whole, answer = zip(*map(_average_twice, logs, prompts), strict=True)
        yield "log_diagonal_all", np.stack(whole).reshape(by_head)
        yield "log_diagonal_answer", np.stack(answer).reshape(by_head)
    if "laplacian_diagonal" in source.extras:
        diagonals = split_rows(batch.column("laplacian_diagonal"), heads, lengths.tokens)
        top = np.stack([sort_largest(diagonal) for diagonal in diagonals])
        yield "laplacian_top", top.reshape(rows, source.layers, -1, LAPLACIAN_TOP)
        answer = [_average(d[:, p:], axis=1) for d, p in zip(diagonals, prompts, strict=True)]
        yield "laplacian_answer", np.stack(answer).reshape(by_head)
    nodes = split_rows(batch.column("nodes"), source.layers, lengths.tokens)
    reduced = [
        _reduce_nodes(n[..., : shape.features], p) for n, p in zip(nodes, prompts, strict=True)
    ]
    for name, values in zip(_NODE_FIELDS, zip(*reduced, strict=True), strict=True):
        yield name, np.stack(values).reshape(by_node)


def _average_twice(
    values: Float16[np.ndarray, "heads tokens"], prompt: int
) -> tuple[Float16[np.ndarray, " heads"], Float16[np.ndarray, " heads"]]:
    """The means over all tokens and over the answer's tokens."""
    wide = values.astype(np.float32)
    return _average(wide, axis=1), _average(wide[:, prompt:], axis=1)


def _average(values: Float[np.ndarray, "..."], axis: int) -> Float16[np.ndarray, "..."]:
    """The mean over an axis; 0 if there is nothing to average."""
    count = max(1, values.shape[axis])
    return (values.sum(axis, dtype=np.float32) / np.float32(count)).astype(np.float16)


def sort_largest(values: Float16[np.ndarray, "heads tokens"]) -> Float16[np.ndarray, "heads top"]:
    largest = np.zeros((len(values), LAPLACIAN_TOP), np.float16)
    falling = np.sort(values, axis=1)[:, ::-1][:, :LAPLACIAN_TOP]
    largest[:, : falling.shape[1]] = falling
    return largest


def _reduce_nodes(
    nodes: Float16[np.ndarray, "layers tokens features"], prompt: int
) -> tuple[Float16[np.ndarray, "layers features"], ...]:
    """Mean and maximum over the answer's tokens, and the prompt's last token."""
    answer = nodes[:, prompt:].astype(np.float32)
    none = np.zeros_like(nodes, shape=(nodes.shape[0], nodes.shape[2]))
    largest = answer.max(axis=1).astype(np.float16) if answer.shape[1] else none
    return _average(answer, axis=1), largest, nodes[:, prompt - 1] if prompt else none
