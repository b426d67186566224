"""Small files that are made to hang a reader, to exhaust its memory, or to break it."""

import gzip
import io
import pickle
import random
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.hallucination.legacy.old_files import make_record

MILLION = 10**6


def nested(levels: int = 200) -> Any:
    """Tuples of which Python's hash, ==, repr and copies take 2**levels steps."""
    value: tuple[Any, ...] = ()
    for _ in range(levels):
        value = (value, value)
    return value


def body(value: Any) -> bytes:
    """The opcodes that push a value."""
    return pickle.dumps(value, 2)[2:-1]


def call(name: str, *arguments: bytes) -> bytes:
    module, _, function = name.rpartition(".")
    return f"c{module}\n{function}\n(".encode() + b"".join(arguments) + b"tR"


NESTED = body(nested())
_DTYPE = call("numpy.dtype", body("f2"), b"\x89\x88")
_EMPTY = call("numpy.core.multiarray._reconstruct", b"cnumpy\nndarray\n", body((0,)), body("b"))


def array(shape: bytes, content: bytes = b"C\x00", dtype: bytes = _DTYPE) -> bytes:
    return _EMPTY + b"(K\x01" + shape + dtype + b"\x89" + content + b"tb"


def record(**fields: bytes) -> bytes:
    """A valid record, with some fields replaced by opcodes."""
    return body(make_record()) + b"(" + b"".join(body(n) + v for n, v in fields.items()) + b"u"


def listed(*records: bytes) -> bytes:
    return b"](" + b"".join(records) + b"e"


def often(value: bytes, count: int) -> bytes:
    """A list that refers to one value many times."""
    return b"](" + value + b"r\xff\xff\x00\x00" + b"j\xff\xff\x00\x00" * (count - 1) + b"e"


# Name: opcodes of a pickle, and what the error says.
PICKLES: dict[str, tuple[bytes, str]] = {
    "dict key": (b"}" + NESTED + b"K\x01s", "more than 1 s to read"),
    "dict keys": (b"}(" + NESTED + b"K\x01u", "more than 1 s to read"),
    "made dict": (b"(" + NESTED + b"K\x01d", "more than 1 s to read"),
    "set member": (b"\x8f(" + NESTED + b"\x90", "more than 1 s to read"),
    "frozenset member": (b"(" + NESTED + b"\x91", "more than 1 s to read"),
    "called set": (call("builtins.set", b"](" + NESTED + b"e"), "more than 1 s to read"),
    "called dict": (
        call("collections.OrderedDict", b"](](" + NESTED + b"Nee"),
        "more than 1 s to read",
    ),
    "long key": (b"}" + body("x" * 2000) + b"Ns", "contains a dict, not a list"),
    "big integer key": (b"}" + body(1 << 80000) + b"Ns", "contains a dict, not a list"),
    "persistent id": (NESTED + b"Q", "outside the file"),
    "stack global": (NESTED + NESTED + b"\x93", "requires str"),
    "dtype": (call("numpy.dtype", NESTED), "not of plain numbers"),
    "byte order": (_DTYPE + b"(K\x03" + NESTED + b"NNNtb", "of a structured type"),
    "codec": (call("_codecs.encode", body("a"), NESTED), "encodes text with"),
    "shape": (array(NESTED), "array of shape"),
    "big shape": (array(body((1 << 80000, 1 << 80000))), "array of shape"),
    "empty array of a huge shape": (array(body((1 << 40, 0))), "array of shape"),
    "function": (NESTED + b")R", "not callable"),
    "class": (NESTED + b")\x81", "must be a type"),
    "changed value": (NESTED + b"Nb", "none of its 2 records"),
    "text": (listed(record(question=NESTED)), "question is .*, not text"),
    "prompt length": (listed(record(prompt_length=NESTED)), "prompt_length is"),
    "answers": (listed(record(answer=NESTED)), "answer is not a list"),
    "tokens": (listed(record(tokens=NESTED)), "tokens is not a list"),
    "record": (listed(NESTED, NESTED), "none of its 2 records"),
    "layers": (listed(record(hidden_states=NESTED)), "hidden_states of layer 0 is tuple"),
    "tuple of bytes": (
        body(bytes(MILLION)).join([b"](", b"e"]) + call("builtins.tuple", body(b"abc")),
        "none of its 3 records",
    ),
    "huge bytearray": (call("builtins.bytearray", body(1 << 40)), "max_memory"),
    "huge memo": (b"Nr\xff\xff\xff\xff", "max_memory"),
    "claimed bytes": (b"\x8e" + struct.pack("<Q", 4 * 10**9) + b"abc", "max_memory"),
    "claimed text": (b"\x8d" + struct.pack("<Q", 4 * 10**9) + b"abc", "max_memory"),
    "claimed bytearray": (b"\x96" + struct.pack("<Q", 1 << 62) + b"abc", "max_memory"),
    "claimed integer": (b"\x8b" + struct.pack("<i", 2**31 - 1) + b"abc", "max_memory"),
    "wide text": (body("x" * 8 * MILLION + "\U0001f600"), "max_memory"),
    "copies": (
        b"](" + often(b"N", 10**5) + b"q\x01" + call("builtins.list", b"h\x01") * 50 + b"e",
        "max_memory",
    ),
    "copied arrays": (
        b"](" + body(bytes(MILLION)) + b"q\x01" + array(body((500_000,)), b"h\x01") * 50 + b"e",
        "none of its 51 records",
    ),
    "many lists": (b"]" * 100_000, "contains no records"),
    "many marks": (b"(" * 200_000, "unexpected MARK"),
    "many constants": (b"N" * 500_000, "contains a NoneType, not a list"),
    "many memo entries": (b"N" + b"\x94" * 200_000, "contains a NoneType, not a list"),
    "colliding keys": (
        b"}(" + b"".join(body((i, 0)) + b"N" for i in range(5000)) + b"u",
        "contains a dict, not a list",
    ),
    "long line": (b"V" + b"x" * 8 * MILLION + b"\n", "max_memory|too long"),
    "one record often": (often(record(), 10**5), "max_memory|1 s to read"),
    "one layer often": (
        listed(record(hidden_states=often(array(body((10, 8)), body(bytes(160))), 1500))),
        "hidden_states is not a list with one array per layer",
    ),
    "one answer often": (
        listed(record(answer=often(body("x" * 10**5), 10**4))),
        "more than 4,194,304 characters",
    ),
    "one token often": (
        listed(record(tokens_decoded=often(body("x" * MILLION), 10**4))),
        "more than 4,194,304 characters",
    ),
    "wide state": (
        listed(
            record(
                hidden_states=often(array(body((1, 10**5)), body(bytes(2 * 10**5))), 50),
                attentions=often(array(body((1, 1, 1)), body(bytes(2))), 50),
                tokens=body([1]),
                tokens_decoded=b"N",
            )
        ),
        "max_memory",
    ),
    "malformed records": (often(b"N", 10**4), "none of its 10000 records"),
    "more malformed records": (often(b"N", 10**6), "max_memory|1 s to read"),
    "spaces": (
        listed(record(tokens=body([1]), tokens_decoded=body(["Q: x" + " " * 3 * MILLION]))),
        "shape",
    ),
}


def write_bombs(folder: Path) -> dict[str, str]:
    """One folder per file; returns what the error of each says."""
    told = {}
    for name, (opcodes, error) in PICKLES.items():
        packed = gzip.compress(b"\x80\x04" + opcodes + b".", 1)
        _write(folder / name / "x_0000.pkl.gz", packed)
        told[name] = error
    for name, (make, error) in TORCH_FILES.items():
        _write(folder / name / "x_0000.pt", make())
        told[name] = error
    return told


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(content)


def torch_zip(
    pickled: bytes, entries: dict[str, bytes] | None = None, compressed: tuple[str, ...] = ()
) -> bytes:
    """A file as torch.save writes it, with the given opcodes."""
    packed = io.BytesIO()
    contents = {"data.pkl": b"\x80\x02" + pickled + b".", "byteorder": b"little", **(entries or {})}
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in contents.items():
            kind = zipfile.ZIP_DEFLATED if name in compressed else zipfile.ZIP_STORED
            archive.writestr(f"x/{name}", content, kind, 1)
    return packed.getvalue()


def storage(key: str, count: bytes) -> bytes:
    return b"(" + body("storage") + b"ctorch\nHalfStorage\n" + body(key) + b"N" + count + b"tQ"


def tensor(shape: bytes, strides: bytes, offset: bytes = b"K\x00") -> bytes:
    return call("torch._utils._rebuild_tensor_v2", storage("0", b"K\x08"), offset, shape, strides)


def samples(kind: str, content: bytes, **fields: bytes) -> bytes:
    fields = {kind: content, **fields}
    return b"}(" + b"".join(body(name) + value for name, value in fields.items()) + b"u"


_ZEROS = {"data/0": bytes(16)}
_BIG = {"data/0": bytes(2 * MILLION)}
_BIG_TENSOR = call(
    "torch._utils._rebuild_tensor_v2",
    storage("0", body(MILLION)),
    b"K\x00",
    body((1000, 1000)),
    body((1000, 1)),
)


def _claim_sizes(content: bytes) -> bytes:
    """The zip's directory says that every entry has nearly 4 GB."""
    first = content.index(b"PK\x01\x02")
    size = struct.pack("<II", 2**32 - 16, 2**32 - 16)
    directory = bytearray(content[first:])
    at = 0
    while directory[at : at + 4] == b"PK\x01\x02":
        directory[at + 20 : at + 28] = size
        at += 46 + sum(struct.unpack("<HHH", directory[at + 28 : at + 34]))
    return content[:first] + bytes(directory)


def _share_one_entry() -> bytes:
    """A thousand storages in the same bytes of the file."""
    keys = [f"data/{number}" for number in range(1000)]
    tensors = b"".join(storage(str(number), body(MILLION)) for number in range(1000))
    small = torch_zip(listed(tensors), {**dict.fromkeys(keys, b""), **_BIG})
    packed = io.BytesIO(small)
    with zipfile.ZipFile(packed, "a") as archive:
        first = archive.getinfo("x/data/0")
        for entry in archive.infolist():
            if "data/" in entry.filename:
                entry.header_offset, entry.CRC = first.header_offset, first.CRC
                entry.file_size = entry.compress_size = first.file_size
                entry.orig_filename = first.orig_filename
        archive.comment = b"x"  # writes the directory again
    return packed.getvalue()


def _fill_directory() -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        entry = zipfile.ZipInfo("x/y")
        archive.writestr(entry, b"")
        archive.filelist += [entry] * 65_000
        archive.filelist += [entry] * 65_000
    return packed.getvalue()


TORCH_FILES: dict[str, tuple[Callable[[], bytes], str]] = {
    "byte order of 20 MB": (
        lambda: torch_zip(b"N", {"byteorder": bytes(20 * MILLION)}, ("byteorder",)),
        "max_memory",
    ),
    "compressed pickle": (
        lambda: torch_zip(b"N" * 20 * MILLION, {}, ("data.pkl",)),
        "max_memory",
    ),
    "claimed entry sizes": (lambda: _claim_sizes(torch_zip(b"N")), "max_memory|damaged"),
    "shared entry": (_share_one_entry, "max_memory|damaged"),
    "huge directory": (_fill_directory, "max_memory"),
    "nested persistent id": (lambda: torch_zip(NESTED + b"Q"), "other than a tensor"),
    "nested storage count": (
        lambda: torch_zip(storage("0", NESTED), _ZEROS),
        "contains neither",
    ),
    "claimed storage": (lambda: torch_zip(storage("0", body(1 << 60)), _ZEROS), "contains neither"),
    "nested shape": (lambda: torch_zip(tensor(NESTED, NESTED), _ZEROS), "is damaged"),
    "repeated value": (
        lambda: torch_zip(tensor(body((1 << 40,)), body((0,))), _ZEROS),
        "exceeds its storage",
    ),
    "empty tensor of a huge shape": (
        lambda: torch_zip(tensor(body((1 << 40, 0)), body((1, 1))), _ZEROS),
        "contains neither",
    ),
    "nested label": (
        lambda: torch_zip(
            samples("sequences", listed(tensor(body((2, 4)), body((4, 1)))), labels=listed(NESTED)),
            _ZEROS,
        ),
        "its label is",
    ),
    "one sequence often": (
        lambda: torch_zip(samples("sequences", often(_BIG_TENSOR, 10**4)), _BIG),
        "max_memory",
    ),
    "nested graphs": (lambda: torch_zip(samples("graphs", NESTED)), "none of its 2 records"),
    "one graph often": (
        lambda: torch_zip(
            samples(
                "graphs",
                listed(often(samples("x", _BIG_TENSOR, edge_index=_BIG_TENSOR), 500)),
            ),
            _BIG,
        ),
        "has no edge_index",
    ),
}


def valid_files() -> dict[str, bytes]:
    """Real files, to be mutated: their names, and their bytes."""
    records = [make_record(seed) for seed in range(2)]
    found = {f"protocol_{p}_0000.pkl": pickle.dumps(records, protocol=p) for p in range(6)}
    found["gzip_0000.pkl.gz"] = gzip.compress(found["protocol_4_0000.pkl"], 1)
    packed = io.BytesIO()
    sequences = [torch.ones(3, 4), torch.ones(3, 4, dtype=torch.bfloat16)]
    graph = {"x": torch.ones(2, 3), "edge_index": torch.tensor([[0], [1]])}
    torch.save({"sequences": sequences, "labels": [torch.tensor(1.0), 0]}, packed)
    found["sequences_0000.pt"] = packed.getvalue()
    packed = io.BytesIO()
    torch.save({"graphs": [[graph, graph]] * 2, "labels": np.ones(2)}, packed)
    found["graphs_0000.pt"] = packed.getvalue()
    return found


_PIECES = (
    *(b"2\x86", b"\x85", b"h\x00", b"h\x01", b"j\x05\x00\x00\x00", b"\x94", b"q\x01", b"]", b"}"),
    *(b"(", b"t", b"e", b"u", b"s", b"a", b"R", b"b", b"\x81", b"Q", b"\x90", b"\x91", b"0", b"1"),
    *(b"N", b".", NESTED, body(1 << 999), body("x" * 999), _DTYPE, _EMPTY, call("builtins.set")),
    *(b"\x8e" + bytes(7) + b"\x01", b"\x8b\xff\xff\xff\x7f", b"X\xff\xff\xff\xff"),
)


def mutations(content: bytes, seed: int) -> Iterator[bytes]:
    """Endless variants of a file: flipped bits, cuts, doubled parts, inserted opcodes."""
    source = random.Random(seed)
    while True:
        changed = bytearray(content)
        for _ in range(source.choice((1, 1, 2, 5))):
            _mutate(changed, source)
        yield bytes(changed)


def _mutate(content: bytearray, source: random.Random) -> None:
    # Most of a file is numbers: what matters is near the ends.
    span = source.choice((len(content), min(len(content), 400)))
    at = source.randrange(span + 1)
    if source.random() < 0.3:
        at = len(content) - at
    match source.randrange(6):
        case 0 if at < len(content):
            content[at] ^= 1 << source.randrange(8)
        case 1 if at < len(content):
            content[at] = source.randrange(256)
        case 2:
            del content[at : at + source.choice((1, 4, len(content)))]
        case 3:
            content[at:at] = content[at : at + source.randrange(64)]
        case _:
            content[at:at] = source.choice(_PIECES)


def odd_files(seed: int) -> Iterator[tuple[str, bytes]]:
    """Endless well-formed files whose records have odd values: their names, and their bytes."""
    source = random.Random(seed)
    while True:
        records = [_odd_record(source) for _ in range(source.choice((1, 1, 2, 3)))]
        yield "odd_0000.pkl", pickle.dumps(records, protocol=source.choice((2, 4, 5)))
        kind, make = source.choice((("sequences", _odd_tensor), ("graphs", _odd_graphs)))
        count = source.choice((1, 2, 3))
        content = {kind: [make(source) for _ in range(count)]}
        for name in ("labels", "question_ids"):
            if source.random() < 0.7:
                content[name] = [_odd_value(source) for _ in range(count)]
        packed = io.BytesIO()
        torch.save(content, packed)
        yield "odd_0000.pt", packed.getvalue()


def _odd_record(source: random.Random) -> Any:
    record = make_record(source.randrange(9), dtype=source.choice((np.float16, np.float64)))
    names = [*record, "question", "answer", "prompt_length", "example_id", "global_example_id"]
    for name in source.sample(names, source.choice((1, 1, 2, 3))):
        record[name] = _odd_value(source)
    if source.random() < 0.3:
        # The same shape everywhere, so that nothing but the values is odd.
        tokens, dim, heads = (source.choice((1, 2, 5)) for _ in range(3))
        record |= {
            "hidden_states": [_odd_array(source, (tokens, dim))] * 2,
            "attentions": [_odd_array(source, (heads, tokens, tokens))] * 2,
            "tokens": [0] * tokens,
            "tokens_decoded": [source.choice(_TEXTS) for _ in range(tokens)],
        }
    return record if source.random() < 0.95 else _odd_value(source)


_TEXTS = ("", " ", "x", "Q: a A:", "\ud800", "\x00", "\x1b[2J", "\u202e", "<e>", "=1+1", "y" * 5000)
_DTYPES = ("f2", "f4", "f8", "i1", "i8", "u8", "?", "c8", "U3", "S2", ">f4", ">i8")
_NUMBERS = (0, 1, -1, 2**31, -(2**63), 2**64, 10**400, True, 0.5, -0.0, 1e300, np.nan, np.inf, 1j)


def _odd_value(source: random.Random, depth: int = 2) -> Any:
    inner = [_odd_value(source, depth - 1) for _ in range(source.randrange(4))] if depth else []
    return source.choice(
        (
            *(None, inner, tuple(inner), nested(), {"a": inner}, {1}, b"bytes", np.float16(2)),
            *(source.choice(_TEXTS), source.choice(_NUMBERS), np.int64(3), np.str_("s")),
            _odd_array(source, tuple(source.choice((0, 1, 2, 3)) for _ in inner)),
            [_odd_array(source, (3, 8))] * 3,
        )
    )


def _odd_array(source: random.Random, shape: tuple[int, ...]) -> np.ndarray:
    kind = np.dtype(source.choice((*_DTYPES, "f2", "f4", "f8")))
    value = source.choice((0.0, -1.0, 60000.0, np.finfo(np.float64).max, np.nan, np.inf))
    with np.errstate(over="ignore"):
        return np.full(shape, value if kind.kind == "f" else 1).astype(kind)


def _odd_tensor(source: random.Random) -> Any:
    shape = tuple(source.choice((0, 1, 2, 3)) for _ in range(source.choice((1, 2, 2, 2, 3))))
    kind = source.choice((torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.bool))
    tensor = torch.full(shape, source.choice((0.0, 1.0, 2.0, 1e5, float("nan")))).to(kind)
    return tensor if source.random() < 0.9 else _odd_value(source)


def _odd_graphs(source: random.Random) -> Any:
    def graph() -> Any:
        nodes, edges = source.choice((0, 1, 3)), source.choice((0, 1, 2))
        fields = {
            "x": torch.ones(nodes, source.choice((0, 1, 2))),
            "edge_index": torch.zeros(2, edges, dtype=torch.int64),
            "edge_attr": source.choice((None, torch.ones(edges), torch.ones(edges, 2))),
            source.choice(_TEXTS[:-1]): None,
        }
        if source.random() < 0.3:
            fields[source.choice([*fields])] = source.choice((_odd_tensor, _odd_value))(source)
        return fields

    return [graph() for _ in range(source.choice((1, 2, 3)))]
