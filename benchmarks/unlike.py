"""Input unlike the training data: how much of it a detector flags, and what falling back to token
probabilities costs or gains on another question set.

    python benchmarks/unlike.py --detector comparison/detector --samples preprocessed_data
    python benchmarks/unlike.py ... --questions NQ-open.dev.jsonl   300 questions of another set
    python benchmarks/unlike.py --samples samples --folds 5         of held-out answers alone

The answers are captured with the detector's own model and prompt. Target: at most 5% of the test
answers flagged, at least 60% of other languages, code, poems and random tokens.
"""

import argparse
import json
import random
from pathlib import Path

import numpy as np

import clew
from clew.hallucination.comparison.plan import make_plan
from clew.hallucination.comparison.settings import CompareConfig
from clew.hallucination.comparison.stores import open_stores
from clew.hallucination.detectors.data import StoredAnswers
from clew.hallucination.detectors.probes.gated import Distance
from clew.hallucination.samples.answers import AnswerFeatures
from clew.loading.splits import SPLIT_NAMES
from clew.metrics.calibration import expected_calibration_error
from clew.metrics.ranking import auroc

SENTENCES = {
    "another language": [
        "¿Qué ingredientes lleva una tortilla de patatas?",
        "Warum ist der Himmel am Abend oft rot?",
        "Comment fait-on pousser des tomates sur un balcon ?",
        "Qual é a diferença entre um crocodilo e um jacaré?",
        "Perché le foglie cambiano colore in autunno?",
        "为什么猫喜欢睡在纸箱里？",
        "Как научиться играть на гитаре?",
        "Hur lagar man en punktering på en cykel?",
        "なぜ海の水は塩辛いのですか。",
        "Jak upiec chleb bez drożdży?",
    ],
    "code": [
        "def add(a, b):\n    return a +",
        "for (int i = 0; i < n; i++) {",
        "SELECT name, COUNT(*) FROM users GROUP BY",
        "import numpy as np\nx = np.zeros((3, 4))\nprint(x.",
        "<div class='row'><span>",
        "git commit -m 'fix' && git",
        "class Node { constructor(value) { this.value = value;",
        "fn main() { let mut v = Vec::new();",
        "try:\n    open('a.txt')\nexcept",
        "#include <stdio.h>\nint main(void) {",
    ],
    "poem": [
        "Write a poem about the sea at night.",
        "Continue: The moon was pale, the river slow,",
        "Write a haiku about an old bicycle.",
        "O wind, that wanders over hills of snow,",
        "Write four rhyming lines about a lost glove.",
        "The cat sat by the window, gray and still,",
        "Write a lullaby for a small robot.",
        "Continue the verse: We walked at dusk along the broken shore,",
        "Write a limerick about a baker.",
        "Compose a sonnet about rain on a tin roof.",
    ],
}
_SEED, _ROUNDS = 7, 4


def make_unlike(tokenizer, rounds):
    """Every kind of input: the texts, and pairs of them."""
    generator = random.Random(_SEED)
    kinds = {}
    for kind, texts in SENTENCES.items():
        pairs = _pairs(texts, generator, len(texts) * (rounds - 1))
        kinds[kind] = [*texts, *(f"{a} {b}" for a, b in pairs)]
    first = min(1000, len(tokenizer) // 2)  # the first ones are characters and marks
    kinds["random tokens"] = [
        tokenizer.decode([generator.randrange(first, len(tokenizer)) for _ in range(12)])
        for _ in range(len(texts) * rounds)
    ]
    return kinds


def _pairs(texts, generator, count):
    pairs = [(a, b) for a in texts for b in texts if a != b]
    return generator.sample(pairs, count)


def capture(detector, rows, folder, *, device):
    """Capture answers with the detector's model and prompt; returns their features."""
    folder.mkdir(parents=True, exist_ok=True)
    questions = folder / "questions.jsonl"
    lines = (json.dumps(row, ensure_ascii=False) for row in rows)
    questions.write_text("\n".join(lines) + "\n", encoding="utf-8")
    prompt, made = detector.prompt, detector.generation
    clew.extract(
        model=detector.model["id"],
        questions=str(questions),
        out=folder / "traces",
        prompt=prompt.template,
        chat=prompt.chat,
        max_new_tokens=made["max_new_tokens"],
        cut=made["cut"],
        device=device,
    )
    clew.label(folder / "traces", out=folder / "scores.csv")
    clew.preprocess(
        folder / "traces", scores_file=folder / "scores.csv", out=folder / "samples", graphs=False
    )
    return AnswerFeatures(folder / "samples")


def measure(detector, data, splits):
    """(distances, risks of the method, risks of the fallback, labels) over some splits."""
    parts = []
    for split in splits:
        if len(data.labels[split]):
            answers = StoredAnswers(data, split)
            told = (detector._distances, detector._risks, detector._fall_back)
            parts.append([*(tell(answers) for tell in told), data.labels[split]])
    return [np.concatenate(column) for column in zip(*parts, strict=True)]


def describe_fallback(detector, data):
    """The share flagged, and AUROC and calibration with and without falling back."""
    distances, own, other, labels = measure(detector, data, SPLIT_NAMES)
    far = distances > 1
    mixed = np.where(far, other, own)
    print(f"  flagged {far.mean():.1%} of {len(far)}; hallucinated {labels.mean():.1%}")
    for name, risks in (("method", own), ("token probabilities", other), ("with fallback", mixed)):
        ece = expected_calibration_error(labels, risks)
        print(f"  {name:20} AUROC {auroc(labels, risks):.3f}, ECE {ece:.3f}")


def measure_held_out(samples, folds):
    """The share of answers that are unlike those of the other folds, by group where they have
    one."""
    config = CompareConfig(train_on=(samples,), test_on=(samples,), out=samples, folds=folds)
    far = [
        Distance.fit(one.train.data).measure(one.train.data, "test") > 1
        for one in make_plan(config, open_stores([samples])).parts
        if len(one.train.data.labels["test"])
    ]
    every = np.concatenate(far)
    print(f"held-out answers of {folds} folds: not familiar {every.mean():.1%} of {len(every):,}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--detector", type=Path)
    parser.add_argument("--samples", type=Path, required=True, help="what it was fitted on")
    parser.add_argument("--folds", type=int, help="fit and measure only the distance, in folds")
    parser.add_argument("--questions", type=Path, help="another question set, JSONL")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--data", type=Path, default=Path("unlike"))
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    if options.folds:
        measure_held_out(options.samples, options.folds)
        return
    if options.detector is None:
        parser.error("--detector or --folds is required")
    detector = clew.load_detector(options.detector)
    distances, *_ = measure(detector, AnswerFeatures(options.samples), ("test",))
    print(f"test answers: flagged {(distances > 1).mean():.1%} of {len(distances)} (at most 5%)")
    tokenizer = clew.load_model(detector.model["id"], device=options.device).tokenizer
    kinds = make_unlike(tokenizer, _ROUNDS)
    rows = [
        {"question": text, "answer": ["?"], "category": kind}
        for kind, texts in kinds.items()
        for text in texts
    ]
    data = capture(detector, rows, options.data / "unlike", device=options.device)
    distances, *_ = measure(detector, data, SPLIT_NAMES)
    names = np.array([name for split in SPLIT_NAMES for name in data.read("category", split)])
    for kind in kinds:
        found = distances[names == kind]
        print(f"{kind}: flagged {(found > 1).mean():.1%} of {len(found)}")
    print(f"unlike input: flagged {(distances > 1).mean():.1%} (at least 60%)")
    if options.questions:
        lines = options.questions.read_text(encoding="utf-8").splitlines()[: options.count]
        rows = [json.loads(line) for line in lines]
        print(options.questions.name)
        other = capture(detector, rows, options.data / "other", device=options.device)
        describe_fallback(detector, other)


if __name__ == "__main__":
    main()
