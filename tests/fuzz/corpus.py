"""Small good files of every kind that clew reads, to be edited."""

import csv
import gzip
import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from clew.base.progress import ignore_event
from clew.engine import TrainConfig
from clew.hallucination.capture import extract, load_model
from clew.hallucination.comparison import compare_methods
from clew.hallucination.detectors.detector_folder import load_detector
from clew.hallucination.detectors.training.train import train_detectors
from clew.hallucination.samples.preprocess import preprocess_store
from clew.patterns.networks.lite0 import pretrained_lite0
from tests.builders import save_tiny_model, write_questions
from tests.hallucination.comparison.making import compare_config, write_set
from tests.hallucination.detectors.keeping import write_captured
from tests.hallucination.detectors.training.making import small_run
from tests.hallucination.grounded.test_reader import make_reader
from tests.hallucination.legacy import old_files
from tests.hallucination.samples.trace_stores import tiny_preprocess, write_scores
from tests.hallucination.workflow.test_calibrate import write_risks
from tests.patterns.cleaning.making import clean_all
from tests.patterns.identification.making import save_color_model
from tests.patterns.networks.making import write_random_lite0
from tests.patterns.review.making import identify, make_set
from tests.patterns.training.making import write_photos
from tests.samples import write_samples
from tests.stores import one_thread, tiny_config

ROWS = 24
CAPTURE = (
    *("--batch-size", 6, "--generation-batch", 6, "--max-new-tokens", 3, "--node-dim", 4),
    *("--edges-per-token", 2, "--device", "cpu"),
)
PHOTOS = ("jpg", "png", "tif", "gif", "webp", "bmp")


def make_corpus(folder: Path) -> Path:
    """Takes some seconds."""
    with one_thread():
        _make_traces(folder)
        _make_detector(folder)
        _make_calibration(folder)
        make_reader(folder / "model").save(folder / "reader")
        save_color_model(folder / "classifier")
        _make_weights(folder / "home" / "clew")
    write_photos(folder / "classes", {"green": 12, "red": 12})
    _make_journal(folder)
    _make_questions(folder / "questions")
    _make_photos(folder / "photos")
    old_files.write_traces(folder / "legacy", 0)
    old_files.write_traces(folder / "legacy", 1, ending="pkl")
    old_files.write_sequences(folder / "legacy" / "preprocessed_batch_0000.pt")
    identify(make_set(folder / "review").folder, folder / "review" / "new")
    return folder


def _make_traces(folder: Path) -> None:
    model = save_tiny_model(folder / "model")
    questions = write_questions(folder / "questions.jsonl", ROWS)
    small = {"shard_size": 6, "generation_batch": 6, "max_new_tokens": 3, "edges_per_token": 2}
    loaded = load_model(str(model), device="cpu")
    for name, changes in (("traces", {}), ("other_traces", {"prompt": "Q: {question}"})):
        config = tiny_config(model, questions, folder / name, **small | changes)
        extract(config, loaded=loaded)
    scores = write_scores(folder / "scores.csv", ROWS)
    preprocess_store(tiny_preprocess(folder / "traces", scores, folder / "samples"))


def _make_detector(folder: Path) -> None:
    data = write_samples(folder / "learnable", shards=2, rows=30, answers=True)
    for name in ("animals", "cities"):
        write_set(folder / "sets" / name, rows=30)
    config = small_run(data, folder / "trained", networks=("lstm", "gnn_det"))
    train_detectors(config)
    methods = ("perplexity", "linear_probe", "lookback", "fusion", "lstm")
    changes = {"seeds": 1, "train": TrainConfig(epochs=1), "keep_detectors": "all"}
    compared = compare_config(folder / "samples", folder / "compared", methods=methods, **changes)
    compare_methods(compared, ignore_event)


def _make_calibration(folder: Path) -> None:
    """A detector, and other answers of the same model: samples and risks."""
    data, _ = (
        write_captured(folder / name, graphs=False, shards=2) for name in ("fitted", "fresh")
    )
    compare_methods(compare_config(data, folder / "probes", methods=("linear_probe",)))
    write_risks(folder / "risks.jsonl", load_detector(folder / "probes"), count=100)


def _make_journal(folder: Path) -> None:
    """Photos of which some were moved or removed, and one was put back."""
    data = Path(shutil.copytree(folder / "classes", folder / "cleaned" / "photos"))
    with clean_all(data, folder / "cleaned" / "clean") as cleaning:
        cleaning.remove(0)
        cleaning.relabel(1, "another class")
        cleaning.keep(2)
        cleaning.remove(3)
        cleaning.undo()


def _make_weights(cache: Path) -> None:
    write_random_lite0(cache)
    pretrained_lite0(cache)  # which adds checksums


def _make_questions(folder: Path) -> None:
    folder.mkdir()
    records = [{"id": f"q{i}", "question": f"Who is {i}?", "answer": "a, b"} for i in range(8)]
    lines = "\n".join(map(json.dumps, records)).encode()
    with (folder / "all.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, records[0])
        table.writeheader()
        table.writerows(records)
    text = (folder / "all.csv").read_bytes()
    (folder / "all.tsv").write_bytes(text.replace(b",", b"\t"))
    (folder / "all.jsonl").write_bytes(lines)
    (folder / "all.json").write_text(json.dumps(records))
    (folder / "all.jsonl.gz").write_bytes(gzip.compress(lines))
    (folder / "all.csv.gz").write_bytes(gzip.compress(text))
    rows = pa.Table.from_pylist(records)
    pq.write_table(rows, folder / "all.parquet")
    with pa.ipc.new_file(folder / "all.arrow", rows.schema) as file:
        file.write_table(rows)


def _make_photos(folder: Path) -> None:
    folder.mkdir()
    pixels = np.random.default_rng(0).integers(0, 255, (24, 20, 3), dtype=np.uint8)
    picture = Image.fromarray(pixels)
    for ending in PHOTOS:
        picture.save(folder / f"plain.{ending}")
    picture.save(folder / "progressive.jpg", progressive=True)
    picture.convert("F").save(folder / "float.tif")
    picture.convert("I;16").save(folder / "deep.png")
    picture.save(folder / "lzw.tif", compression="tiff_lzw")
    frames = [picture.rotate(angle) for angle in range(5)]
    picture.save(folder / "moving.gif", save_all=True, append_images=frames)
