"""Time to train a detector on 20,000 answers, and to score an answer with it, beyond capture.

    python benchmarks/detector.py preprocessed_data          answers of the embedded model
    python benchmarks/detector.py preprocessed_data --quick  1,000 answers, to see that it runs

The answers are those of `preprocessed_data`, made by "clew preprocess", repeated with noise and
with some labels changed; about 4 GB are written to --data, or found there. Training is everything
that "clew compare" does for a detector that is kept: the method, its calibration, the fallback, the
distance to the training answers, and the token probe. Scoring starts from the record of the pass.
"""

import argparse
import shutil
import statistics
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from probes import fixed, write_store

from clew.hallucination.detectors import Detector
from clew.hallucination.detectors.calibration import (
    Companions,
    fit_fallback,
    make_detector,
)
from clew.hallucination.detectors.probes.gated import Distance
from clew.hallucination.detectors.probes.registry import PROBES
from clew.hallucination.detectors.probes.tokens import find_token_probe
from clew.hallucination.live.features import Answer, LiveFeatures
from clew.hallucination.live.scoring import assess, recorded_columns
from clew.hallucination.samples.answers import AnswerFeatures
from clew.hallucination.samples.splits import Splits, write_splits
from clew.hallucination.traces.compact import BASIS_NAME, Reduced
from clew.loading.splits import SPLIT_NAMES
from clew.metrics.calibration import PlattScale
from clew.metrics.ranking import auroc
from clew.storage.manifest import read_manifest

ANSWERS, QUICK = 20_000, 1000
MOST_TRAINING_SECONDS, MOST_SCORING_MS = 300, {"cpu": 5, "cuda": 1}
NOISE, WRONG_LABELS = 0.3, 0.1
STATES = ("sequence", "state_mean")
BY_HEAD = ("lookback", "log_diagonal_all", "log_diagonal_answer", "laplacian_answer")
PROMPT_TOKENS, LIVE_TOKENS, LIVE_ANSWER = 8, 64, 16


class RepeatedAnswers:
    """The answers of a folder over and over. `read` gives one field of some of them, with noise."""

    def __init__(self, folder):
        self.data = data = AnswerFeatures(folder)
        self.labels = np.concatenate([data.labels[split] for split in SPLIT_NAMES])
        self._known = {}

    def label(self, ids):
        random = np.random.default_rng(0).random(1 << 20)[ids]
        return np.abs(self.labels[ids % len(self.labels)] - (random < WRONG_LABELS))

    def read(self, field, ids, random=None):
        if field not in self._known:
            parts = [self.data.read(field, split) for split in SPLIT_NAMES]
            if random is None:
                self._known[field] = [value for part in parts for value in part]
            else:
                self._known[field] = np.concatenate(parts).astype(np.float16)
        values = self._known[field]
        if random is None:
            return [values[i % len(self.labels)] for i in ids]
        some = values[ids % len(self.labels)].astype(np.float32)
        noise = random.standard_normal(some.shape, np.float32)
        return (some + NOISE * noise * self._spread(field)).astype(np.float16)

    def _spread(self, field):
        key = f"spread of {field}"
        if key not in self._known:
            self._known[key] = self._known[field][:1000].astype(np.float32).std(axis=0)
        return self._known[key]

    def sequences(self, ids, random):
        return {"sequence": fixed(self.read("sequence", ids, random)), **self._labels(ids)}

    def answers(self, ids, random):
        tokens = {name: self.read(name, ids) for name in ("token_logprobs", "token_entropies")}
        return {
            "category": pa.array(self.read("category", ids)),
            "prompt_length": pa.array(np.full(len(ids), PROMPT_TOKENS, np.int32)),
            **{
                name: pa.array([v.tolist() for v in values], pa.list_(pa.float32()))
                for name, values in tokens.items()
            },
            **{
                name: fixed(self.read(name, ids, random))
                for name in ("state_mean", *BY_HEAD, "laplacian_top")
            },
            **self._labels(ids),
        }

    def graphs(self, ids, _random):
        """The projected states of the answer's tokens, behind a short prompt; no edges."""
        layers, rows = self.data.layers, self.read("node_tokens", ids)
        nodes, counts = [], []
        for states in rows:
            padded = np.pad(states, ((PROMPT_TOKENS, 0), (0, 0), (0, 0))).astype(np.float16)
            nodes.append(padded.transpose(1, 0, 2).reshape(-1, states.shape[-1]))
            counts.append(len(padded))
        offsets = pa.array(np.cumsum([0, *map(len, nodes)]), pa.int32())
        none = np.zeros(len(ids) + 1, np.int32)
        return {
            "nodes": pa.ListArray.from_arrays(offsets, fixed(np.concatenate(nodes))),
            **{name: pa.ListArray.from_arrays(none, pa.array([], pa.int32()))
               for name in ("edge_source", "edge_target")},
            "node_counts": fixed(np.repeat(np.int32(counts)[:, None], layers, axis=1)),
            "edge_counts": fixed(np.zeros((len(ids), layers), np.int32)),
            "edge_attr": pa.ListArray.from_arrays(none, fixed(np.zeros((0, 1), np.float16))),
            **self._labels(ids),
        }  # fmt: skip

    def _labels(self, ids):
        label = self.label(ids).astype(np.float32)
        return {"label": pa.array(label), "score": pa.array(1 - label)}


def write_data(source, folder, count):
    if (folder / "splits.csv").exists():
        return
    repeated = RepeatedAnswers(source)
    for kind in ("sequences", "answers", "graphs"):
        settings = read_manifest(source / kind).settings
        write_store(folder / kind, kind, count, getattr(repeated, kind), settings)
    shutil.copy(source / BASIS_NAME, folder)
    ids = np.arange(count)
    places = np.random.default_rng(3).permutation(count) / count
    table = Splits(
        global_example_id=ids,
        question_id=pa.array([f"question-{i}" for i in ids]),
        split=np.searchsorted([0.7, 0.85], places, side="right").astype(np.uint8),
        label=repeated.label(ids).astype(np.float32),
        score=1 - repeated.label(ids).astype(np.float32),
    )
    write_splits(folder / "splits.csv", table)


@contextmanager
def timed(what):
    """Prints the seconds, and those of all cores together: other work may hold some of them."""
    start, worked = time.perf_counter(), time.process_time()
    took = {}
    yield took
    took["seconds"] = time.perf_counter() - start
    cpu = time.process_time() - worked
    print(f"  {what:<34}{took['seconds']:8.1f} s {cpu:8.1f} CPU s", flush=True)


def fit_companions(data):
    with timed("fallback") as fallback:
        found = fit_fallback(data)
    with timed("distance to the training answers") as distance:
        away = Distance.fit(data)
    with timed("token probe") as tokens:
        probe = find_token_probe(data)
    seconds = sum(part["seconds"] for part in (fallback, distance, tokens))
    return seconds, Companions(
        data=data, fallback=found, distance=away, basis=data.load_basis(), tokens=probe
    )


def train(data, name, companions):
    method = PROBES[name]
    with timed(name) as took:
        outcome = method.run(data, seed=0)
        calibration = PlattScale.fit(data.labels["validation"], outcome.validation)
    found = auroc(data.labels["test"], outcome.test)
    print(f"    test AUROC {found:.3f}, chosen {outcome.chosen}")
    fitted = Detector(
        name=name,
        title=method.title,
        family=method.family,
        calibration=calibration,
        threshold=0.5,
        metrics={"parameters": outcome.parameters},
        scorer=outcome.scorer,
    )
    return took["seconds"], make_detector(fitted, companions)


def make_record(detector, count, device):
    """The record of a pass over some answers, with random values. Their states are at the center of
    the training answers where the distance is measured: a far answer is not scored."""
    shape, random = detector.shape, torch.Generator().manual_seed(0)
    by_head = (count, shape.layers, shape.heads, LIVE_TOKENS)
    sizes = {
        "last_hidden": (count, shape.layers, shape.dim),
        "answer_hidden": (count, shape.layers, shape.dim),
        "nodes": (count, shape.layers, LIVE_TOKENS, shape.node_dim),
        "attention_log_diagonal": by_head,
        "laplacian_diagonal": by_head,
        "lookback": (count, shape.layers, shape.heads),
    }
    columns = recorded_columns(detector)
    empty = dict.fromkeys(Reduced.__dataclass_fields__, torch.empty(0, device=device))
    made = {
        name: torch.rand(size, generator=random).to(device)
        for name, size in sizes.items()
        if name in columns
    }
    made["answer_hidden"][:, detector.distance.layer] = detector.distance.mean
    return Reduced(**{**empty, **made})


def score(detector, count, device, repeats=30):
    """Milliseconds per answer, from the record of a pass to the risk; the median."""
    record = make_record(detector, count, device)
    prompt, tokens = [1] * (LIVE_TOKENS - LIVE_ANSWER), [1] * LIVE_ANSWER
    values = np.linspace(0.1, 2, LIVE_ANSWER).tolist()
    answer = Answer(
        prompt=prompt, tokens=tokens, logprobs=[-v for v in values], entropies=values, text="yes"
    )
    took = []
    for _ in range(repeats + 3):
        start, worked = time.perf_counter(), time.process_time()
        risks, _ = assess(detector, LiveFeatures(record, [answer] * count, detector.sample_shape))
        took.append((time.perf_counter() - start, time.process_time() - worked))
        assert all(risk.risk is not None for risk in risks)
    wall, cpu = (1000 * statistics.median(times) / count for times in zip(*took[3:], strict=True))
    print(f"  scoring {count:>2} at once {wall:8.2f} ms {cpu:8.2f} CPU ms per answer", flush=True)
    return wall


def measure(data, names, device):
    print(f"training on {len(data.labels['train']):,} of {sum(map(len, data.labels.values())):,}")
    beside, companions = fit_companions(data)
    for name in names:
        seconds, detector = train(data, name, companions)
        total, kept = beside + seconds, detector.to(device)
        ms = {count: score(kept, count, device) for count in (1, 32)}
        is_kept = total <= MOST_TRAINING_SECONDS and max(ms.values()) <= MOST_SCORING_MS[device]
        print(
            f"{name}: trained in {total:.0f} s of {MOST_TRAINING_SECONDS}, an answer scored in "
            f"{max(ms.values()):.2f} ms of {MOST_SCORING_MS[device]}: "
            f"{'kept' if is_kept else 'NOT kept'}",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("samples", type=Path, help='a folder of "clew preprocess"')
    parser.add_argument("--data", type=Path, help="keep the data here [default: a fresh folder]")
    parser.add_argument("--methods", nargs="+", default=["robust", "fusion", "gated"])
    parser.add_argument("--device", default="cpu", choices=list(MOST_SCORING_MS))
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="clew-detector-") as fresh:
        folder = args.data or Path(fresh) / "data"
        write_data(args.samples, folder, QUICK if args.quick else ANSWERS)
        measure(AnswerFeatures(folder), args.methods, args.device)


if __name__ == "__main__":
    main()
