"""The kinds of hostile input: each writes one and returns what a user would do with it."""

import contextlib
import gzip
import shutil
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

from tests.fuzz.corpus import CAPTURE, ROWS
from tests.fuzz.harness import MakeCase, Refused, clew
from tests.fuzz.kept import PRECIOUS, caches, detectors, journals, risks, runs, samples
from tests.fuzz.mutations import edit_bytes, edit_file, edit_header, edit_json, replace_entry
from tests.fuzz.services import api, identify, judge, page
from tests.hallucination.legacy import hostile as old_bombs
from tests.patterns.photos import hostile as photo_bombs
from tests.stores import assert_same_store, without_checksum

_LEGACY_BOMBS: dict[str, Callable[[], bytes]] = {
    **{
        name: partial(bytes, b"\x80\x02" + content + b".")
        for name, (content, _) in old_bombs.PICKLES.items()
    },
    **{name: make for name, (make, _) in old_bombs.TORCH_FILES.items()},
}
_PHOTO_BOMBS: tuple[tuple[str, Callable[[], bytes]], ...] = (
    ("wide.tif", partial(photo_bombs.wide_tiff, "F")),
    ("wide.tif", partial(photo_bombs.wide_tiff, "I;16")),
    ("tiled.tif", photo_bombs.tiled_tiff),
    ("scans.jpg", partial(photo_bombs.many_scans, 400)),
    ("segments.jpg", partial(photo_bombs.many_segments, 300_000)),
    ("chunks.png", partial(photo_bombs.many_chunks, 300_000)),
    ("runs.bmp", photo_bombs.run_lengths),
    ("exif.jpg", photo_bombs.exif_bomb),
    ("text.png", photo_bombs.text_bomb),
)
# What a file's columns may be said to be: right, wrong and nonsense.
_MAPPINGS: tuple[tuple[str, ...], ...] = (
    (),
    ("--answers", "given", "--columns", "answer=question"),
    ("--answers", "given", "--columns", "answer=answers,label=id"),
    ("--answers", "given", "--label-values", "hallucinated=a,correct=b"),
    ("--answers", "generate", "--columns", "question=id,id=question,group=answers"),
    ("--columns", "question=no such column,spans=\0"),
    ("--encoding", "latin-1"),
    ("--encoding", "utf-16"),
)


def manifests(chance: Random, corpus: Path, folder: Path) -> Callable[[], None]:
    """A store whose manifest was edited."""
    store = _copy(corpus / chance.choice(("traces", "samples")), folder / "store")
    path = chance.choice(sorted(store.rglob("manifest.json")))
    if chance.random() < 0.9:  # with its checksum, every edit is refused for it
        edit_file(chance, path, lambda *_: without_checksum(path).encode())
    edit_file(chance, path, chance.choice((edit_json, edit_json, edit_json, edit_bytes)))
    return _use_store(chance, corpus, store)


def shards(chance: Random, corpus: Path, folder: Path) -> Callable[[], None]:
    """A store whose other files were edited, replaced, swapped, or come from another store."""
    store = _copy(corpus / "traces", folder / "store")
    outside = folder / "outside"
    outside.write_bytes(PRECIOUS)
    for _ in range(chance.choice((1, 1, 2, 3))):
        _damage(chance, store, sorted((corpus / "other_traces").glob("*.arrow")), outside)
    use = _use_store(chance, corpus, store)

    def attempt() -> None:
        try:
            with contextlib.suppress(Refused):
                use()
            _repair_to_the_same_rows(corpus, store)
        finally:
            assert outside.read_bytes() == PRECIOUS, "a file outside the store was changed"

    return attempt


def _damage(chance: Random, store: Path, foreign: list[Path], outside: Path) -> None:
    files = sorted(path for path in store.glob("*.arrow") if path.is_file())
    names = (*(p.name for p in files), "batch_0001.arrow.part", "batch_0001.arrow.recovered")
    path = store / chance.choice((*names, "manifest.json.1234abcd.tmp"))
    if path.is_file() and not path.is_symlink() and chance.random() < 0.4:
        edit_file(chance, path, edit_bytes)
    else:
        others = [p for p in files if p != path]
        replace_entry(chance, path, [*others, *foreign], outside)
    if chance.random() < 0.3:  # as a run that was killed leaves it
        unfinished = store / "batch_0001.arrow"
        part = store / "batch_0001.arrow.part"
        if unfinished.is_file() and not unfinished.is_symlink() and not part.is_dir():
            unfinished.rename(part)


def _repair_to_the_same_rows(corpus: Path, store: Path) -> None:
    """Whatever was damaged: a store that clew calls intact and complete has the original rows."""
    clew("verify", "--repair", store)
    said = _extract(corpus, store)
    if f"{ROWS} of {ROWS}" in said and "is intact" in clew("verify", store):
        assert_same_store(store, corpus / "traces")


def _use_store(chance: Random, corpus: Path, store: Path) -> Callable[[], None]:
    scores, out = corpus / "scores.csv", store.parent / "out"
    if (store / "sequences").is_dir():
        words = chance.choice(
            (("inspect", store), ("verify", store), ("verify", "--repair", store))
        )
        return lambda: _run(*words)
    return chance.choice(
        (
            lambda: _run("inspect", store),
            lambda: _run("verify", store),
            lambda: _run("verify", "--repair", store),
            lambda: _run("label", store, "--out", out),
            lambda: _run("preprocess", store, "--scores-file", scores, "--out", out),
            lambda: _run("show", store, "--id", 1, "--out", out / "page.html"),
            lambda: _extract(corpus, store),
            lambda: _read_traces(store),
        )
    )


def _extract(corpus: Path, store: Path) -> str:
    where = ("--model", corpus / "model", "--questions", corpus / "questions.jsonl")
    return clew("extract", *where, "--out", store, *CAPTURE)


def _run(*words: object) -> None:
    clew(*words)


def _read_traces(store: Path) -> None:
    from clew import ClewError, TraceBatchLoader

    try:
        for trace in TraceBatchLoader(store).iter_traces():
            dict(trace)
    except (ClewError, OSError) as error:
        raise _refusal(error) from None


def questions(chance: Random, corpus: Path, folder: Path) -> Callable[[], None]:
    """A question file of any format."""
    source = chance.choice(sorted((corpus / "questions").iterdir()))
    path = folder / source.name
    content = source.read_bytes()
    if path.suffix == ".gz":
        inner = gzip.decompress(content)
        changed = edit_bytes(chance, inner) if chance.random() < 0.5 else _grow(chance, inner)
        content = gzip.compress(changed)
        path.write_bytes(content if chance.random() < 0.7 else edit_bytes(chance, content))
    elif path.suffix == ".json" and chance.random() < 0.6:
        path.write_bytes(edit_json(chance, content))
    elif path.suffix == ".jsonl" and chance.random() < 0.6:
        lines = content.splitlines()
        at = chance.randrange(len(lines))
        lines[at] = edit_json(chance, lines[at])
        path.write_bytes(b"\n".join(lines))
    elif path.suffix in (".csv", ".tsv") and chance.random() < 0.3:
        path.write_bytes(_grow(chance, content))
    else:
        path.write_bytes(edit_bytes(chance, content))
    where = ("--model", corpus / "model", "--questions", path, "--out", folder / "store")
    mapping = chance.choice(_MAPPINGS)
    settings = () if "given" in mapping else CAPTURE
    return lambda: _run("extract", *where, *settings, *mapping, "--num-samples", 6)


def _grow(chance: Random, content: bytes) -> bytes:
    """One value or line that is far too long."""
    at = chance.randrange(len(content) + 1)
    filler = chance.choice((b"a", b'"', b"\n", b",", b"[", b"\\", b"\0", "é".encode(), b"a "))
    most = 1_000_000 if filler == b"\n" else 10_000_000  # a line takes a microsecond
    return content[:at] + filler * chance.choice((10_000, 1_000_000, most)) + content[at:]


def scores(chance: Random, corpus: Path, folder: Path) -> Callable[[], None]:
    """A table of scores."""
    path = folder / "scores.csv"
    edit = chance.choice((edit_bytes, _grow))
    path.write_bytes(edit(chance, (corpus / "scores.csv").read_bytes()))
    return lambda: _run(
        "preprocess", corpus / "traces", "--scores-file", path, "--out", folder / "out"
    )


def models(chance: Random, corpus: Path, folder: Path) -> Callable[[], None]:
    """A detector or a classifier: weights, their description, results."""
    kind = chance.choice(("lstm", "gnn_det", "classifier"))
    source = corpus / "classifier" if kind == "classifier" else corpus / "trained" / kind
    model = _copy(source, folder / "model")
    path = chance.choice(
        [p for p in sorted(model.iterdir()) if p.suffix in (".safetensors", ".json")]
    )
    if path.suffix == ".json":
        edit_file(chance, path, chance.choice((edit_json, edit_json, edit_bytes)))
    else:
        edit_file(chance, path, chance.choice((edit_header, edit_header, edit_bytes)))
    if kind == "classifier":
        photos = corpus / "photos"
        return lambda: _run(
            "patterns", "identify", photos, "--model", model, "--out", folder / "out"
        )
    return lambda: _score(model, corpus / "learnable", kind)


def _score(model: Path, data: Path, kind: str) -> None:
    from clew import ClewError, load_detector
    from clew.datasets import Loader, PreprocessedGNNMapDataset, PreprocessedLSTMMapDataset

    try:
        detector = load_detector(model)
        samples = (
            PreprocessedLSTMMapDataset(data, split="test")
            if kind == "lstm"
            else PreprocessedGNNMapDataset(data, split="test", with_sequence=True)
        )
        risks = detector.score(next(iter(Loader(samples, 5))))
    except ClewError as error:
        raise _refusal(error) from None
    assert ((risks >= 0) & (risks <= 1)).all(), f"risks {risks}"
    assert 0 <= detector.threshold <= 1, f"threshold {detector.threshold}"


def readers(chance: Random, corpus: Path, folder: Path) -> Callable[[], None]:
    """A reader: its settings, or its weights."""
    reader = _copy(corpus / "reader", folder / "reader")
    path = reader / chance.choice(("reader.json", "reader.json", "adapter.safetensors"))
    if path.suffix == ".json":
        edit_file(chance, path, lambda *_: without_checksum(path).encode())
        edit_file(chance, path, chance.choice((edit_json, edit_json, edit_bytes)))
    else:
        edit_file(chance, path, chance.choice((edit_header, edit_header, edit_bytes)))
    words = ("--source", "It is Ann.", "--answer", "It is Bob.", "--model", corpus / "model")
    return lambda: _run("check", "--reader", reader, *words)


def legacy(chance: Random, corpus: Path, folder: Path) -> Callable[[], None]:
    """Pickles and .pt files: edited ones, and bombs of many kinds."""
    old = folder / "old"
    old.mkdir()
    if chance.random() < 0.3:
        content = _LEGACY_BOMBS[chance.choice(sorted(_LEGACY_BOMBS))]()
        is_torch = content[:2] == b"PK"
        name = "preprocessed_batch_0000.pt" if is_torch else "trivia_qa_traces_batch_0000.pkl"
        (old / name).write_bytes(_maybe_edit(chance, content))
        return lambda: _run("convert", old, "--out", folder / "out")
    source = chance.choice(sorted((corpus / "legacy").iterdir()))
    path, content = old / source.name, source.read_bytes()
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(edit_bytes(chance, gzip.decompress(content))))
    elif path.suffix == ".pt" and chance.random() < 0.6:
        _edit_zip(chance, source, path)
    else:
        path.write_bytes(edit_bytes(chance, content))
    return lambda: _run("convert", old, "--out", folder / "out")


def _edit_zip(chance: Random, source: Path, path: Path) -> None:
    """One entry of an archive edited, its checksum right again."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(path, "w") as new:
        chosen = chance.choice(old.namelist())
        for name in old.namelist():
            content = old.read(name)
            new.writestr(name, edit_bytes(chance, content) if name == chosen else content)


def photos(chance: Random, corpus: Path, folder: Path) -> Callable[[], None]:
    """A photo of any format: an edited one, or a bomb."""
    (folder / "photos").mkdir()
    where = ("--model", corpus / "classifier", "--out", folder / "out")
    use = partial(_run, "patterns", "identify", folder / "photos", *where)
    if chance.random() < 0.3:
        name, make = chance.choice(_PHOTO_BOMBS)
        (folder / "photos" / name).write_bytes(_maybe_edit(chance, make()))
        return use
    source = chance.choice(sorted((corpus / "photos").iterdir()))
    path = folder / "photos" / source.name
    path.write_bytes(edit_bytes(chance, source.read_bytes()))
    return use


def _maybe_edit(chance: Random, content: bytes) -> bytes:
    return edit_bytes(chance, content) if chance.random() < 0.5 else content


def _copy(source: Path, target: Path) -> Path:
    return Path(shutil.copytree(source, target))


def _refusal(error: Exception) -> Refused:
    """Only errors that clew raises on purpose, and those of the operating system."""
    if isinstance(error, OSError):
        assert error.errno, f"not an error of the operating system: {error!r}"
    return Refused(str(error))


KINDS: dict[str, MakeCase] = {
    "manifests": manifests,
    "shards": shards,
    "questions": questions,
    "scores": scores,
    "models": models,
    "detectors": detectors,
    "readers": readers,
    "risks": risks,
    "samples": samples,
    "runs": runs,
    "journals": journals,
    "caches": caches,
    "legacy": legacy,
    "photos": photos,
    "page": page,
    "api": api,
    "identify": identify,
    "judge": judge,
}
