"""Old pickles yield their data and run no code."""

import builtins
import functools
import gzip
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from clew.base.errors import InputError, UnsafePickleError
from clew.hallucination.legacy.reading import load_samples
from clew.hallucination.legacy.unpickling import explain_errors, read_pickle
from tests.hallucination.legacy.old_files import RunsCommand, make_record, write_pickle


def load_pickle(path: Path) -> Any:
    with explain_errors(path), path.open("rb") as file:
        return read_pickle(file)


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("ending", ["pkl", "pkl.gz"])
def test_plain_data_comes_back_equal(tmp_path: Path, protocol: int, ending: str) -> None:
    content = {
        "records": [make_record(), make_record(1, dtype=np.float32)],
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "big_endian": np.arange(4, dtype=">i4"),
        "axes": np.arange(24).reshape(2, 3, 4).transpose(1, 0, 2),
        "empty": np.zeros((0, 4), np.float16),
        "texts": np.array(["ä", "longer"]),
        "scalars": [np.float16(0.5), np.int64(-3), np.bool_(True)],
        "plain": [None, True, 2**80, -1.5, 1j, b"", b"\xff", bytearray(b"x"), {1}, (2, 3)],
        "ordered": OrderedDict(a=1),
    }
    loaded = load_pickle(write_pickle(tmp_path / f"a_0000.{ending}", content, protocol))
    np.testing.assert_equal(loaded, content)
    assert loaded["fortran"].dtype == np.float64
    assert loaded["records"][1]["hidden_states"][0].dtype == np.float32


def test_pickles_of_numpy_1_are_read(tmp_path: Path) -> None:
    array = np.arange(3, dtype=np.float16)
    old = pickle.dumps(array, protocol=2).replace(b"numpy._core.", b"numpy.core.")
    assert b"numpy.core.multiarray" in old
    path = tmp_path / "a.pkl"
    path.write_bytes(old)
    np.testing.assert_array_equal(load_pickle(path), array)


def test_commands_in_a_pickle_are_not_executed(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    command = RunsCommand(f'touch "{trap}"')
    hidden = np.empty(1, object)
    hidden[0] = command
    for content in (command, [make_record(question=command)], hidden, [{"tokens": hidden}]):
        path = write_pickle(tmp_path / "a.pkl", content)
        with pytest.raises(UnsafePickleError, match="a.pkl.* was rejected"):
            load_pickle(path)
    assert not trap.exists()
    # The trap works when loaded without protection.
    pickle.loads(pickle.dumps(command))
    assert trap.exists()


def test_error_names_the_rejected_reference(tmp_path: Path) -> None:
    path = write_pickle(tmp_path / "a.pkl", RunsCommand("true"))
    with pytest.raises(
        UnsafePickleError, match=r"refers to '\w+\.system'.*Nothing in it was executed"
    ):
        load_pickle(path)


@pytest.mark.parametrize(
    "content",
    [functools.partial(print, "x"), builtins.eval, torch.zeros(2), Path, np.load, np.ma.zeros(2)],
    ids=["partial", "eval", "tensor", "class", "function", "masked array"],
)
def test_anything_but_plain_data_is_rejected(tmp_path: Path, content: Any) -> None:
    with pytest.raises(UnsafePickleError, match="was rejected: it"):
        load_pickle(write_pickle(tmp_path / "a.pkl", [content]))


def test_object_arrays_are_rejected_even_when_harmless(tmp_path: Path) -> None:
    path = write_pickle(tmp_path / "a.pkl", np.array([1, "a"], object))
    with pytest.raises(UnsafePickleError, match="array of type 'O8', not of plain numbers"):
        load_pickle(path)


def test_structured_arrays_are_rejected(tmp_path: Path) -> None:
    path = write_pickle(tmp_path / "a.pkl", np.zeros(2, [("x", "i4")]))
    with pytest.raises(UnsafePickleError, match="not of plain numbers"):
        load_pickle(path)


def test_no_array_can_be_changed_by_a_state_of_numpy(tmp_path: Path) -> None:
    for protocol in (2, 5):
        [array] = load_pickle(write_pickle(tmp_path / "a.pkl", [np.arange(3)], protocol))
        with pytest.raises(UnsafePickleError, match="twice"):
            array.__setstate__((1, (3,), np.dtype("i8"), False, bytes(24)))


_ENCODE = b"c_codecs\nencode\n"


@pytest.mark.parametrize(
    "opcodes",
    [
        _ENCODE + b"}X\x04\x00\x00\x00nameK\x01sb",  # BUILD on an allowed function
        _ENCODE + b"(X\x01\x00\x00\x00aX\x05\x00\x00\x00rot13tR",
        b"cnumpy\nndarray\n(K\x05tR",
        b"X\x01\x00\x00\x00aQ",  # a persistent id
    ],
    ids=["change a function", "codec", "ndarray by hand", "outside"],
)
def test_allowed_names_cannot_be_misused(tmp_path: Path, opcodes: bytes) -> None:
    path = tmp_path / "a.pkl"
    path.write_bytes(b"\x80\x02" + opcodes + b".")
    with pytest.raises(UnsafePickleError, match="was rejected") as caught:
        load_pickle(path)
    assert "object at 0x" not in str(caught.value)


def test_truncated_file_is_named(tmp_path: Path) -> None:
    whole = write_pickle(tmp_path / "a.pkl.gz", [make_record()]).read_bytes()
    for size in (0, 1, 15, len(whole) // 2, len(whole) - 1):
        path = tmp_path / "cut.pkl.gz"
        path.write_bytes(whole[:size])
        with pytest.raises(InputError, match="cut.pkl.gz.* is damaged or truncated"):
            load_pickle(path)


@pytest.mark.slow
@pytest.mark.usefixtures("forked_readers")
def test_corrupted_bytes_never_raise_another_error(tmp_path: Path) -> None:
    whole = write_pickle(tmp_path / "a.pkl", [make_record()]).read_bytes()
    path = tmp_path / "b.pkl"
    random = np.random.default_rng(0)
    failures = 0
    for _ in range(200):
        changed = bytearray(whole)
        changed[random.integers(0, 400)] = random.integers(0, 256)
        path.write_bytes(changed)
        try:
            load_samples(path, "pickle")
        except InputError:
            failures += 1
    assert failures > 50


def test_gzip_checksum_is_checked(tmp_path: Path) -> None:
    path = write_pickle(tmp_path / "a.pkl.gz", [1])
    content = bytearray(path.read_bytes())
    content[-6] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match="CRC"):
        load_pickle(path)


def test_second_pickle_in_a_file_is_not_dropped_silently(tmp_path: Path) -> None:
    path = write_pickle(tmp_path / "a.pkl", [1])
    path.write_bytes(path.read_bytes() * 2)
    with pytest.raises(InputError, match="bytes after its first pickle"):
        load_pickle(path)


def test_compression_is_detected_from_the_content(tmp_path: Path) -> None:
    path = tmp_path / "a.pkl"
    path.write_bytes(gzip.compress(pickle.dumps([1])))
    assert load_pickle(path) == [1]


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no file"):
        load_samples(tmp_path / "a.pkl", "pickle")


def test_short_flat_tuples_may_be_keys(tmp_path: Path) -> None:
    content = {(0, "a"): 1, ("b",): {(1, 2)}, None: frozenset({1.5})}
    for protocol in range(6):
        assert load_pickle(write_pickle(tmp_path / "a.pkl", content, protocol)) == content
