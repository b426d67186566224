"""Time and memory of every probe on 10,000 answers of a large model, beside the plain way.

    python benchmarks/probes.py --data DIR       about 5 GB are written to DIR, or found there
    python benchmarks/probes.py --quick          little data, to see that all of it runs

States of [32, 4096], 32 heads; 7,000 answers to learn from, 1,500 for validation, 1,500 to test.
The plain way: scikit-learn's StandardScaler and LogisticRegression, a fit for each strength.
"""

import argparse
import contextlib
import json
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from clew.hallucination.samples.splits import Splits, write_splits
from clew.hallucination.traces.schema import id_fields, shaped
from clew.loading.splits import SPLIT_NAMES
from clew.storage.manifest import Manifest, write_manifest
from clew.storage.origin import describe_in_schema
from clew.storage.repair import add_shard
from clew.storage.writer import ShardWriter

RESULTS = Path(__file__).resolve().parent / "results"
MOST_SECONDS, MOST_BYTES = 600, 4 << 30
SHARD_ROWS, BATCH_ROWS = 1000, 250
TOP = 25
# The shapes of columns whose rows have different lengths.
RAGGED = {
    **dict.fromkeys(("token_logprobs", "token_entropies"), ("answer",)),
    **dict.fromkeys(("edge_source", "edge_target"), ("edges",)),
    "nodes": ("nodes",),
    "edge_attr": ("edges",),
}


@dataclass(frozen=True, kw_only=True)
class Size:
    answers: int
    layers: int
    dim: int
    heads: int


LARGE = Size(answers=10_000, layers=32, dim=4096, heads=32)
QUICK = Size(answers=1000, layers=4, dim=64, heads=4)


def label(ids):
    return (np.random.default_rng(0).random(1 << 20)[ids] < 0.5).astype(np.float32)


class MadeStates:
    """States with a few strong directions, as real ones have; the middle layers know most."""

    def __init__(self, size):
        self.size, random = size, np.random.default_rng(1)
        factors = min(256, size.dim // 4)
        shape = (size.layers, factors, size.dim)
        self.mixing = random.standard_normal(shape, np.float32)
        self.mixing *= (np.arange(1, factors + 1) ** -0.5)[:, None].astype(np.float32)
        self.scale = np.exp(random.standard_normal((size.layers, size.dim), np.float32))
        self.telling = 0.15 * (random.random((size.layers, factors)) < 0.15).astype(np.float32)
        place = np.arange(size.layers) / size.layers - 0.6
        self.telling *= np.exp(-((place / 0.2) ** 2)).astype(np.float32)[:, None]

    def columns(self, ids, random):
        sign = 2 * label(ids)[:, None] - 1
        states = np.empty((len(ids), self.size.layers, self.size.dim), np.float16)
        for layer, mixing in enumerate(self.mixing):
            factors = random.standard_normal((len(ids), len(mixing)), np.float32)
            found = random.standard_normal((len(ids), self.size.dim), np.float32)
            found += (factors + sign * self.telling[layer]) @ mixing
            states[:, layer] = np.clip(found * self.scale[layer], -6e4, 6e4)
        return {"sequence": fixed(states)}


class MadeAnswers:
    """What is known of an answer besides its states; some heads can tell the hallucinated ones."""

    def __init__(self, size):
        self.size, random = size, np.random.default_rng(2)
        self.tell = 0.1 * random.standard_normal((size.layers, size.heads), np.float32)
        self.tell[random.random(self.tell.shape) < 0.8] = 0

    def columns(self, ids, random):
        hallucinated = label(ids)
        signal = hallucinated[:, None, None] * self.tell
        tokens = random.integers(4, 30, len(ids))
        pairs, floats = zip(tokens, hallucinated, strict=True), pa.list_(pa.float32())
        surprise = [random.exponential(0.3 + 0.2 * y, n).astype(np.float32) for n, y in pairs]
        by_head = {
            name: fixed(self._draw(random, signal).astype(np.float16))
            for name in ("lookback", "log_diagonal_all", "log_diagonal_answer")
        }
        return {
            "question": pa.array([f"What is the capital of country {i}?" for i in ids]),
            "category": pa.array([f"kind {i % 7}" for i in ids]),
            "token_logprobs": pa.array([-s for s in surprise], floats),
            "token_entropies": pa.array(surprise, floats),
            **by_head,
            "laplacian_top": fixed(self._spectrum(random, signal)),
            "samples": pa.array([self._sample(random, y) for y in hallucinated]),
        }

    def _draw(self, random, signal):
        return signal + random.standard_normal(signal.shape, np.float32)

    def _spectrum(self, random, signal):
        curve = np.linspace(0.9, 0.1, TOP, dtype=np.float32)
        height = 1 + 0.2 * self._draw(random, signal)
        noise = random.standard_normal((*signal.shape, TOP), np.float32)
        return (curve * (height[..., None] + 0.1 * noise)).astype(np.float16)

    def _sample(self, random, hallucinated):
        cities = random.integers(0, random.integers(1, 6) + 2 * hallucinated, 10)
        return [f"The capital is city number {city}." for city in cities]


def fixed(values):
    """A column of lists of fixed size."""
    array = pa.array(values.reshape(-1))
    for size in reversed(values.shape[1:]):
        array = pa.FixedSizeListArray.from_arrays(array, size)
    return array


def write_store(store, kind, answers, columns, settings=None):
    """A store of so many answers; `columns(ids, random)` are those of some of them."""
    manifest = Manifest(
        kind=kind, settings=settings or {}, rows_per_shard=SHARD_ROWS, planned_rows=answers
    )
    store.mkdir(parents=True)
    write_manifest(store, manifest)
    for number in range(-(-answers // SHARD_ROWS)):
        writer, last = None, min(answers, (number + 1) * SHARD_ROWS)
        for start in range(number * SHARD_ROWS, last, BATCH_ROWS):
            ids = np.arange(start, min(start + BATCH_ROWS, last))
            batch = make_batch(ids, number, columns(ids, np.random.default_rng(start)))
            schema = describe_in_schema(batch.schema, manifest)
            writer = writer or ShardWriter(store, number, schema, id_column="global_example_id")
            writer.write(batch.cast(schema))
        add_shard(store, writer.finish())


def make_batch(ids, number, columns):
    known = {
        "global_example_id": pa.array(ids),
        "example_id": pa.array(ids - number * SHARD_ROWS),
        "batch_number": pa.array(np.full(len(ids), number)),
        "question_id": pa.array([f"question-{i}" for i in ids]),
    }
    arrays = {field.name: known[field.name].cast(field.type) for field in id_fields()}
    arrays |= {"label": pa.array(label(ids)), "score": pa.array(1 - label(ids)), **columns}
    fields = [
        shaped(field.name, field.type, *shape) if (shape := shape_of(field)) else field
        for field in pa.table(arrays).schema
    ]
    return pa.RecordBatch.from_arrays(list(arrays.values()), schema=pa.schema(fields))


def shape_of(field):
    shape, kind = list(RAGGED.get(field.name, ())), field.type
    kind = kind.value_type if shape else kind
    while pa.types.is_fixed_size_list(kind):
        shape.append(kind.list_size)
        kind = kind.value_type
    return shape


def write_data(folder, size):
    if (folder / "splits.csv").exists():
        return
    write_store(folder / "sequences", "sequences", size.answers, MadeStates(size).columns)
    write_store(folder / "answers", "answers", size.answers, MadeAnswers(size).columns)
    ids = np.arange(size.answers)
    places = np.random.default_rng(3).permutation(size.answers) / size.answers
    table = Splits(
        global_example_id=ids,
        question_id=pa.array([f"question-{i}" for i in ids]),
        split=np.searchsorted([0.7, 0.85], places, side="right").astype(np.uint8),
        label=label(ids),
        score=1 - label(ids),
    )
    write_splits(folder / "splits.csv", table)


def run_child(job, folder, *names):
    """A fresh process, whose memory is its own; a line of JSON for each thing it measured."""
    command = [sys.executable, __file__, "--data", str(folder), "--child", job, *names]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        for line in child.stdout:
            yield json.loads(line)
    if child.returncode:
        raise SystemExit(f"{job} failed")


def measure_probes(folder):
    from clew.hallucination.detectors.probes.registry import PROBES
    from clew.hallucination.samples.answers import AnswerFeatures
    from clew.metrics.ranking import auroc

    data = AnswerFeatures(folder)
    for name, method in PROBES.items():
        if not data.fields.issuperset(method.needs):
            continue  # what the model says about its own answers is not made here
        forget_peak()
        start, worked = time.perf_counter(), time.process_time()
        outcome = method.run(data, seed=0)
        tell(
            name=name,
            seconds=time.perf_counter() - start,
            cpu_seconds=time.process_time() - worked,
            peak_bytes=peak_bytes(),
            validation=auroc(data.labels["validation"], outcome.validation),
            test=auroc(data.labels["test"], outcome.test),
            chosen=outcome.chosen,
        )


def measure_layers(folder, way, *layers):
    from clew.hallucination.detectors.probes.states import fit_layers
    from clew.hallucination.samples.answers import AnswerFeatures

    data = AnswerFeatures(folder)
    for layer in map(int, layers):
        start = time.perf_counter()
        if way == "clew":
            (probe,) = fit_layers(data, [layer])
            chosen, found = probe.strength, probe.auroc
        else:
            chosen, found = fit_plainly(data, layer)
        seconds = time.perf_counter() - start
        tell(layer=layer, seconds=seconds, C=chosen, validation=found, peak_bytes=peak_bytes())


def fit_plainly(data, layer):
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from clew.hallucination.detectors.probes.fitting import STRENGTHS

    warnings.simplefilter("ignore", ConvergenceWarning)  # after 100 steps, where clew ends too
    known, held = (data.read("sequence", split, layer=layer) for split in SPLIT_NAMES[:2])
    found = {}
    for strength in STRENGTHS:
        probe = make_pipeline(StandardScaler(), LogisticRegression(C=strength))
        probe.fit(known, data.labels["train"])
        scores = probe.decision_function(held)
        found[strength] = roc_auc_score(data.labels["validation"], scores)
    return max(found.items(), key=lambda one: one[1])


def tell(**figures):
    print(json.dumps(figures), flush=True)


def forget_peak():
    """Linux counts the peak from here on; elsewhere it is that of the process so far."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(folder, size):
    rows = []
    print(f"\n{'method':<22}{'seconds':>9}{'CPU':>9}{'peak MB':>9}{'val':>8}{'test':>8}")
    for row in run_child("probes", folder):
        rows.append(row)
        print(
            f"{row['name']:<22}{row['seconds']:9.1f}{row['cpu_seconds']:9.1f}"
            f"{row['peak_bytes'] / 1e6:9,.0f}{row['validation']:8.3f}{row['test']:8.3f}"
            f"  {row['chosen'] or ''}",
            flush=True,
        )
    seconds, peak = sum(r["seconds"] for r in rows), max(r["peak_bytes"] for r in rows)
    print(f"{'all':<22}{seconds:9.1f}{'':9}{peak / 1e6:9,.0f}")
    kept = seconds <= MOST_SECONDS and peak <= MOST_BYTES
    print(f"promised: {MOST_SECONDS} s and {MOST_BYTES / 1e6:,.0f} MB: {'kept' if kept else 'NOT'}")
    return rows + measure_rivals(folder, size)


def measure_rivals(folder, size):
    rows, layers = [], [str(size.layers // 4), str(size.layers * 5 // 8)]
    print("\none layer, every strength   layer  seconds  peak MB      C     val")
    for way in ("clew", "scikit-learn"):
        for row in run_child("layers", folder, way, *layers):
            rows.append({"way": way, **row})
            print(
                f"{way:<28}{row['layer']:5}{row['seconds']:9.1f}{row['peak_bytes'] / 1e6:9,.0f}"
                f"{row['C']:7g}{row['validation']:8.4f}",
                flush=True,
            )
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, help="keep the data here [default: a fresh folder]")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        {"probes": measure_probes, "layers": measure_layers}[args.child[0]](
            args.data, *args.child[1:]
        )
        return
    size = QUICK if args.quick else LARGE
    with tempfile.TemporaryDirectory(prefix="clew-probes-") as fresh:
        folder = args.data or Path(fresh) / "data"
        write_data(folder, size)
        rows = measure(folder, size)
    if not args.quick:
        save(size, rows)


def save(size, rows):
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"probes_{time.strftime('%Y%m%d_%H%M%S')}.json"
    path.write_text(json.dumps({"size": vars(size), "rows": rows}, indent=1), encoding="utf-8")
    print(f"\nsaved as {path.name}")


if __name__ == "__main__":
    main()
