"""Files that are made to hang, to exhaust memory or to crash end with one sentence."""

import gzip
import json
import mmap
import os
import re
import signal
import subprocess
import sys
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from clew.base.errors import ClewError, InputError
from clew.base.settings import read_size
from clew.hallucination.legacy import convert_folder
from clew.hallucination.legacy.reading import LEAST_BYTES, choose_limit, load_samples
from clew.storage.manifest import read_manifest
from tests.forking import HANGS_SECONDS
from tests.hallucination.legacy.hostile import (
    PICKLES,
    mutations,
    odd_files,
    valid_files,
    write_bombs,
)
from tests.hallucination.legacy.old_files import LAYERS, make_record, write_pickle, write_traces

# A hang detector only.
_CONVERT_ALL = """
import json, resource, sys
from pathlib import Path
from clew.hallucination.legacy import convert_folder, reading

reading._LEAST_SECONDS = 1  # of CPU time
pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + 300_000_000
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
for folder in sorted(Path(sys.argv[1]).iterdir()):
    result = convert_folder(folder, Path(sys.argv[2], folder.name), max_memory="16MB")
    print(json.dumps([folder.name, [skip.reason for skip in result.skipped]]), flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits the memory of a process as on Linux")
@pytest.mark.slow
def test_bombs_end_with_an_error_in_little_memory(tmp_path: Path) -> None:
    expected = write_bombs(tmp_path / "old")
    command = [sys.executable, "-c", _CONVERT_ALL, tmp_path / "old", tmp_path / "new"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=HANGS_SECONDS)
    reasons = dict(map(json.loads, ended.stdout.splitlines()))
    assert reasons.keys() == expected.keys(), ended.stderr
    wrong = {
        name: found
        for name, found in reasons.items()
        if len(found) != 1 or not re.search(expected[name], found[0]) or len(found[0]) > 1000
    }
    assert wrong == {}


@pytest.mark.slow
def test_ctrl_c_ends_a_conversion_that_takes_long(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    endless, _ = PICKLES["dict key"]
    (tmp_path / "old" / "x_0000.pkl").write_bytes(b"\x80\x04" + endless + b".")
    command = ["-m", "clew", "convert", tmp_path / "old", "--out", tmp_path / "new"]
    running = subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert running.stdout is not None
    assert "x_0000.pkl" in running.stdout.readline()
    running.send_signal(signal.SIGINT)
    rest, _ = running.communicate(timeout=HANGS_SECONDS)
    assert running.returncode == 130
    assert "Traceback" not in rest


@pytest.mark.slow
@pytest.mark.usefixtures("forked_readers")
@pytest.mark.parametrize("name", valid_files())
def test_damaged_files_raise_only_the_documented_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "old").mkdir()
    variants = mutations(valid_files()[name], seed=0)
    for number in range(25):
        (tmp_path / "old" / name).write_bytes(next(variants))
        try:
            convert_folder(tmp_path / "old", tmp_path / str(number), max_memory="32MB")
        except ClewError as error:
            assert str(error)


@pytest.mark.slow
@pytest.mark.usefixtures("forked_readers")
@pytest.mark.filterwarnings("error")
def test_odd_values_raise_only_the_documented_error(tmp_path: Path) -> None:
    """Only the file is odd: its bytes are a valid pickle or zip."""
    (tmp_path / "old").mkdir()
    for number, (name, content) in enumerate(islice(odd_files(seed=0), 60)):
        path = tmp_path / "old" / name
        path.write_bytes(content)
        try:
            convert_folder(path.parent, tmp_path / str(number), names=name)
        except ClewError as error:
            assert str(error)


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_file_that_exhausts_memory_is_excluded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_arguments: object) -> None:
        raise error

    write_traces(tmp_path / "old", 0)
    write_traces(tmp_path / "old", 1)
    result = convert_folder(tmp_path / "old", tmp_path / "new", names="*_0000.*")
    assert result.complete
    monkeypatch.setattr("clew.hallucination.legacy.formats._reduce", fail)
    result = convert_folder(tmp_path / "old", tmp_path / "new")
    assert "requires more memory than is available" in result.skipped[0].reason


def test_file_that_takes_too_much_is_excluded_until_it_is_allowed(tmp_path: Path) -> None:
    record = make_record(hidden_states=[np.ones((10, 10_000), np.float16)] * LAYERS)
    write_pickle(tmp_path / "old" / "a_0000.pkl", [record])
    write_pickle(tmp_path / "old" / "a_0001.pkl", [record] * 40)
    result = convert_folder(tmp_path / "old", tmp_path / "new", max_memory="20MB")
    assert [skip.file for skip in result.skipped] == ["a_0001.pkl"]
    assert "takes more than 20 MB of memory" in result.skipped[0].reason
    assert "give a larger `max_memory`" in result.skipped[0].reason
    assert convert_folder(tmp_path / "old", tmp_path / "new", max_memory="100 MB").complete


def test_limit_grows_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = SimpleNamespace(available=10**10, total=10**10)
    monkeypatch.setattr("psutil.virtual_memory", lambda: free)
    monkeypatch.setattr(
        "clew.hallucination.legacy.reading.read_limits", lambda: SimpleNamespace(free_bytes=10**9)
    )
    path = tmp_path / "a.pkl"
    path.touch()
    assert choose_limit(path, None) == LEAST_BYTES
    with path.open("wb") as file:
        file.truncate(20_000_000)
    assert choose_limit(path, None) == 640_000_000
    with path.open("wb") as file:
        file.truncate(1 << 40)
    assert choose_limit(path, None) == 10**9


@pytest.mark.parametrize(
    ("given", "size"),
    [(5, 5), ("5", 5), ("4GB", 4 * 10**9), ("1.5 MiB", 3 << 19), ("500mb", 5 * 10**8)],
)
def test_sizes_are_read_with_their_units(given: int | str, size: int) -> None:
    assert read_size("max_memory", given) == size


@pytest.mark.parametrize("given", [0, -1, "0", "4 bananas", "", "nan", "1e9", True, 1.5])
def test_other_sizes_are_rejected(tmp_path: Path, given: object) -> None:
    write_traces(tmp_path, 0)
    with pytest.raises(InputError, match=r'max_memory is .*give a size such as "4GB"'):
        convert_folder(tmp_path, tmp_path / "new", max_memory=given)  # type: ignore[arg-type]


def test_what_follows_a_pickle_is_not_decompressed(tmp_path: Path) -> None:
    path = tmp_path / "a.pkl.gz"
    path.write_bytes(gzip.compress(b"\x80\x04N." + bytes(10**8), 1))
    with pytest.raises(InputError, match="continues with more bytes after its first pickle"):
        load_samples(path, "pickle", max_memory="10MB")


def test_reader_that_is_killed_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clew.hallucination.legacy.reading.write_samples", os.abort)
    path = write_traces(tmp_path, 0)
    with pytest.raises(InputError, match="crashed its reader"):
        load_samples(path, "pickle")


def test_samples_stay_on_disk(tmp_path: Path) -> None:
    samples = load_samples(write_traces(tmp_path, 0), "pickle")
    hidden = samples[1]["hidden_states"]
    np.testing.assert_array_equal(hidden, np.stack(make_record(1)["hidden_states"]), strict=True)
    assert isinstance(hidden.base, mmap.mmap) and not hidden.flags.writeable


def test_unknown_fields_cannot_fill_the_manifest(tmp_path: Path) -> None:
    fields = {f"field {number}": 0 for number in range(5000)}
    write_pickle(tmp_path / "old" / "a_0000.pkl", [make_record(**fields)])
    assert convert_folder(tmp_path / "old", tmp_path / "new").complete
    assert len(read_manifest(tmp_path / "new").notes) == 100


def test_pipe_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    os.mkfifo(tmp_path / "old" / "a_0000.pkl")
    os.mkfifo(tmp_path / "old" / "b_0001.pkl")
    result = convert_folder(tmp_path / "old", tmp_path / "new")
    assert "it is a pipe, not a file" in result.skipped[0].reason
