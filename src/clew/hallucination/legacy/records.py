"""What the limited process of `reading.py` does: read a file, check each of its records, recover
missing fields, and write them as plain JSON and arrays. It imports nothing heavy: each file starts
a process."""

import json
import os
import re
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, islice
from typing import Any, BinaryIO

import numpy as np

from clew.base.errors import InputError
from clew.base.python_processes import limit_process, own_memory
from clew.base.texts import shortened
from clew.hallucination.legacy.unpickling import Inert, explain_errors, read_pickle, read_torch

# Tokens that an answer's text omits at its end: <|im_end|>, </s>, <eos>, [SEP], ...
_SPECIAL_TOKEN = re.compile(r"<[^<>\s]+>|\[[A-Z]+\]")
_QUESTION_MARK = re.compile(r"(?<!\w)Q:")
_ANSWER_MARK = re.compile(r"\sA:")
_SURROGATE = re.compile("[\ud800-\udfff]")
# Positions of edges are stored in 16 bits; node numbers and the lengths of lists in 32.
MAX_TOKENS = 1 << 16
_MAX_NODES = _MAX_FEATURES = (1 << 31) - 1
# Far more than any model has, and than any answer: they bound the time that a record takes.
_MAX_LAYERS = 1000
_MAX_TEXT = 1 << 22
_MAX_STOPS = 1000
MAX_NOTES = 100
# The defaults of `clew extract`, so that converted and captured traces look alike.
NODE_DIM = 64
# To make rows of a record takes copies of it, and the mean and the components of each layer in
# float32, with a copy while they are fitted.
_COPIES, _BASIS_BYTES = 4, 2 * 4 * (NODE_DIM + 1)
_TRACE_FIELDS = {
    *("hidden_states", "attentions", "tokens", "tokens_decoded", "generated_answer_clean"),
    *("question", "answer", "accepted_answers", "prompt_length"),
    *("question_id", "example_id", "global_example_id", "batch_number"),
}


class MalformedRecordError(InputError):
    """A record cannot be converted; the message is the reason and follows the record's name."""


def write_samples(path: str, file_kind: str, max_memory: int, max_seconds: int) -> None:
    """Read the file that is standard input, and write to standard output: the arrays of all
    samples, one line of JSON per sample, and one about the whole file, the last."""
    limit_process(memory_bytes=max_memory, seconds=max_seconds)
    out = sys.stdout.buffer
    try:
        with explain_errors(path, max_memory):
            with own_memory():
                about = _write_all(sys.stdin.buffer, file_kind, out, max_memory)
            out.write(json.dumps(about).encode())
            out.flush()
    except InputError as error:
        os.ftruncate(sys.stdout.fileno(), 0)
        os.lseek(sys.stdout.fileno(), 0, os.SEEK_SET)
        about = {"error": type(error).__name__, "text": error.text}
        os.write(sys.stdout.fileno(), json.dumps(about).encode())
        os._exit(0)  # what is still buffered must not follow


def _write_all(file: BinaryIO, file_kind: str, out: BinaryIO, limit: int) -> dict[str, Any]:
    content = read_torch(file, limit) if file_kind == "torch" else read_pickle(file)
    kind, samples = _find_samples(content, file_kind)
    if len(samples) == 0:
        raise InputError("contains no records: there is nothing to convert.")
    parse = {"traces": parse_trace, "sequences": _parse_sequence, "graphs": _parse_graphs}[kind]
    lines = [_write_sample(parse, sample, out, limit) for sample in samples]
    start = out.tell()
    for line in lines:
        out.write(line + b"\n")
    return {"kind": kind, "start": start}


def _write_sample(
    parse: Callable[[Any], dict[str, Any]], sample: Any, out: BinaryIO, limit: int
) -> bytes:
    try:
        fields = parse(sample)
    except MalformedRecordError as error:
        fields = {"reason": str(error)}
    arrays = {name: value for name, value in fields.items() if isinstance(value, np.ndarray)}
    size = _COPIES * sum(array.nbytes for array in arrays.values())
    if "hidden_states" in arrays:
        layers, _, dim = arrays["hidden_states"].shape
        size += _BASIS_BYTES * layers * dim
    if size > limit:
        raise MemoryError
    fields |= {name: _write_array(array, out) for name, array in arrays.items()}
    return json.dumps({**fields, **_read_ids(sample)}).encode()


def _write_array(array: np.ndarray, out: BinaryIO) -> dict[str, Any]:
    out.write(bytes(-out.tell() % 8))
    plain = np.ascontiguousarray(array, array.dtype.newbyteorder("="))
    place = {"dtype": plain.dtype.str, "shape": plain.shape, "offset": out.tell()}
    out.write(plain.data)
    return place


def _find_samples(content: Any, file_kind: str) -> tuple[str, Sequence[Any]]:
    """The kind of store that the content belongs to, and its samples."""
    if file_kind != "torch":
        if not isinstance(content, list | tuple):
            raise InputError(
                f"contains a {type(content).__name__}, not a list of traces: it is not a legacy "
                "trace file. Remove it from the folder."
            )
        return "traces", content
    kinds = ("sequences", "graphs")
    kind = next((k for k in kinds if isinstance(content, dict) and k in content), None)
    if kind is None:
        raise InputError(
            'contains neither "sequences" nor "graphs": it is not a legacy file of samples (it may '
            "contain model weights). Remove it from the folder."
        )
    samples = content[kind]
    if not _is_list(samples):
        raise InputError(
            f"has a {type(samples).__name__} instead of a list of {kind}: create the file again."
        )
    columns = [_read_column(content, name, len(samples)) for name in ("labels", "question_ids")]
    return kind, [
        {"content": sample, "label": label, "question_id": question_id}
        for sample, label, question_id in zip(samples, *columns, strict=True)
    ]


def _read_column(content: dict[str, Any], name: str, count: int) -> Sequence[Any]:
    values = content.get(name)
    if values is None:
        return [None] * count
    found = len(values) if _is_list(values) else 0
    if found != count:
        raise InputError(
            f"has {count} samples but {found} {name}: it is unclear which belong together. Create "
            "the file again."
        )
    return values


def parse_trace(record: Any) -> dict[str, Any]:
    """The fields of a trace, with consistent shapes: `hidden_states` [layers, tokens, dim] and
    `attentions` [layers, heads, tokens, tokens]. Raises MalformedRecordError if a required field is
    missing or has the wrong shape."""
    if not isinstance(record, Mapping):
        raise MalformedRecordError(f"it is a {type(record).__name__}, not a dict")
    tokens = _read_tokens(record)
    decoded = _read_texts(record, "tokens_decoded")
    if decoded is not None and len(decoded) != len(tokens):
        raise MalformedRecordError(
            f"tokens_decoded has {len(decoded)} strings for {len(tokens)} tokens"
        )
    hidden, attentions = _read_layers(record, "hidden_states"), _read_layers(record, "attentions")
    _check_layers(hidden, attentions, len(tokens))
    answer = _read_text(record, "generated_answer_clean")
    prompt_length = _read_prompt_length(record, decoded, answer, len(tokens))
    return {
        "hidden_states": np.stack(hidden),
        "attentions": np.stack(attentions),
        "tokens": tokens,
        "tokens_decoded": decoded,
        "question": _read_text(record, "question") or recover_question(decoded, prompt_length),
        "accepted_answers": _read_accepted(record),
        "answer": answer,
        "prompt_length": prompt_length,
        "notes": _note_other_fields(record, _TRACE_FIELDS, "records"),
    }


def _parse_sequence(sample: Mapping[str, Any]) -> dict[str, Any]:
    content = sample["content"]
    fits = _is_array(content, 2, "f") and content.size > 0
    if not fits or max(content.shape) > _MAX_FEATURES:
        what = getattr(content, "shape", type(content).__name__)
        raise MalformedRecordError(f"its sequence is not a float array [layers, dim] ({what})")
    return {"sequence": content, "label": _read_label(sample["label"])}


def _parse_graphs(sample: Mapping[str, Any]) -> dict[str, Any]:
    """The graphs of all layers, concatenated. `node_counts` and `edge_counts` hold the number per
    layer; edges number the nodes of the whole sample from 0, so that a batch is built by adding one
    offset per sample."""
    content = sample["content"]
    if not isinstance(content, list | tuple) or not 0 < len(content) <= _MAX_LAYERS:
        raise MalformedRecordError(
            f"it is a {type(content).__name__}, not a list with one graph per layer"
        )
    graphs = (_read_graph(graph, layer) for layer, graph in enumerate(content))
    nodes, edges, attrs, notes = zip(*graphs, strict=True)
    if sum(map(len, nodes)) > _MAX_NODES:
        raise MalformedRecordError(f"its graphs have more than {_MAX_NODES:,} nodes")
    if len({(x.shape[1], attr.shape[1]) for x, attr in zip(nodes, attrs, strict=True)}) != 1:
        raise MalformedRecordError("its layers differ in the number of node or edge features")
    node_counts = np.array([len(x) for x in nodes], np.int32)
    firsts = np.cumsum(node_counts, dtype=np.int32) - node_counts
    shifted = [pairs + first for pairs, first in zip(edges, firsts, strict=True)]
    source, target = np.concatenate(shifted, axis=1)
    return {
        "nodes": np.concatenate(nodes),
        "edge_source": source,
        "edge_target": target,
        "node_counts": node_counts,
        "edge_counts": np.array([pairs.shape[1] for pairs in edges], np.int32),
        "edge_attr": np.concatenate(attrs),
        "label": _read_label(sample["label"]),
        "notes": sorted({note for some in notes for note in some}),
    }


def _read_graph(graph: Any, layer: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[str]]:
    """Nodes [nodes, features], edges [2, edges], attributes of edges [edges, features] (without
    any: 0 features), and notes."""
    fields = _read_graph_fields(graph)
    nodes: Any = fields.get("x")
    edges: Any = fields.get("edge_index")
    attr: Any = fields.get("edge_attr")
    if not _is_array(nodes, 2, "f") or not 0 < nodes.shape[1] <= _MAX_FEATURES:
        raise MalformedRecordError(f"the graph of layer {layer} has no nodes x [nodes, features]")
    if not _is_array(edges, 2, "i") or len(edges) != 2:
        raise MalformedRecordError(f"the graph of layer {layer} has no edge_index [2, edges]")
    if edges.size and not 0 <= edges.min() <= edges.max() < len(nodes):
        raise MalformedRecordError(f"an edge of layer {layer} leads to a node that does not exist")
    if attr is None:
        attr = np.zeros((edges.shape[1], 0), np.float16)
    attr = attr[:, None] if _is_array(attr, 1, "f") else attr
    if not _is_array(attr, 2, "f") or len(attr) != edges.shape[1]:
        raise MalformedRecordError(f"edge_attr of layer {layer} does not match its edges")
    others = {name: value for name, value in fields.items() if value is not None}
    notes = _note_other_fields(others, {"x", "edge_index", "edge_attr"}, "graphs")
    return nodes, edges.astype(np.int32), attr, notes


def _read_graph_fields(graph: Any) -> Mapping[str, Any]:
    """The tensors of a graph by name: PyG 2 keeps them in the mapping of a storage, PyG 1 in the
    object itself."""
    state = graph.state if isinstance(graph, Inert) else graph
    if isinstance(state, Mapping) and isinstance(state.get("_store"), Inert):
        inner = state["_store"].state
        state = inner.get("_mapping") if isinstance(inner, Mapping) else None
    if not isinstance(state, Mapping):
        raise MalformedRecordError(f"a layer is a {type(graph).__name__}, not a graph")
    return state


def _note_other_fields(record: Mapping[Any, Any], known: set[str], what: str) -> list[str]:
    others: Iterator[Any] = (name for name in record if name not in known)
    return [
        f"the field {shortened(name)} of the old {what} was not converted"
        for name in islice(others, MAX_NOTES)
    ]


def _read_ids(sample: Any) -> dict[str, Any]:
    """The ids in a sample, which may be missing or unusable."""
    if not isinstance(sample, Mapping):
        return {}
    names = ("example_id", "global_example_id", "question_id")
    ids: dict[str, Any] = {name: sample.get(name) for name in names}
    found: dict[str, Any] = {
        name: int(value)
        for name, value in ids.items()
        if _is_whole(value) and abs(int(value)) < 1 << 63
    }
    question = found.get("question_id", ids["question_id"])
    if isinstance(question, str | int) and not isinstance(question, bool):
        # A lone surrogate cannot be stored; a bad id must not lose the whole record.
        found["question_id"] = str(question).encode("utf-8", "backslashreplace").decode()
    return found


def recover_question(decoded: Sequence[str] | None, prompt_length: int | None) -> str | None:
    """The text between the last "Q:" of the prompt and the "A:" at its end.

    Where the prompt ends is not always known; then a text with several "Q:" (examples before
    the question, or an answer that runs on) gives None rather than a wrong question.
    """
    if decoded is None:
        return None
    text = "".join(decoded[:prompt_length])
    if prompt_length is None and len(_QUESTION_MARK.findall(text)) != 1:
        return None
    start = max((match.end() for match in _QUESTION_MARK.finditer(text)), default=len(text))
    rest = text[start:].strip()
    if prompt_length is None:
        match = _ANSWER_MARK.search(rest, 1)
        return rest[: match.start()].rstrip() if match else None
    before = rest.removesuffix("A:")
    asked = before.rstrip()
    return asked if asked and asked != before else None


def find_prompt_length(decoded: Sequence[str], answer: str) -> int | None:
    """Where the answer starts: it is the tail of the tokens without trailing special tokens,
    matched exactly or else up to surrounding whitespace.
    """
    stop = len(decoded)
    stops = [stop]
    while stop and len(stops) < _MAX_STOPS and _SPECIAL_TOKEN.fullmatch(decoded[stop - 1].strip()):
        stop -= 1
        stops.append(stop)
    text, starts = "".join(decoded), [0, *accumulate(map(len, decoded))]
    for find in (_find_tail, _find_stripped_tail):
        for stop in stops:
            start = find(text, starts, starts[stop], answer)
            if start is not None:
                return start
    return None


def _find_tail(text: str, starts: Sequence[int], end: int, answer: str) -> int | None:
    """The first token from which the text up to `end` is the answer, given where tokens start."""
    first = end - len(answer)
    if first < 0 or not text.endswith(answer, 0, end):
        return None
    token = bisect_left(starts, first)
    return token if starts[token] == first else None


def _find_stripped_tail(text: str, starts: Sequence[int], end: int, answer: str) -> int | None:
    """As `_find_tail`, ignoring whitespace around the answer."""
    plain = answer.strip()
    first = len(text[:end].rstrip()) - len(plain)
    if first < 0 or not text.startswith(plain, first):
        return None
    token = bisect_left(starts, len(text[:first].rstrip()))
    return token if starts[token] <= (first if plain else end) else None


def _read_text(record: Mapping[str, Any], name: str) -> str | None:
    value = record.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or not _is_unicode(value):
        raise MalformedRecordError(f"{name} is {shortened(value)}, not text")
    return str(value)


def _read_layers(record: Mapping[str, Any], name: str) -> list[np.ndarray]:
    """A list of float arrays, one per layer; a stacked array is accepted too."""
    value = record.get(name)
    if value is None:
        raise MalformedRecordError(f"it has no {name}")
    if not _is_list(value) or not 0 < len(value) <= _MAX_LAYERS:
        count = f" of {len(value):,}" if _is_list(value) else ""
        raise MalformedRecordError(
            f"{name} is not a list with one array per layer ({type(value).__name__}{count})"
        )
    for layer, array in enumerate(value):
        if not isinstance(array, np.ndarray) or array.dtype.kind != "f":
            kind = getattr(array, "dtype", type(array).__name__)
            raise MalformedRecordError(f"{name} of layer {layer} is {kind}, not an array of floats")
    return [np.asarray(array) for array in value]


def _check_layers(
    hidden: Sequence[np.ndarray], attentions: Sequence[np.ndarray], tokens: int
) -> None:
    if len(hidden) != len(attentions):
        raise MalformedRecordError(
            f"hidden_states has {len(hidden)} layers, attentions has {len(attentions)}"
        )
    dim = hidden[0].shape[-1] if hidden[0].ndim else 0
    heads = attentions[0].shape[0] if attentions[0].ndim else 0
    _check_shapes("hidden_states", hidden, (tokens, dim))
    _check_shapes("attentions", attentions, (heads, tokens, tokens))


def _check_shapes(name: str, arrays: Sequence[np.ndarray], wanted: tuple[int, ...]) -> None:
    for layer, array in enumerate(arrays):
        if array.shape != wanted or 0 in wanted:
            raise MalformedRecordError(
                f"{name} of layer {layer} has shape {list(array.shape)}, expected {list(wanted)}"
            )


def _read_tokens(record: Mapping[str, Any]) -> np.ndarray:
    value = record.get("tokens")
    if value is None:
        raise MalformedRecordError("it has no tokens")
    whole = _is_list(value) and all(_is_whole(token) for token in value)
    tokens = np.asarray(value) if whole else np.zeros(())
    if not whole or tokens.dtype.kind not in "iu":
        raise MalformedRecordError("tokens is not a list of integers")
    if not 0 < len(tokens) < MAX_TOKENS:
        raise MalformedRecordError(
            f"it has {len(tokens)} tokens; clew supports 1 to {MAX_TOKENS - 1}"
        )
    limits = np.iinfo(np.int32)
    if tokens.min() < limits.min or tokens.max() > limits.max:
        raise MalformedRecordError(f"token id {tokens.max()} is too large")
    return tokens.astype(np.int32)


def _read_texts(record: Mapping[str, Any], name: str) -> list[str] | None:
    value = record.get(name)
    if value is None:
        return None
    texts = isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
    if texts and sum(map(len, value)) > _MAX_TEXT:
        raise MalformedRecordError(f"{name} has more than {_MAX_TEXT:,} characters")
    if not texts or not all(_is_unicode(item) for item in value):
        raise MalformedRecordError(f"{name} is not a list of strings")
    return [str(item) for item in value]


def _read_accepted(record: Mapping[str, Any]) -> list[str]:
    """Read the accepted answers: older files hold them in `answer`, clew's own pickles in
    `accepted_answers`."""
    name = "accepted_answers" if "accepted_answers" in record else "answer"
    if isinstance(record.get(name), str):
        return [_read_text(record, name) or ""]
    return _read_texts(record, name) or []


def _read_prompt_length(
    record: Mapping[str, Any], decoded: list[str] | None, answer: str | None, tokens: int
) -> int | None:
    value = record.get("prompt_length")
    if value is None:
        return find_prompt_length(decoded, answer) if decoded and answer is not None else None
    if not _is_whole(value) or not 0 <= value <= tokens:
        raise MalformedRecordError(
            f"prompt_length is {shortened(value)}, but it has {tokens} tokens"
        )
    return int(value)


def _read_label(value: Any) -> float | None:
    """A label as a number, given as a number or a tensor with one element."""
    if value is None:
        return None
    plain = isinstance(value, int | float | np.generic | np.ndarray)
    array = np.asarray(value if plain else "")
    if array.dtype.kind not in "biuf" or array.size != 1:
        raise MalformedRecordError(f"its label is {shortened(value)}, not a number")
    return float(array.reshape(()))


def _is_array(value: Any, ndim: int, kind: str) -> bool:
    return isinstance(value, np.ndarray) and value.ndim == ndim and value.dtype.kind == kind


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim > 0)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _is_unicode(text: str) -> bool:
    """Whether the text can be stored. A lone surrogate is valid in a Python string, but not in
    UTF-8."""
    return _SURROGATE.search(text) is None
