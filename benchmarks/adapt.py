"""Adaptation with few labels: detectors trained on all question sets but one, adapted to that one.

    python benchmarks/adapt.py --work DIR --questions NQ-open.dev.jsonl --num-samples 1000
    python benchmarks/adapt.py --work DIR --questions NQ-open.dev.jsonl --only-capture

What benchmarks/sets.py captured in DIR/samples is used, and missing sets are captured (without
drawn answers). Per set and draw, 60% of the answers are at hand, K of them with a label; the others
are tested, and nothing else is done with them. Targets for the mean AUROC over the sets: 0.80 with
100 labels, 0.83 with 200, and 0.845 with 400, on sets with 667 answers or more; no set below its
source; a calibration error within 0.03 of its floor. `next` labels those that `clew label --next`
asks for, 20 at a time, in place of random ones. The same command again resumes.
"""

import argparse
import csv
from pathlib import Path

import numpy as np
from calibration import DRAWS, measure
from detection import write_figures
from sets import BUILT_IN, capture_sets

from clew.hallucination.detectors.adaptation import (
    UNLABELED,
    adapt_vectors,
    build_vectors,
    choose_next,
    start_linear,
)
from clew.hallucination.detectors.probes.registry import PROBES
from clew.hallucination.samples.answers import AnswerFeatures
from clew.hallucination.samples.mixed import MixedAnswers, Portion
from clew.metrics.calibration import PlattScale
from clew.metrics.ranking import auroc

AT_HAND = 0.6
EACH = 20  # labels that are asked for at once
COLUMNS = ("set", "labels", "choice", "draw", "before", "after", "ece", "floor", "kept")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--questions", type=Path, action="append", default=[], help="another set")
    parser.add_argument("--sets", nargs="*", default=BUILT_IN)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--num-samples", type=int, help="of each set [default: all]")
    parser.add_argument("--captures", type=int, default=2, help="sets to capture at once")
    parser.add_argument("--only-capture", action="store_true")
    parser.add_argument("--method", default="robust", help="of the source detectors")
    parser.add_argument("--labels", type=int, nargs="+", default=[50, 100, 200, 400])
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--next", action="store_true", help="also choose what to label")
    parser.add_argument("--figures", type=Path, help="JSON file to write the means to")
    args = parser.parse_args()
    sets = {**{name: name for name in args.sets}, **{one.stem: one for one in args.questions}}
    capture_sets(args, sets)
    if args.only_capture:
        print(f"{len(sets)} sets in {args.work / 'samples'}")
        return
    results = args.work / f"adapt.{args.method}.csv"
    done = {tuple(row[:4]) for row in read_rows(results)}
    for name in sets:
        adapt_to(args, name, list(sets), results, done)
    means = print_table([row for row in read_rows(results) if row[0] in sets], args)
    if args.figures:
        write_figures(args.figures, means)


def read_rows(path):
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))[1:]


def adapt_to(args, name, names, results, done):
    wanted = [
        (name, str(count), choice, str(draw))
        for count in args.labels
        for choice in (("random", "next") if args.next else ("random",))
        for draw in range(args.draws)
    ]
    wanted = [key for key in wanted if key not in done]
    if not wanted:
        return
    vectors, labels, layers, scale = fit_source(args, name, names)
    for key in wanted:
        if int(AT_HAND * len(labels) + 1e-9) >= int(key[1]):
            figures = measure_draw(vectors, labels, layers, scale, *key[1:])
            with results.open("a", encoding="utf-8", newline="") as file:
                rows = [COLUMNS] if not file.tell() else []
                csv.writer(file).writerows([*rows, (*key, *figures)])
    print(f"{name}: {len(labels):,} answers adapted to", flush=True)


def fit_source(args, name, names):
    """The vectors and labels of a set, by a method that was fitted and calibrated on the others."""
    data = {one: AnswerFeatures(args.work / "samples" / one) for one in names}
    others = [data[one] for one in names if one != name]
    splits = ("train", "validation")
    mixed = {split: [Portion.of(one, split) for one in others] for split in splits}
    trained = MixedAnswers("the others", mixed)
    scorer = PROBES[args.method].fit(trained, seed=0).scorer
    valid = scorer.score(trained, "validation")
    scale = PlattScale.fit(trained.labels["validation"], valid)
    tested = MixedAnswers(name, {"test": [Portion.of(data[name])]})
    vectors = build_vectors(np.asarray(scorer.score(tested, "test")), tested, "test")
    return vectors, tested.labels["test"].astype(np.int64), tested.layers, scale


def measure_draw(vectors, labels, layers, scale, count, choice, draw):
    order = np.random.default_rng(int(draw)).permutation(len(labels))
    at_hand, tested = np.split(order, [int(AT_HAND * len(order) + 1e-9)])
    known, before = np.full(len(at_hand), UNLABELED), start_linear(vectors.shape[1])
    first = int(count) if choice == "random" else EACH
    known[:first] = labels[at_hand[:first]]
    while (left := int(count) - int((known != UNLABELED).sum())) > 0:
        rows = choose_next(vectors[at_hand], known, before, min(EACH, left))
        known[rows] = labels[at_hand[rows]]
    found = adapt_vectors(vectors[at_hand], known, before, scale, layers)
    scores, truth = found.adaptation.score(vectors[tested]), labels[tested]
    risks = found.calibration.probabilities(scores)
    drawn = np.random.default_rng(int(draw)).random((DRAWS, len(risks))) < risks
    floor = np.mean([measure(one.astype(np.int8), risks) for one in drawn])
    areas = (auroc(truth, vectors[tested, 0]), auroc(truth, scores))
    figures = (*areas, measure(truth, risks), floor)
    return (*(f"{one:.4f}" for one in figures), int(found.figures["kept_ranking"] is not None))


def print_table(rows, args):
    means = {}
    for count in args.labels:
        for choice in ("random", "next"):
            some = [row for row in rows if row[1] == str(count) and row[2] == choice]
            by_set = {
                name: np.array([r[4:] for r in some if r[0] == name], float)
                for name in {r[0] for r in some}
            }
            if by_set:
                means[f"{count} labels, {choice}"] = print_line(count, choice, by_set)
    return means


def print_line(count, choice, by_set):
    means = np.array([one.mean(axis=0) for one in by_set.values()])
    before, after, ece, floor, kept = map(float, means.mean(axis=0))
    print(
        f"{count} labels, {choice}, {len(by_set)} sets: AUROC {before:.3f} before, {after:.3f} "
        f"after; ECE {ece:.3f}, floor {floor:.3f}; ranking kept in {kept:.0%}"
    )
    for name, one in sorted(by_set.items()):
        gains = one[:, 1] - one[:, 0]
        half = 2.262 * gains.std(ddof=1) / len(gains) ** 0.5 if len(gains) > 1 else np.nan
        print(
            f"  {name:16} {one[:, 0].mean():.3f} -> {one[:, 1].mean():.3f}  "
            f"{gains.mean():+.3f} [{gains.mean() - half:+.3f}, {gains.mean() + half:+.3f}]"
        )
    return {"sets": len(by_set), "before": before, "after": after, "ece": ece, "floor": floor}


if __name__ == "__main__":
    main()
