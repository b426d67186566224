"""Push a detector to the Hugging Face Hub, with a model card made from its results."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clew.base.commands import takes
from clew.base.errors import InputError
from clew.base.progress import Reporter, StepStarted, log_event, report_work
from clew.base.texts import for_terminal
from clew.hallucination.grounded import is_reader
from clew.hallucination.hub import CARD, HubName, parse_name, upload
from clew.hallucination.workflow.calibrating import find_kept

if TYPE_CHECKING:
    from clew.hallucination.detectors import Detector
    from clew.hallucination.grounded.reader import ReaderSettings

_SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"
_MODEL_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*", re.ASCII)
_FIGURES = {
    "test_auroc": "AUROC",
    "test_auprc": "AUPRC",
    "test_f1": "F1",
    "test_accuracy": "accuracy",
    "test_ece": "ECE",
}
# As the Hub names them.
_METRICS = {"test_auroc": "roc_auc", "test_f1": "f1", "test_accuracy": "accuracy"}
_LIMITS = """\
- A risk is a probability, not a proof: answers with a low risk can be wrong.
- It belongs to the model, the precision and the prompt above, and to no other.
- Answers unlike those it was trained on are reported as not familiar, without a verdict.
- Calibrate it on your own labeled answers: models hallucinate more in one use than in another."""
_READER_LIMITS = """\
- A risk is a probability, not a proof: answers with a low risk can be wrong.
- It compares an answer with the sources that it is given, and knows nothing else.
- Sources unlike those it was trained on are reported as not familiar, without a verdict."""


@dataclass(frozen=True, kw_only=True)
class PushResult:
    """What was pushed: `name` is pinned to the new `revision`, and `excluded` are the files of the
    folder that stayed on this machine."""

    name: str
    revision: str
    public: bool
    files: Sequence[str]
    excluded: Sequence[str]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class PushSettings:
    """What `push` takes.

    Args:
        detector: Folder of a detector that "clew compare", "clew train", "clew calibrate" or "clew
            adapt" wrote, or of a reader.
        repository: Where on the Hub: owner/name. It is created if it does not exist.
        public: Let everybody read it; an existing repository is made public.
        known_answers: Also push the detector's known answers: questions and answers of its training
            data, which are shown beside new ones.
        feedback: Also push the labels that people gave to answers of "clew serve".
        license: License of the detector in its card, such as apache-2.0. [default: none is stated]
        reporter: Called with progress events. [default: the log]
    """

    detector: str | Path = field(kw_only=False)
    repository: str = field(kw_only=False)
    public: bool = False
    known_answers: bool = False
    feedback: bool = False
    license: str | None = None
    reporter: Reporter | None = None


@takes(PushSettings)
def push(given: PushSettings) -> PushResult:
    """Push a detector or a reader to the Hugging Face Hub, with a model card made from its results.

    A new repository is private. Log in with "hf auth login", or set HF_TOKEN. Everywhere a detector
    is taken, hf://owner/name then names it, and hf://owner/name@revision a commit, tag or branch.

    Returns:
        The revision, what was pushed, and what was not.

    Raises:
        InputError: The repository or the token cannot be used, or the Hub cannot be reached.
        StoreError: The detector is damaged.

    Examples:
        >>> pushed = clew.push("comparison/detector", "ann/facts-detector")
        >>> clew.load_detector(pushed.name)
    """
    name = parse_name(given.repository)
    with report_work(given.reporter or log_event, StepStarted(name="pushing the detector")):
        folder, names, card = _describe(given, name)
        files = [one for one in names if (folder / one).exists()]
        contents: dict[str, Path | bytes] = {CARD: card.encode()}
        contents |= {one: folder / one for one in files}
        message = f"Push {Path(given.detector).name} with clew"
        revision = upload(given.repository, contents, public=given.public, message=message)
    others = sorted(one.name for one in folder.iterdir() if one.name[0] != ".")
    return PushResult(
        name=str(HubName(name.repository, revision)),
        revision=revision,
        public=given.public,
        files=[CARD, *files],
        excluded=[one for one in others if one not in (CARD, *files)],
    )


def _describe(given: PushSettings, name: HubName) -> tuple[Path, Sequence[str], str]:
    """The folder, the files to push of it, and the card. Raises StoreError for a damaged one."""
    if is_reader(given.detector):
        from clew.engine.model_files import read_model
        from clew.hallucination.grounded.folder import ADAPTER, READER_JSON, reader_folder
        from clew.hallucination.grounded.reader import read_settings

        if given.known_answers or given.feedback:
            raise InputError("a reader has no `known_answers` and no `feedback`: omit them.")
        folder = reader_folder(given.detector)
        settings = read_settings(folder)
        read_model(folder / ADAPTER)
        return folder, (READER_JSON, ADAPTER), _reader_card(settings, name, given.license)
    from clew.hallucination.detectors.detector_folder import read_detector
    from clew.hallucination.detectors.folder import DETECTOR_JSON, WEIGHTS
    from clew.hallucination.detectors.similar_answers import KNOWN_FILE
    from clew.hallucination.live.feedback import FEEDBACK_FILE

    folder = find_kept(given.detector)
    detector = read_detector(folder)
    wanted = {KNOWN_FILE: given.known_answers, FEEDBACK_FILE: given.feedback}
    names = (DETECTOR_JSON, WEIGHTS, *(one for one, is_wanted in wanted.items() if is_wanted))
    return folder, names, _detector_card(detector, folder, name, given.license)


def _detector_card(detector: "Detector", folder: Path, name: HubName, license: str | None) -> str:
    origin, figures = detector.kept, detector.metrics
    questions = str(origin.data.get("questions") or "questions of its own")
    test = sum((origin.data.get("test") or {}).values())
    results = {one: figures[one] for one in _FIGURES if isinstance(figures.get(one), float)}
    sections = {
        "": f"{_plain(detector.title)}: a detector of hallucinated answers of "
        f"{_name(origin.model)}, for clew. It reads the "
        "model's hidden states, attention or token probabilities, and gives each answer the "
        "calibrated probability that it is hallucinated.",
        "Use": _use(
            name,
            f'clew.ask("In which country is Tartu?", detector="{name}")',
            f'clew.score(questions="answers.jsonl", detector="{name}")',
            f'clew.serve("{name}")',
        ),
        "Training data": f"Answers to {_plain(questions)}, with the prompt "
        f"{_code(origin.prompt.template)}.\n\n"
        + _table(
            ("split", "correct", "hallucinated"),
            [
                (split, of.get("correct"), of.get("hallucinated"))
                for split in ("train", "validation", "test")
                if isinstance(of := origin.data.get(split), Mapping)
            ],
        ),
        "Results": "\n\n".join(_tell_results(detector, folder, results, test)),
        "Calibration": "\n".join(_tell_calibration(detector)),
        "Limits": f"- {_plain(detector.warning)}\n{_LIMITS}" if detector.warning else _LIMITS,
    }
    return _make_card(name, license, origin.model, results, questions, sections)


def _tell_results(
    detector: "Detector", folder: Path, results: Mapping[str, float], test: int
) -> Iterator[str]:
    row = {**detector.metrics, "title": f"**{_plain(detector.title)}**"}
    heads = ("method", *(_FIGURES[one] for one in results))
    yield f"On {test:,} test answers, which nothing was fitted on; AUROC with its 95% interval:"
    yield _table(heads, [_figures(row, results)])
    rows, answers = _read_comparison(folder, detector.name)
    if rows:
        yield f"The comparison that kept it, on {answers:,} test answers:"
        shown = [{**one, "title": _plain(one["title"])} for one in rows]
        yield _table(heads, [_figures(one, results) for one in shown])


def _figures(row: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    shown = [row["title"]]
    for one in names:
        value, interval = row.get(one), row.get(f"{one}_ci")
        between = " [{:.3f}, {:.3f}]".format(*interval) if interval else ""
        shown.append("" if value is None else f"{value:.3f}{between}")
    return shown


def _read_comparison(folder: Path, method: str) -> tuple[list[dict[str, Any]], int]:
    """The methods of the comparison that kept this detector, and the number of test answers; none
    if the detector is not in its folder."""
    from clew.storage.reading import read_json

    for parent in (folder.parent, folder.parent.parent):
        try:
            results = read_json(parent / "results.json")
            kept = (parent / results["detectors"][method]).resolve()
            if kept == folder.resolve():
                return results["methods"], sum(results["data"]["test"].values())
        except (OSError, ValueError, LookupError, TypeError):
            continue
    return [], 0


def _tell_calibration(detector: "Detector") -> Iterator[str]:
    kept = detector.kept
    yield f"- threshold: {detector.threshold:.3f}; an answer above it has a high risk"
    done = {"calibrated": kept.calibrated, "adapted": kept.adapted}
    for verb, figures in done.items():
        numbers = {k: v for k, v in figures.items() if isinstance(v, int | float)}
        if numbers:
            shown = (f"{_plain(k.replace('_', ' '))} {v:,.6g}" for k, v in numbers.items())
            yield f"- {verb}: {', '.join(shown)}"
    if detector.promise is not None:
        yield f"- promise: {_plain(detector.promise.text)}"


def _reader_card(settings: "ReaderSettings", name: HubName, license: str | None) -> str:
    about = {**settings.card}
    limits = about.pop("limits", None)
    told = "\n".join(_tell_entries(about)) or "Its card says nothing about its training."
    promise = settings.valid_promise
    sections = {
        "": f"A reader for clew, based on {_name(settings.model)}: it finds what the sources of an "
        "answer do not support, whichever model wrote the answer.",
        "Use": _use(
            name,
            f'clew.check(source="...", answer="...", reader="{name}")',
            f'clew.score(questions="answers.jsonl", detector="{name}")',
        ),
        "Training data and results": told,
        "Calibration": f"- threshold: {settings.threshold:.3f}; an answer above it has a high risk"
        + (f"\n- promise: {_plain(promise.text)}" if promise else ""),
        "Limits": f"- {_plain(limits)}\n{_READER_LIMITS}" if limits else _READER_LIMITS,
    }
    return _make_card(name, license, settings.model, {}, "", sections)


def _tell_entries(about: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    for name, value in about.items():
        title = _plain(str(name).replace("_", " "))
        if isinstance(value, Mapping):
            yield f"{indent}- {title}:"
            yield from _tell_entries(value, f"{indent}  ")
        else:
            yield f"{indent}- {title}: {_plain(value)}"


def _make_card(
    name: HubName,
    license: str | None,
    model: Mapping[str, Any],
    results: Mapping[str, float],
    questions: str,
    sections: Mapping[str, str],
) -> str:
    from huggingface_hub import EvalResult, ModelCardData

    known = [
        EvalResult(
            task_type="text-classification",
            task_name="hallucination detection",
            dataset_type="custom",
            dataset_name=for_terminal(questions),
            metric_type=metric,
            metric_value=round(results[one], 4),
        )
        for one, metric in _METRICS.items()
        if one in results
    ]
    about = ModelCardData(
        library_name="clew",
        license=license,
        base_model=_hub_id(model),
        tags=["hallucination-detection", "clew"],
        metrics=[one.metric_type for one in known] or None,
        model_name=name.repository.rpartition("/")[2],
        eval_results=known or None,
    )
    parts = [f"---\n{about.to_yaml()}\n---", f"# {_plain(name.repository)}", sections[""]]
    parts += [f"## {title}\n\n{text}" for title, text in sections.items() if title]
    return "\n\n".join(parts) + "\n"


def _use(name: HubName, *lines: str) -> str:
    code = "\n".join(("import clew", "", *lines))
    commands = "The commands of the same names take it, too"
    return f"```python\n{code}\n```\n\n{commands}; `{name}@REVISION` pins a commit."


def _hub_id(model: Mapping[str, Any]) -> str | None:
    """The model's name on the Hub; None if it is a path."""
    found = str(model["id"])
    if found == "smollm2":
        return _SMOLLM2
    return found if _MODEL_ID.fullmatch(found) and not Path(found).exists() else None


def _name(model: Mapping[str, Any]) -> str:
    return _code(_hub_id(model) or Path(str(model["id"])).name)


def _table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def _code(text: object) -> str:
    shown = " ".join(for_terminal(text).split()).replace("`", "'")
    return f"`{shown}`"


def _plain(text: object) -> str:
    """A text of somebody else, without what Markdown or HTML would read."""
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", " ".join(for_terminal(text).split()))
