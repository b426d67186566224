"""The ready detector, which `clew ask` and `clew serve` use for the built-in model: made from the
open question sets, in one run.

    make ready
    python benchmarks/ready.py --work DIR --captures 4 --fits 5 --sealed

The answers to all open sets are captured, labeled and compared; `gated` is kept, whatever the table
says, since it is nearly the best both on sets like those it was trained on and on others. --out
gets the detector, the table, a card with its figures, and answers whose risks a test computes
again. Half of the questions are asked with the instruction of their set, half as a user would ask.
The first questions of `facts`, which `make demo` asks, are not trained on. With --sealed, the
finished detector is measured on the sealed sets, once; nothing is chosen by that.
"""

import argparse
import csv
import json
import multiprocessing
import os
import shutil
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from datetime import date
from itertools import zip_longest
from pathlib import Path

import numpy as np
from detection import name_machine
from sets import OPEN, UNSEEN

from clew.hallucination.capture import ExtractConfig, extract
from clew.hallucination.comparison import CompareConfig, compare_methods
from clew.hallucination.comparison.stores import open_stores, split_by_set, union, whole
from clew.hallucination.detectors import load_detector
from clew.hallucination.detectors.calibration import (
    LabeledRisks,
    record_calibration,
    refit_scale,
)
from clew.hallucination.detectors.data import StoredAnswers
from clew.hallucination.detectors.detector_folder import FILES, save_detector
from clew.hallucination.detectors.probes.registry import PROBES
from clew.hallucination.detectors.similar_answers import gather_known
from clew.hallucination.labels.label import label_store
from clew.hallucination.questions import built_in_names, load_questions
from clew.hallucination.questions.records import Collector
from clew.hallucination.samples.answers import AnswerFeatures, FieldMemory
from clew.hallucination.samples.preprocess import preprocess_store
from clew.hallucination.samples.source import PreprocessConfig
from clew.loading.splits import SPLIT_NAMES
from clew.metrics.calibration import PlattScale, expected_calibration_error
from clew.metrics.ranking import auroc, bootstrap_auroc
from clew.storage.lock import Part
from clew.storage.ownership import OWN_FILE

READY = Path(__file__).parent.parent / "src/clew/hallucination/detectors/ready"
RECIPE = {
    "sets": [*OPEN, *UNSEEN],
    "questions": None,  # of all sets in turn; None for all
    "asked_by_demo": 400,  # of facts, in its order
    "instructions": "every second question",
    "methods": [
        *("length", "category", "text", "perplexity", "min_probability", "mean_entropy"),
        *("lookback", "linear_probe", "linear_probe_pca", "robust", "fusion", "gated"),
    ],
    "kept": "gated",
    "threshold": 0.5,
    "capture": {"dtype": "float32", "max_new_tokens": 64},
    "unseen_groups": 5,
    "examples": 12,
}
# Probes need neither nodes nor edges.
CAPTURE = {"node_dim": 4, "edges_per_token": 1, "shard_size": 250}
SHARED_GPU = {"generation_batch": 256}  # each of several captures would take what is free
TABLE, CARD, FIGURES, EXAMPLES = "table.csv", "README.md", "made.json", "examples.jsonl"
FEWEST = 5  # correct and hallucinated answers that a set needs for an AUROC


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=READY)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--sets", nargs="+", default=RECIPE["sets"])
    parser.add_argument("--num-samples", type=int, default=RECIPE["questions"], help="of all sets")
    parser.add_argument("--captures", type=int, default=1, help="processes that capture")
    parser.add_argument("--fits", type=int, default=1, help="detectors to fit at once")
    parser.add_argument("--sealed", action="store_true", help="take the last look")
    args = parser.parse_args()
    args.out = args.out.resolve()  # "ready" alone would be the name of the one in the package
    questions = collect(args.sets, args.num_samples)
    print(f"{len(questions.questions):,} questions of {len(args.sets)} sets", flush=True)
    samples = make_samples(args, questions, "open")
    with ProcessPoolExecutor(args.fits, multiprocessing.get_context("spawn")) as pool:
        numbers = range(RECIPE["unseen_groups"])
        unseen = [pool.submit(assess_unseen, samples, number) for number in numbers]
        compared = compare(args, samples)
        found = [one for future in unseen for one in future.result()]
    detector = make_detector(args, samples, compared, found)
    risks = list(assess(detector, AnswerFeatures(samples), ("test",)))
    figures = {
        "familiar": measure(risks),
        "sets": measure_sets(risks),
        # Its familiarity was not looked at, and its calibration is that of folds.
        "unseen": {**measure(found), "not_familiar": None, "ece": cross_error(detector)},
        "unseen_sets": measure_sets(found),
    }
    if args.sealed:
        last = make_samples(args, collect(built_in_names("sealed")), "sealed")
        figures["sealed"] = measure(assess(detector, AnswerFeatures(last), SPLIT_NAMES))
    write_examples(args, samples)
    write_card(args, questions, figures)


def collect(names, most=None):
    """The first questions of all sets in turn, as one set whose prompt is the question alone. More
    of them continue a capture."""
    sets = [ask_both_ways(name) for name in names]
    collector = Collector("ready", most)
    for row in zip_longest(*sets):
        for question in filter(None, row):
            collector.add(question)
    return replace(collector.finish("ready"), instruction="")


def ask_both_ways(name):
    found = load_questions(name)
    first = RECIPE["asked_by_demo"] if name == "facts" else 0
    stem = Path(name).stem
    return [
        replace(
            one,
            id=f"{stem}/{one.id}",
            category=f"{stem}/{one.category}",
            question=f"{one.question} {(found.instruction or '') if place % 2 else ''}".strip(),
        )
        for place, one in enumerate(found.questions[first:])
    ]


def make_samples(args, questions, name):
    """Capture, label and preprocess; what is there is used."""
    traces, samples = args.work / "traces" / name, args.work / "samples" / name
    if not (samples / "answers" / "manifest.json").exists():
        context = multiprocessing.get_context("spawn")  # CUDA cannot be used after a fork
        parts = [Part(index=number + 1, count=args.captures) for number in range(args.captures)]
        captures = [
            context.Process(target=capture, args=(args, questions, traces, part)) for part in parts
        ]
        for one in captures:
            one.start()
        for one in captures:
            one.join()
        if any(one.exitcode for one in captures):
            raise SystemExit("a capture failed")
        scores = traces.with_name(f"{name}.scores.csv")
        label_store(traces, scores, overwrite=True)
        kinds = ("sequences", "answers")
        preprocess_store(
            PreprocessConfig(store=traces, scores_file=scores, out=samples, kinds=kinds)
        )
    return samples


def capture(args, questions, traces, part):
    threads = max(1, (os.cpu_count() or 1) // args.captures)
    config = ExtractConfig(
        model=args.model,
        out=traces,
        part=part,
        device=args.device,
        threads=threads,
        **CAPTURE,
        **(SHARED_GPU if args.captures > 1 else {}),
        **RECIPE["capture"],
    )
    extract(config, questions=questions)


def compare(args, samples):
    config = CompareConfig(
        train_on=(samples,),
        test_on=(samples,),
        out=args.work / "comparison",
        methods=tuple(RECIPE["methods"]),
        keep_detectors="all",
        keep_at_chance=True,
    )
    return compare_methods(config).folder


def make_detector(args, samples, compared, unseen):
    """In `out`. What users ask is like no set, so it is calibrated on sets that were not trained
    on. The threshold with the highest F1 would give nearly every answer a high risk, since most are
    hallucinated: a high risk is one of more than a half."""
    kept = load_detector(compared / "detectors" / RECIPE["kept"])
    risks, labels, is_far, _ = split_rows(unseen)
    answers = LabeledRisks(risks=risks, labels=labels.astype(np.int8), is_far=is_far)
    found = refit_scale(kept.calibration, kept.threshold, answers, None)
    kept = replace(kept, calibration=found.calibration, threshold=RECIPE["threshold"])
    told = ("answers", "ece_before", "ece_after")
    kept = record_calibration(kept, {name: found.figures[name] for name in told})
    args.out.mkdir(parents=True, exist_ok=True)
    save_detector(kept, args.out, gather_known(AnswerFeatures(samples)))
    (args.out / OWN_FILE).unlink()
    shutil.copy(compared / TABLE, args.out / TABLE)
    return load_detector(args.out)


def cross_error(detector):
    return detector.kept.calibrated["ece_after"]


def assess(detector, data, splits):
    """(set, label, risk) of every answer, as the detector gives it live."""
    for split in splits:
        if len(data.labels[split]):
            risks = detector.assess(StoredAnswers(data, split))
            yield from zip(
                (str(one).partition("/")[0] for one in data.question_ids[split]),
                data.labels[split].astype(int).tolist(),
                risks,
                strict=True,
            )


def assess_unseen(samples, number):
    """(set, label, risk) of all answers of every fifth set, by a detector that is trained on the
    others: without the check of what is familiar."""
    [store] = open_stores([samples], memory=FieldMemory()).values()
    stores = split_by_set(store)
    tested = stores[number :: RECIPE["unseen_groups"]]
    rest = union("the others", [one for one in stores if one not in tested]).data
    tests = {one.name: whole(one).data for one in tested}
    if not tests or not rest.labels["train"].any():
        return []
    outcome = PROBES[RECIPE["kept"]].run(rest, tests, seed=0)
    scale = PlattScale.fit(rest.labels["validation"], outcome.validation)
    return [
        (name, int(label), float(risk))
        for name, scores in outcome.tests.items()
        for label, risk in zip(tests[name].labels["test"], scale.probabilities(scores), strict=True)
    ]


def measure(rows):
    """Over all answers: one that is not familiar counts with the risk of its token probabilities
    in the AUROC, and not in the calibration error."""
    rows = list(rows)
    by_set = measure_sets(rows)
    areas = [one["auroc"] for one in by_set.values() if one["auroc"] is not None]
    risks, labels, far, checked = split_rows(rows)
    return {
        "answers": len(rows),
        "hallucinated": float(np.mean([label for _, label, _ in rows])),
        "not_checked": len(rows) - len(risks),
        "not_familiar": float(far.mean()),
        "auroc": rank(labels, risks),
        "auroc_ci": rank(labels, risks, bootstrap_auroc),
        "mean_auroc_of_sets": float(np.mean(areas)) if areas else None,
        "sets_with_auroc": len(areas),
        "ece": rank(labels[checked], risks[checked], expected_calibration_error),
    }


def measure_sets(rows):
    found = {}
    for name, *row in rows:
        found.setdefault(name, []).append((name, *row))
    return {name: measure_set(some) for name, some in sorted(found.items())}


def measure_set(rows):
    risks, labels, far, _ = split_rows(rows)
    return {
        "answers": len(rows),
        "hallucinated": float(np.mean([label for _, label, _ in rows])),
        "not_familiar": float(far.mean()),
        "auroc": rank(labels, risks),
    }


def rank(labels, risks, measured=auroc):
    """None with too few answers of a class."""
    is_enough = min(labels.sum(), (1 - labels).sum()) >= FEWEST
    return measured(labels, risks) if is_enough else None


def split_rows(rows):
    """Risks, labels, which are not familiar, and which have a verdict."""
    _, labels, risks = zip(*rows, strict=True)
    if isinstance(risks[0], float):
        far = np.zeros(len(risks), bool)
        return np.array(risks), np.array(labels), far, ~far
    found = LabeledRisks.of(risks, np.array(labels))
    return found.risks, found.labels.astype(int), found.is_far, ~found.is_far


def write_examples(args, samples):
    """Answers of the test split with their risks by `clew score` on this machine's CPU."""
    import clew

    data = AnswerFeatures(samples)
    fields = {
        name: data.read(name, "test")
        for name in ("question", "answer", "context")
        if name in data.fields
    }
    count = len(fields["question"])
    places = np.linspace(0, count - 1, min(count, RECIPE["examples"])).round().astype(int)
    rows = [
        {name: values[place] for name, values in fields.items() if values[place]}
        for place in dict.fromkeys(places.tolist())
    ]
    rows = [row for row in rows if row.get("answer")]
    model = None if args.model == "smollm2" else args.model
    scored = clew.score(questions=rows, detector=args.out, model=model, device="cpu")
    with (args.out / EXAMPLES).open("w", encoding="utf-8") as file:
        for row, one in zip(rows, scored.table.to_pylist(), strict=True):
            about = {name: one[name] for name in ("risk", "state", "distance")}
            file.write(json.dumps({**row, **about}, ensure_ascii=False) + "\n")


def write_card(args, questions, figures):
    sizes = {name: (args.out / name).stat().st_size for name in FILES if (args.out / name).exists()}
    about = {
        "command": "python benchmarks/ready.py --work DIR --sealed",
        "machine": name_machine(),
        "date": date.today().isoformat(),
        "recipe": RECIPE,
        "questions_sha256": questions.sha256,
        "questions": len(questions.questions),
        "asked": Counter(one.id.partition("/")[0] for one in questions.questions),
        "bytes": sizes,
        "figures": figures,
    }
    (args.out / FIGURES).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    (args.out / CARD).write_text(describe(about, args.out), encoding="utf-8")
    print((args.out / CARD).read_text(encoding="utf-8"), flush=True)


HEADER = """# The ready detector

`gated` for the built-in model, made by `python benchmarks/ready.py`. Do not change these files by
hand: a test compares them with the script. It was trained on answers to {questions:,} questions of
{sets} open built-in sets, each second question with the instruction of its set. The first {demo}
questions of `facts`, which `make demo` asks, are not among them. It is calibrated on the answers of
the second row; a high risk is one above {threshold}.

| test answers | answers | hallucinated | not familiar | AUROC [95%] | mean of the sets | ECE |
|---|---|---|---|---|---|---|
"""
KINDS = {
    "familiar": "other questions of these sets (the test split)",
    "unseen": "sets that were not trained on (each by a detector without it)",
    "sealed": "the sealed sets, looked at once",
}


def describe(about, out):
    recipe, figures = about["recipe"], about["figures"]
    text = HEADER.format(
        questions=about["questions"],
        sets=len(recipe["sets"]),
        demo=recipe["asked_by_demo"],
        threshold=recipe["threshold"],
    )
    for name, title in KINDS.items():
        if one := figures.get(name):
            low, high = one["auroc_ci"] or (None, None)
            text += (
                f"| {title} | {one['answers']:,} | {one['hallucinated']:.1%} | "
                f"{share(one['not_familiar'])} | {three(one['auroc'])} "
                f"[{three(low)}, {three(high)}] | {three(one['mean_auroc_of_sets'])} | "
                f"{three(one['ece'])} |\n"
            )
    text += "\nBy set, on the test split (no AUROC with fewer than five answers of a class):\n\n"
    text += "| set | answers | hallucinated | AUROC |\n|---|---|---|---|\n"
    for name, one in figures["sets"].items():
        text += (
            f"| {name} | {one['answers']} | {one['hallucinated']:.0%} | {three(one['auroc'])} |\n"
        )
    text += "\nThe comparison that it is from, on the same test split:\n\n"
    text += "| method | validation AUROC | test AUROC [95%] | ECE |\n|---|---|---|---|\n"
    with (out / TABLE).open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            text += describe_row(row)
    return text


def describe_row(row):
    names = ("val_auroc", "test_auroc", "test_auroc_low", "test_auroc_high", "test_ece")
    val, test, low, high, ece = (three(float(row[name])) for name in names)
    return f"| {row['title']} | {val} | {test} [{low}, {high}] | {ece} |\n"


def share(value):
    return "-" if value is None else f"{value:.1%}"


def three(value):
    return "-" if value is None else f"{value:.3f}"


if __name__ == "__main__":
    main()
