"""The ready detector as a method of comparisons, beside those that are fitted there: on answers of
its model, to questions that it was not trained on."""

import json
from functools import cache
from pathlib import Path

from clew.hallucination.detectors.detector import Detector, on_host
from clew.hallucination.detectors.detector_folder import load_detector
from clew.hallucination.detectors.probes.fusion import CONFIDENCE, SIGNALS
from clew.hallucination.detectors.probes.method import Features, Fitted, Method
from clew.hallucination.hub import READY
from clew.hallucination.questions import load_questions
from clew.hallucination.samples.mixed import AnswerData
from clew.loading.splits import SPLIT_NAMES


def learn_ready(_: Features) -> Fitted:
    """Nothing is fitted but, as for every method, the calibration."""
    scorer = on_host(_load().scorer)
    assert scorer is not None
    return Fitted(scorer=scorer)


def explain_known(data: AnswerData) -> str | None:
    """Why it cannot be compared on these answers."""
    model = data.settings["capture"].get("model") or {}
    if model.get("fingerprint") != _load().model["fingerprint"]:
        return f"the ready detector is for {_load().model['id']}, not {model.get('id')}"
    asked = [str(text) for split in SPLIT_NAMES for text in data.read("question", split)]
    known = sum(text in _trained_on() for text in asked)
    if known:
        return (
            f"the ready detector was trained on {known:,} of these {len(asked):,} questions: "
            "compare it on others"
        )
    return None


@cache
def _load() -> Detector:
    return load_detector(READY)


@cache
def _trained_on() -> frozenset[str]:
    """The questions, with and without the instruction of their set."""
    made = json.loads(((_load().folder or Path()) / "made.json").read_text(encoding="utf-8"))
    known: set[str] = set()
    for name, count in made["asked"].items():
        found = load_questions(name)
        first = made["recipe"]["asked_by_demo"] if name == "facts" else 0
        texts = [one.question for one in found.questions[first:][:count]]
        known.update(texts, (f"{text} {found.instruction}" for text in texts))
    return frozenset(known)


READY_METHOD = Method(
    *(READY, "Ready detector (clew)", "no training"),
    ("sequence", "question", *CONFIDENCE),
    learn_ready,
    also_reads=SIGNALS,
    refuses=explain_known,
)
