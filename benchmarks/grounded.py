"""Readers of grounded answers: RAGTruth QA, sets that they were not trained on, and speed.

    python benchmarks/grounded.py --data DIR                   # the built-in reader on the test
    python benchmarks/grounded.py --data DIR --part train --out my-reader
    python benchmarks/grounded.py --data DIR --part leave-one-out
    python benchmarks/grounded.py --part speed

DIR has the sets, as .jsonl.gz files with source, question, answer, hallucinated, spans and group.
Targets on the test of RAGTruth QA: answer F1 0.62, span F1 0.56, AUROC 0.87, ECE at most 0.08. On
sets that were left out of the training, a mean AUROC of 0.70. With sources of 350 tokens and
answers of 150: 1,000 answers per second on an H200, 0.7 on two cores with AVX-512. No answer of
the test is trained on. `train` trains three times, and measures each as well as their average.
"""

import argparse
import json
import tempfile
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from detection import write_figures
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from clew.hallucination.grounded import GroundedAnswer, load_reader
from clew.hallucination.grounded.passages import content_words
from clew.hallucination.grounded.reader import make_network
from clew.hallucination.grounded.training import (
    ReaderTraining,
    average_adapters,
    build_reader,
    hold_out,
    label_answers,
    train_adapter,
    train_reader,
)
from clew.hallucination.llm.models import load_model
from clew.hallucination.questions import open_records, read_answers
from clew.metrics.calibration import expected_calibration_error
from clew.metrics.ranking import auroc, bootstrap_auroc
from clew.metrics.spans import bootstrap_span_f1, count_overlap, span_f1

QA, TEST = "ragtruth_qa.train", "ragtruth_qa.test"
LEFT_OUT = (
    *(QA, "summedits", "bump.train", "cg2c_doc.train", "attributionbench.dev", "factcheckbench"),
)
TRAIN = (*LEFT_OUT, "ragtruth_summary.train", "wice_tokens.train")
# Claims and edits are hallucinated in other ways than answers, and scored otherwise.
CONFIG = ReaderTraining(
    most_per_set=1200,
    synthetic=0.22,
    trainings=3,
    base_rate=0.2,
    calibrate_on=(QA, "ragtruth_summary.train"),
)
CARD = {
    "limits": "English only. Trained on claims, edits of summaries, and answers from retrieved "
    "passages; long summaries and texts from records were hardly among them. It compares with the "
    "source and nothing else.",
    "licenses": "labels: RAGTruth, FactCG and BUMP MIT, SummEdits, Factcheck-GPT and "
    "AttributionBench Apache-2.0, WiCE ODC-BY. The source texts are not part of clew.",
}
MEASURED = ("f1", "span_f1", "auroc", "ece", "answers")
SOURCE_TOKENS, ANSWER_TOKENS = 350, 150


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, help="folder of the sets")
    parser.add_argument("--part", action="append", help="test, train, leave-one-out, speed")
    parser.add_argument("--sets", nargs="+", default=TRAIN, help="to train on")
    parser.add_argument("--left-out", nargs="+", default=LEFT_OUT, help="one at a time")
    parser.add_argument("--test", default=TEST)
    parser.add_argument("--reader", default="grounded", help="for test and speed")
    parser.add_argument("--model", default="smollm2", help="for train and leave-one-out")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--epochs", type=int, default=CONFIG.epochs)
    parser.add_argument("--answers", type=int, help="for speed")
    parser.add_argument("--out", type=Path, help="folder for what `train` trains")
    parser.add_argument("--figures", type=Path, help="JSON file to write the figures to")
    args = parser.parse_args()
    parts = {"test": test, "train": train, "leave-one-out": leave_one_out, "speed": speed}
    rows = []
    for name in args.part or ["test"]:
        for row in parts[name](args):
            print(json.dumps(row), flush=True)
            rows.append(row)
            if args.figures:
                write_figures(args.figures, {"rows": rows})


def load_set(args, name):
    path = next(args.data.glob(f"{name}.jsonl*"))
    return label_answers(read_answers(open_records(str(path))), name)[0]


def test(args):
    """The reader, and what needs no reader: such baselines show what the labels leak."""
    answers = load_set(args, args.test)
    yield {"test": args.reader, **measure(load_reader(args.reader, device=args.device), answers)}
    labels = np.array([one.hallucinated for one in answers])
    groups = np.array([one.group for one in answers])
    seen = load_set(args, args.sets[0])
    for name, scores in score_baselines(seen, answers):
        interval = bootstrap_auroc(labels, scores, clusters=groups)
        yield {"test": name, "auroc": auroc(labels, scores), "auroc_ci": interval}


def score_baselines(seen, answers):
    yield "answer length", np.array([float(len(one.answer)) for one in answers])
    words = [(content_words(one.answer), content_words(" ".join(one.sources))) for one in answers]
    yield "words not in the source", np.array([len(a - b) / max(1, len(a)) for a, b in words])
    text = make_pipeline(
        TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), sublinear_tf=True, min_df=2),
        LogisticRegression(C=1.0, max_iter=1000),
    )
    text.fit([one.answer for one in seen], [one.hallucinated for one in seen])
    yield "text without the source", text.decision_function([one.answer for one in answers])


def measure(reader, answers):
    """The figures of answers with spans, with intervals over documents."""
    readings = reader.read(answers)
    kept = [
        (one, read) for one, read in zip(answers, readings, strict=True) if read.risk is not None
    ]
    labels = np.array([one.hallucinated for one, _ in kept])
    risks = np.array([read.risk for _, read in kept])
    called = risks > reader.settings.threshold
    groups = np.array([one.group for one, _ in kept])
    found = {
        "answers": len(answers),
        "without_risk": len(answers) - len(kept),
        "auroc": auroc(labels, risks),
        "auroc_ci": bootstrap_auroc(labels, risks, clusters=groups),
        "ece": expected_calibration_error(labels, risks),
        "f1": f1(labels, called),
        "f1_ci": bootstrap_f1(labels, called, groups),
        "precision": float(labels[called].mean()) if called.any() else None,
        "recall": float(called[labels].mean()),
        "threshold": reader.settings.threshold,
    }
    if all(one.spans is not None for one, _ in kept):
        counts = [count_overlap([(s.start, s.end) for s in r.spans], a.spans) for a, r in kept]
        found |= {"span_f1": span_f1(counts), "span_f1_ci": bootstrap_span_f1(counts, groups)}
    return found


def f1(labels, called):
    return 2 * float((labels & called).sum()) / max(1, int(labels.sum() + called.sum()))


def bootstrap_f1(labels, called, groups):
    counts = [
        (int(found), int(label), int(found and label))
        for found, label in zip(called, labels, strict=True)
    ]
    return bootstrap_span_f1(counts, groups)


def train(args):
    """The reader that `out` gets, and each of its trainings alone."""
    answers = [one for name in args.sets for one in load_set(args, name)]
    tests = load_set(args, args.test)
    config = replace(CONFIG, epochs=args.epochs)
    seen, unseen = hold_out(answers, config.held_out)
    loaded = load_model(args.model, dtype="float32", device=args.device)
    network, adapters = make_network(loaded, config.attention), []
    for seed in range(config.trainings):
        started = time.perf_counter()
        adapters.append(train_adapter(network, loaded.tokenizer, seen, replace(config, seed=seed)))
        yield {"train": f"seed {seed}", "seconds": time.perf_counter() - started}
    averaged = average_adapters(adapters, config.rank)
    for name, adapter in (*enumerate(adapters), ("average", averaged)):
        loaded = load_model(args.model, dtype="float32", device=args.device)
        reader = build_reader(loaded, adapter, seen, unseen, config, CARD)
        found = measure(reader, tests)
        yield {"reader": f"seed {name}", **found}
    if args.out:
        tested = {one: round(found[one], 3) for one in MEASURED if one in found}
        card = {**reader.settings.card, args.test: tested}
        reader.settings = replace(reader.settings, card=card)
        reader.save(args.out)
    for name in args.sets:
        rows = [one for one in unseen if one.set == name]
        if len({one.hallucinated for one in rows}) == 2:
            yield {"reader": "average", "held-out documents of": name, **measure(reader, rows)}


def leave_one_out(args):
    """Trained without a set, tested on all of it."""
    sets = {name: load_set(args, name) for name in args.sets}
    config = replace(CONFIG, epochs=args.epochs, trainings=1)
    aurocs = []
    for name in args.left_out:
        others = [one for other in sets if other != name for one in sets[other]]
        loaded = load_model(args.model, dtype="float32", device=args.device)
        found = measure(train_reader(loaded, others, config), sets[name])
        aurocs.append(found["auroc"])
        yield {"left out": name, **found}
    yield {"left out": "mean", "auroc": float(np.mean(aurocs))}


def speed(args):
    """From a file to spans, after a short warm-up."""
    reader = load_reader(args.reader, device=args.device)
    is_gpu = reader.device.type == "cuda"
    count = args.answers or (8192 if is_gpu else 8)
    words = "the source says that items were returned within thirty days of their delivery to us."
    tokens = words.split() * 40
    rows = [
        {
            "answer": " ".join(tokens[number % 7 :][:ANSWER_TOKENS]),
            "source": " ".join([str(number), *tokens[number % 5 :][:SOURCE_TOKENS]]),
        }
        for number in range(count)
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "answers.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        read_file(reader, path, max(1, count // 8))
        started, used = time.perf_counter(), time.process_time()
        read_file(reader, path, count)
        seconds, used = time.perf_counter() - started, time.process_time() - used
    yield {
        "speed": torch.cuda.get_device_name()
        if is_gpu
        else torch.backends.cpu.get_cpu_capability(),
        "precision": str(reader.network.model.dtype),
        "packed": reader.network.is_packed,
        "threads": torch.get_num_threads(),
        "answers": count,
        "answers_per_second": count / seconds,
        "cpu_seconds_per_answer": used / count,
    }


def read_file(reader, path, count):
    answers = read_answers(open_records(str(path)))
    rows = (
        GroundedAnswer(answer=one.answer, sources=(one.context,), question=one.question or None)
        for one in islice(answers, count)
    )
    return reader.read(rows)


if __name__ == "__main__":
    main()
