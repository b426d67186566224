"""What `--keep compact` costs in accuracy and saves in bytes, beside `--keep full`.

    python benchmarks/compact.py
    python benchmarks/compact.py --columns       bytes per column at Llama-2-7B's shape, 62 tokens
    python benchmarks/compact.py --splits 5      every method, states in float16 and in 8 bits

Captures the embedded questions fully once; a full trace holds the compact fields too. A linear
probe is fitted on the last answer token's state of one layer, as each form stores it. With
`--splits`, captures them twice, compactly, and compares all methods on the same random splits.
"""

import argparse
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import clew
from clew import TraceBatchLoader
from clew.hallucination.capture import ExtractConfig, extract
from clew.hallucination.traces.compact import STATES, pack
from clew.hallucination.traces.packed import unpack
from clew.hallucination.traces.schema import (
    BLOCK,
    TraceShape,
    build_record_batch,
    id_fields,
    stored_shape,
    text_fields,
    trace_schema,
)

LLAMA_7B = TraceShape(layers=32, dim=4096, heads=32, node_dim=64, edges_per_token=16)
TOKENS, ANSWER = 62, 32


def normalize(text):
    plain = unicodedata.normalize("NFKD", text.lower())
    plain = "".join(c for c in plain if not unicodedata.combining(c))
    return " ".join(re.sub(r"[^a-z0-9 ]", " ", plain).split())


def is_right(trace):
    answer = f" {normalize(trace['answer'])} "
    return any(f" {normalize(accepted)} " in answer for accepted in trace["accepted_answers"])


def probe(states, hallucinated, train):
    model = make_pipeline(StandardScaler(), LogisticRegression(C=1e-2, max_iter=2000))
    model.fit(states[train], hallucinated[train])
    scores = model.decision_function(states[~train])
    return roc_auc_score(hallucinated[~train], scores)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--traces", type=int, default=1000)
    parser.add_argument("--layers", type=int, nargs="+", default=[12, 18, 24])
    parser.add_argument("--columns", action="store_true")
    parser.add_argument("--splits", type=int)
    parser.add_argument("--methods", default="all")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--at-once", type=int, default=1, help="comparisons that run together")
    args = parser.parse_args()
    if args.columns:
        return print_columns()
    folder = Path(tempfile.mkdtemp())
    try:
        if args.splits:
            compare_methods(args, folder)
        else:
            compare(args, folder / "store")
    finally:
        shutil.rmtree(folder)


def print_columns():
    """Bytes depend on the sizes alone, so the values are zeros and the texts are missing."""
    schema = trace_schema(LLAMA_7B, "compact", packed=True)
    texts = [field for field in (*id_fields(), *text_fields()) if field.name != "tokens"]
    columns = {field.name: [None] for field in texts} | {"tokens": [[0] * TOKENS]}
    for field in schema:
        shape = stored_shape(field, TOKENS, ANSWER)
        if shape is not None:
            columns[field.name] = np.zeros(shape, innermost(field.type).to_pandas_dtype())
    batch = build_record_batch(schema, columns, [TOKENS], [ANSWER])
    for name, column in zip(schema.names, batch.columns, strict=True):
        if column.nbytes > 1000:
            print(f"{name:22}{column.nbytes:12,}")
    print(f"{'a trace':22}{pa.ipc.get_record_batch_size(batch):12,}")


def innermost(kind):
    while pa.types.is_nested(kind):
        kind = kind.value_type
    return kind


def compare(args, store):
    extract(ExtractConfig(out=store, num_samples=args.traces, keep="full"))
    compact, full, hallucinated, sizes, full_sizes = [], [], [], [], []
    for trace in TraceBatchLoader(store).iter_traces():
        hallucinated.append(not is_right(trace))
        states = torch.from_numpy(np.array(trace["last_hidden"][args.layers]))
        compact.append(unpack(pack(states).numpy()).astype(np.float32))
        full.append(trace["hidden_states"][args.layers, -1].astype(np.float32))
        arrays = {name: trace[name] for name in trace if isinstance(trace[name], np.ndarray)}
        whole = sum(array.nbytes for array in arrays.values())
        everything = arrays["hidden_states"].nbytes + arrays["attentions"].nbytes
        states = sum(arrays[name].size for name in STATES)
        sizes.append(whole - everything - states * (1 - 2 / BLOCK))
        full_sizes.append(everything)
    hallucinated = np.array(hallucinated)
    train = np.random.default_rng(0).random(len(hallucinated)) < 0.7
    share = f"{hallucinated.mean():.0%} hallucinated"
    print(f"{len(hallucinated):,} answers, {share}; {train.sum()} to train on")
    print(f"{'layer':>6}{'compact':>10}{'full':>10}{'difference':>12}   (AUROC of a linear probe)")
    for index, layer in enumerate(args.layers):
        one = probe(np.stack([state[index] for state in compact]), hallucinated, train)
        other = probe(np.stack([state[index] for state in full]), hallucinated, train)
        print(f"{layer:6}{one:10.4f}{other:10.4f}{one - other:12.4f}")
    print(
        f"bytes a trace: compact {np.mean(sizes):,.0f}, full {np.mean(full_sizes):,.0f}: "
        f"{np.mean(full_sizes) / np.mean(sizes):.1f} times as many"
    )


def compare_methods(args, folder):
    """The mean AUROC of every method over the splits, with the same answers in both forms."""
    forms = "float16", "8 bits"
    for form, bits in zip(forms, (16, 8), strict=True):
        store = folder / f"traces {form}"
        extract(ExtractConfig(out=store, num_samples=args.traces, state_bits=bits))
        clew.label(store, out=folder / f"{form}.csv")
        scores, samples = folder / f"{form}.csv", folder / f"samples {form}"
        clew.preprocess(store, scores_file=scores, out=samples)
        print(f"{form}: {sum(f.stat().st_size for f in store.glob('batch_*')) / args.traces:,.0f}")
    runs = {}
    with ThreadPoolExecutor(args.at_once) as threads:
        for number in range(args.splits):
            for form in forms:
                samples = folder / f"split {number} {form}"
                shutil.copytree(folder / f"samples {form}", samples, copy_function=link)
                shuffle_splits(samples / "splits.csv", number)
                runs[number, form] = threads.submit(run_comparison, args, samples)
    print_methods({key: run.result() for key, run in runs.items()}, forms, args.splits)


def link(source, target):
    """Samples are the same in all splits; only splits.csv differs."""
    if source.endswith("splits.csv"):
        shutil.copy(source, target)
    else:
        Path(target).hardlink_to(source)


def shuffle_splits(path, seed):
    head, *lines = path.read_text().splitlines()
    place = head.split(",").index("split")
    rows = [line.split(",") for line in lines]
    splits = [row[place] for row in rows]
    np.random.default_rng(seed).shuffle(splits)
    for row, split in zip(rows, splits, strict=True):
        row[place] = split
    path.write_text("\n".join([head, *(",".join(row) for row in rows)]) + "\n")


def run_comparison(args, samples):
    """The AUROC of every method."""
    command = [sys.executable, "-m", "clew", "compare", "--preprocessed-dir", str(samples)]
    command += ["--out", f"{samples}-compared", "--keep-detectors", "none"]
    command += ["--seeds", str(args.seeds), "--epochs", str(args.epochs)]
    command += [] if args.methods == "all" else ["--methods", args.methods]
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode:
        print(samples.name, *ended.stderr.splitlines()[-1:])
        return {}
    methods = json.loads(Path(f"{samples}-compared", "results.json").read_text())["methods"]
    return {one["method"]: one["test_auroc_mean"] or one["test_auroc"] for one in methods}


def print_methods(found, forms, splits):
    names = [n for n in found[0, forms[0]] if all(n in aurocs for aurocs in found.values())]
    print(f"{'method':28}{forms[0]:>10}{forms[1]:>10}{'difference':>12}   mean of {splits} splits")
    for name in names:
        one, other = ([found[number, form][name] for number in range(splits)] for form in forms)
        gaps = [b - a for a, b in zip(one, other, strict=True)]
        print(
            f"{name:28}{statistics.mean(one):10.4f}{statistics.mean(other):10.4f}"
            f"{statistics.mean(gaps):12.4f}   {' '.join(f'{gap:+.3f}' for gap in gaps)}"
        )


if __name__ == "__main__":
    main()
