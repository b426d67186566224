"""A promise of an error rate on question sets that its detector was not trained on.

    python benchmarks/promise.py --work DIR
    python benchmarks/promise.py --work DIR --adapted 400
    python benchmarks/promise.py --work DIR --sets facts reading --num-samples 700 --draws 200

All answers of a set are the population; a detector is trained on the other sets, and with --adapted
then adapted to some answers of the set, which leave the population. 500 labels are
drawn with replacement 1,000 times, and at most 10%, 20% and 30% wrong answers are promised. Target:
the answers shown exceed it in at most 6.4% of the draws (5%, and the noise of 1,000). Where the
best threshold shows at least 30% of the answers, a promise is made in at least 80% of the draws,
and shows within 10 points of it on average. DIR/samples holds the sets, as adapt.py and sets.py
capture them. Those that are missing are captured; the same command resumes.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from adapt import fit_source
from sets import BUILT_IN, UNSEEN, capture_sets

from clew.hallucination.comparison import CompareConfig, compare_methods
from clew.hallucination.detectors import load_detector
from clew.hallucination.detectors.adaptation import adapt_vectors, start_linear
from clew.hallucination.detectors.calibration import LabeledRisks
from clew.hallucination.detectors.data import StoredAnswers
from clew.hallucination.samples.answers import AnswerFeatures
from clew.loading.splits import SPLIT_NAMES
from clew.metrics.promise import choose_count, shown_curve, threshold_after

POPULATIONS = ("facts", "elements", "reading", "statements")
OTHERS = [name for name in BUILT_IN if name not in UNSEEN]
TARGETS, CONFIDENCE, LABELS = (0.1, 0.2, 0.3), 0.95, 500
MOST_FAILED, LEAST_SHOWN, LEAST_MADE, NEAR = 0.064, 0.3, 0.8, 0.1


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", default=POPULATIONS, help="the populations")
    parser.add_argument("--train-on", nargs="+", default=OTHERS, help="without the population")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--num-samples", type=int, help="of each set [default: all]")
    parser.add_argument("--captures", type=int, default=2, help="sets to capture at once")
    parser.add_argument("--method", default="robust")
    parser.add_argument("--adapted", type=int, default=0, help="labels to adapt detectors with")
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    args = parser.parse_args()
    capture_sets(args, {Path(name).stem: name for name in (*args.sets, *args.train_on)})
    rows = [row for name in args.sets for row in measure_set(args, name)]
    made = [row for row in rows if row["made"]]
    wide = [row for row in rows if row["best"] >= LEAST_SHOWN]
    met = [row for row in wide if row["made"] >= LEAST_MADE and row["gap"] <= NEAR]
    worst = max((row["failed"] for row in made), default=None)
    told = "not tested: nothing was promised" if worst is None else f"{worst:.1%}"
    print(f"most failures: {told} (target {MOST_FAILED:.1%}; {len(made)} of {len(rows)} promised)")
    told = f"{len(met)} of {len(wide)} as targeted" if wide else "not tested: there is none"
    print(f"where the best threshold shows {LEAST_SHOWN:.0%}: {told}")
    if args.out:
        args.out.write_text(json.dumps(rows, indent=1) + "\n")


def folder_of(args, name):
    return args.work / "samples" / Path(name).stem


def measure_set(args, name):
    """The figures of one population."""
    answers = assess_adapted(args, name) if args.adapted else assess_plain(args, name)
    total = len(answers.labels) + answers.unchecked
    wrong = answers.labels.mean()
    far = answers.is_far.sum() + answers.unchecked
    print(f"{name}: {total:,} answers, {wrong:.0%} wrong, {far / total:.0%} without a verdict")
    for target in TARGETS:
        row = {"set": name, "target": target, **measure(answers, total, target, args.draws)}
        print(
            f"  at most {target:.0%}: best {row['best']:.0%} shown; failed {row['failed']:.1%}, "
            f"made {row['made']:.1%}, shown {row['shown']:.0%} (gap {row['gap']:.0%}), within 10 "
            f"points in {row['near']:.0%} of the draws",
            flush=True,
        )
        yield row


def assess_plain(args, name):
    """By a detector in a folder, as users have them."""
    others = tuple(folder_of(args, one) for one in args.train_on if one != name)
    out = args.work / "promise" / Path(name).stem
    config = CompareConfig(
        train_on=others,
        test_on=(folder_of(args, name),),
        out=out,
        methods=(args.method,),
        seeds=1,
        union=len(others) > 1,
        keep_at_chance=True,
    )
    compare_methods(config)
    return assess(load_detector(out), AnswerFeatures(folder_of(args, name)))


def assess_adapted(args, name):
    names = dict.fromkeys(Path(one).stem for one in (*args.train_on, name))
    vectors, labels, layers, scale = fit_source(args, Path(name).stem, list(names))
    order = np.random.default_rng(0).permutation(len(labels))
    known, rest = order[: args.adapted], order[args.adapted :]
    before = start_linear(vectors.shape[1])
    found = adapt_vectors(vectors[known], labels[known], before, scale, layers)
    return LabeledRisks(
        risks=found.calibration.probabilities(found.adaptation.score(vectors[rest])),
        labels=labels[rest],
        is_far=found.adaptation.region.measure(vectors[rest]) > 1,
    )


def assess(detector, data):
    """All answers of a set, whose prompt may be another than the detector's."""
    splits = [split for split in SPLIT_NAMES if len(data.labels[split])]
    risks = [risk for split in splits for risk in detector.assess(StoredAnswers(data, split))]
    return LabeledRisks.of(risks, np.concatenate([data.labels[split] for split in splits]))


def measure(answers, total, target, draws, seed=0):
    """Draw labels, promise, and compare with the whole population. The answers without a verdict
    come last in it."""
    random, near = np.random.default_rng(seed), answers.part(is_far=False)
    counts, wrong = shown_curve(near.labels, near.risks)
    best = max(counts[wrong <= target], default=0) / total
    shares, failed = [], 0
    for _ in range(draws):
        rows = random.integers(0, total, LABELS)
        rows = rows[rows < len(near.labels)]
        labels, risks = near.labels[rows], near.risks[rows]
        count = choose_count(labels, risks, max_wrong=target, confidence=CONFIDENCE)
        if count:
            shown = near.risks <= threshold_after(risks, count)
            failed += bool(shown.any()) and near.labels[shown].mean() > target
            shares.append(shown.sum() / total)
    made = np.array(shares)
    shown = float(made.mean()) if len(made) else 0.0
    return {
        "best": float(best),
        "failed": failed / draws,
        "made": len(made) / draws,
        "shown": shown,
        "gap": float(best) - shown,
        "near": float((made >= best - NEAR).sum() / draws),
    }


if __name__ == "__main__":
    main()
