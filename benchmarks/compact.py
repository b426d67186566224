"""What `--keep compact` costs in accuracy and saves in bytes, beside `--keep full`.

    python benchmarks/compact.py
    python benchmarks/compact.py --columns       bytes per column at Llama-2-7B's shape, 62 tokens

Captures the embedded questions fully once; a full trace holds the compact fields too. A linear
probe is fitted on the last answer token's state of one layer, as each form stores it.
"""

import argparse
import re
import shutil
import tempfile
import unicodedata
from pathlib import Path

import numpy as np
import pyarrow as pa
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from clew import TraceBatchLoader
from clew.hallucination.capture import ExtractConfig, extract
from clew.hallucination.traces.schema import (
    TraceShape,
    build_record_batch,
    id_fields,
    resolve_shape,
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
    args = parser.parse_args()
    if args.columns:
        return print_columns()
    folder = Path(tempfile.mkdtemp())
    try:
        compare(args, folder / "store")
    finally:
        shutil.rmtree(folder)


def print_columns():
    """Bytes depend on the sizes alone, so the values are zeros and the texts are missing."""
    schema = trace_schema(LLAMA_7B, "compact")
    texts = [field for field in (*id_fields(), *text_fields()) if field.name != "tokens"]
    columns = {field.name: [None] for field in texts} | {"tokens": [[0] * TOKENS]}
    for field in schema:
        shape = resolve_shape(field, TOKENS, ANSWER)
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
        compact.append(trace["last_hidden"][args.layers].astype(np.float32))
        full.append(trace["hidden_states"][args.layers, -1].astype(np.float32))
        arrays = {name: trace[name] for name in trace if isinstance(trace[name], np.ndarray)}
        whole = sum(array.nbytes for array in arrays.values())
        everything = arrays["hidden_states"].nbytes + arrays["attentions"].nbytes
        sizes.append(whole - everything)
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


if __name__ == "__main__":
    main()
