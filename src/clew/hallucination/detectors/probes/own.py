"""A method from outside clew, run as those of clew are: it sees no test answers while it learns
and no labels while it scores, and whatever goes wrong in it is reported with its name and
package."""

import inspect
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, is_dataclass
from tokenize import TokenError
from types import SimpleNamespace
from typing import Any, Literal, Self, get_args

import numpy as np

from clew.base.errors import InputError, MethodError
from clew.hallucination.detectors.probes.method import Features, Fitted, Method, Scores, Wrapped
from clew.storage.reading import hash_text

OwnFamily = Literal["baseline", "no training", "probe"]
# Method names are also names of files and columns.
_NAME = re.compile(r"[a-z][a-z0-9_]{0,59}")
_MOST_TITLE = 100


@dataclass(frozen=True, kw_only=True)
class DetectionMethod:
    """A detection method of your own, for `clew.register_method` or as an entry point of the group
    "clew.methods".

    Args:
        name: Its name in `methods`, tables and files: lowercase letters, digits and underscores.
        fit: `fit(features)` learns from `features.read(field, split, layer=...)` and
            `features.labels[split]` (1 is hallucinated): from the split "train", with all choices
            on "validation". It returns a function `(features, split) -> scores`, or an object with
            such a method `score`. Scores are one number per answer; higher means more likely
            hallucinated. `parameters` (a number) and `chosen` (a dict) of that object are shown in
            the table, if it has them.
        needs: The fields that it reads, such as "sequence", "state_mean" or "token_logprobs".
        title: Its name in the report. [default: from `name`]
        family: "probe" if it learns from labels, "no training" if it does not, "baseline" if it
            does not look at the model; a baseline is not kept as a detector.
        is_seeded: It depends on chance: call `fit(features, seed=...)` for every seed.
        scorer: The class of what `fit` returns, if the fitted method can be kept as a detector: a
            dataclass of numbers, texts, lists of these, NumPy arrays and further such dataclasses,
            with `fields`, the names that `score` reads.

    Raises:
        InputError: An argument cannot be used.

    Examples:
        >>> def fit(features):
        ...     def score(features, split):
        ...         return [answer.max() for answer in features.read("token_entropies", split)]
        ...     return score
        >>> clew.DetectionMethod(name="max_entropy", fit=fit, needs=["token_entropies"])
    """

    name: str
    fit: Callable[..., Any] = field(repr=False)
    needs: Sequence[str]
    title: str = ""
    family: OwnFamily = "probe"
    is_seeded: bool = False
    scorer: type[Any] | None = None

    def __post_init__(self) -> None:
        needs = () if isinstance(self.needs, str) else tuple(self.needs)
        scorer, families = self.scorer, get_args(OwnFamily)
        checks = {
            "name": (
                isinstance(self.name, str) and _NAME.fullmatch(self.name),
                "use up to 60 lowercase letters, digits and underscores; start with a letter.",
            ),
            "fit": (callable(self.fit), "give a function."),
            "needs": (
                needs and all(isinstance(one, str) and one for one in needs),
                'give a list of one or more fields, such as ["sequence"].',
            ),
            "family": (self.family in families, f"choose from: {', '.join(families)}."),
            "scorer": (
                scorer is None
                or (isinstance(scorer, type) and is_dataclass(scorer))
                and all(hasattr(scorer, name) for name in ("score", "fields")),
                "give a dataclass with a method score, and with fields, the names that it reads.",
            ),
        }
        for name, (is_right, advice) in checks.items():
            if not is_right:
                raise InputError(advice, setting=name, value=getattr(self, name))
        object.__setattr__(self, "needs", needs)
        title = self.title or self.name.replace("_", " ").capitalize()
        object.__setattr__(self, "title", " ".join(title.split())[:_MOST_TITLE])


@dataclass(frozen=True, kw_only=True)
class OwnMethod(Method):
    """A method from outside clew as those of clew are. `package` is its name and version; "" for
    one that was registered."""

    given: DetectionMethod
    package: str = ""

    @classmethod
    def of(cls, given: DetectionMethod, package: str = "") -> Self:
        about = (given.name, given.title, given.family, tuple(given.needs), given.fit)
        return cls(*about, is_seeded=given.is_seeded, given=given, package=package)

    def identify(self) -> dict[str, Any]:
        """What changes when the method does, so that scores of another one are not reused."""
        return {"package": self.package, "source": hash_text(_find_source(self.given))[:16]}

    def fit(self, data: Features, *, seed: int) -> Fitted:
        with self._blamed("fit"):
            view = _View(data, ("train", "validation"))
            found = self.given.fit(view, seed=seed) if self.is_seeded else self.given.fit(view)
            scorer: Any = found if hasattr(found, "score") else SimpleNamespace(score=found)
            if not callable(getattr(found, "score", found)):
                raise TypeError(f"fit returned {type(found).__name__}, which has no method score")
            chosen = json.loads(json.dumps(dict(getattr(found, "chosen", {})), default=_as_plain))
            parameters = max(0, int(getattr(found, "parameters", 0)))
        return _OwnFitted(scorer=scorer, chosen=chosen, method=self, counted=parameters)

    def score(self, scorer: Any, data: Features, split: str) -> Scores:
        """The scores of a split. Raises MethodError if there is not one number per answer."""
        with self._blamed("score"):
            scores = np.asarray(scorer.score(_View(data, (split,), is_hidden=True), split))
            wanted = data.labels[split].shape
            if scores.shape != wanted or scores.dtype.kind not in "fiub":
                raise ValueError(
                    f"it returned {scores.dtype} of shape {scores.shape} for {wanted[0]:,} answers"
                )
            return scores.astype(np.float32)

    @contextmanager
    def _blamed(self, step: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # whatever foreign code raises
            whose = f"the package {self.package}" if self.package else "your code"
            raise MethodError(
                f'the method "{self.name}" of {whose} failed in {step} '
                f"({type(error).__name__}: {error})"
            ) from error


def _find_source(given: DetectionMethod) -> str:
    """The source of `fit` and of the scorer; what has none is known by its name only."""
    texts = []
    for part in (given.fit, given.scorer):
        try:
            texts.append(inspect.getsource(part))  # type: ignore[arg-type]
        except (OSError, TypeError, SyntaxError, TokenError):
            texts.append(getattr(part, "__qualname__", type(part).__name__))
    return "\n".join(texts)


def _as_plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"chosen contains {type(value).__name__}, which is not a plain value")


@dataclass(frozen=True, kw_only=True)
class _OwnFitted(Fitted):
    method: OwnMethod
    counted: int

    @property
    def parameters(self) -> int:
        return self.counted

    def score(self, data: Features, split: str) -> Scores:
        return self.method.score(self.scorer, data, split)


@dataclass(frozen=True, eq=False)
class _View(Wrapped):
    """Features of some splits only: a method sees no test answers while it learns, and no labels
    while it scores (all are 0 if `is_hidden`)."""

    splits: tuple[str, ...]
    is_hidden: bool = False

    @property
    def labels(self) -> dict[str, np.ndarray]:
        found = {split: self.data.labels[split] for split in self.splits}
        return {k: np.zeros_like(v) if self.is_hidden else v.copy() for k, v in found.items()}

    def read(self, field: str, split: str, *, layer: int | None = None) -> Any:
        if split not in self.splits:
            raise InputError(
                f"here a method may read: {', '.join(self.splits)}.", setting="split", value=split
            )
        return self.data.read(field, split, layer=layer)
