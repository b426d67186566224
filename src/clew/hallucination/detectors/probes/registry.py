"""The methods fitted without the engine, by name: those of clew, and those of other packages."""

import os
import re
import sys
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from clew.base.errors import InputError, MethodError
from clew.hallucination.detectors.probes.method import (
    METHODS,
    SCORERS,
    Features,
    Fitted,
    Method,
    Scorer,
)
from clew.hallucination.detectors.probes.own import DetectionMethod, OwnMethod

_MODULES = (
    *("baselines", "evaluation", "states", "attention", "contrastive"),
    *("tokens", "fusion", "robust", "gated"),
)
for _module in _MODULES:  # whose functions and classes register themselves
    import_module(f"clew.hallucination.detectors.probes.{_module}")
# In the order of tables; of methods that are equally good, the first is the best.
_NAMES = """
    length category text source_words
    perplexity min_probability mean_entropy semantic_entropy entailment_entropy p_true consistency
    selfcheck_ngram attention_score
    linear_probe semantic_entropy_probe linear_probe_middle linear_probe_pca saplma ccs
    contrast_probe contrastive lapeigvals attn_logdet lookback token_probe fusion robust gated
"""
PROBES = {name: METHODS[name] for name in _NAMES.split()}
# The kind of a scorer of a method from outside clew: this and the method's name.
_OWN = "method:"


def kind_of(scorer: Scorer) -> str:
    """The name of the scorer's class in a file."""
    known = next((name for name, kind in SCORERS.items() if type(scorer) is kind), None)
    if known is not None:
        return known
    own = find_keepable(scorer)
    assert own is not None
    return f"{_OWN}{own.name}"


def find_scorer_class(kind: str) -> type[Any]:
    """The class behind a name in a file. Raises ValueError for an unknown one."""
    if kind in SCORERS:
        return SCORERS[kind]
    if not kind.startswith(_OWN):
        raise ValueError(f"method.kind is {kind[:100]!r}")
    name = kind.removeprefix(_OWN)
    method = find_own_methods([name]).get(name)
    if not isinstance(method, OwnMethod) or method.given.scorer is None:
        raise ValueError(
            f"it needs the method {name[:100]!r}, which no installed package provides: install the "
            "one that it was made with"
        )
    return method.given.scorer


def can_be_kept(scorer: Scorer | None) -> bool:
    return type(scorer) in SCORERS.values() or find_keepable(scorer) is not None


GROUP = "clew.methods"
_REGISTERED: dict[str, DetectionMethod] = {}


def register_method(method: DetectionMethod) -> DetectionMethod:
    """Add a detection method of your own to the comparisons of this Python process.

    A package adds its methods for every process with an entry point instead:
    `[project.entry-points."clew.methods"]`, then `my_probe = "my_package:METHOD"`, where `my_probe`
    is the method's name. The package is imported when somebody names the method.

    Args:
        method: The method. Registering the same function again replaces it, as when a cell of a
            notebook is run again.

    Returns:
        The method.

    Raises:
        InputError: It is not a `DetectionMethod`, or there is another method of this name.

    Examples:
        >>> clew.register_method(clew.DetectionMethod(name="mine", fit=fit, needs=["sequence"]))
        >>> clew.compare(methods=["perplexity", "mine"])
    """
    if not isinstance(method, DetectionMethod):
        raise InputError("give a clew.DetectionMethod.", setting="method", value=method)
    before = _REGISTERED.get(method.name)
    if method.name in _list_built_in() or (before and not _is_same(before.fit, method.fit)):
        raise InputError(
            f'there is a method "{method.name}" already: choose another name.',
            setting="name",
            value=method.name,
        )
    _REGISTERED[method.name] = method
    return method


@dataclass(frozen=True, kw_only=True)
class UnusableMethod(Method):
    """Stands for an entry point that gives no method; `reason` says why."""

    reason: str

    def fit(self, data: Features, *, seed: int) -> Fitted:  # noqa: ARG002
        raise MethodError(self.reason)


def find_own_methods(names: Collection[str] = ()) -> dict[str, OwnMethod | UnusableMethod]:
    """The methods from outside clew by name: all registered ones, and those of installed packages
    that are among `names`; other packages are not imported. An entry point that cannot be loaded,
    or whose name is taken, is unusable."""
    found: dict[str, OwnMethod | UnusableMethod] = {
        name: OwnMethod.of(given) for name, given in _REGISTERED.items()
    }
    points = _find_points().items()
    return found | {name: _load(name, point) for name, point in points if name in names}


def list_package_methods() -> list[str]:
    """The names of the methods of installed packages; none of them is imported."""
    return list(_find_points())


def _find_points() -> dict[str, EntryPoint]:
    """Entry points by the name of their method. One whose name is taken has its package's name
    behind it."""
    taken, found = _list_built_in() | _REGISTERED.keys(), dict[str, EntryPoint]()
    for point in _list_points(tuple((place, _changed(place)) for place in sys.path)):
        name = _name(point)
        found[f"{name} ({_package(point)})" if name in taken else name] = point
        taken.add(name)
    return found


@lru_cache(maxsize=1)
def _list_points(_places: tuple[tuple[str, int], ...]) -> list[EntryPoint]:
    """Looking at every installed package takes long, so it is done once until one of the places
    changes, as when a package is installed."""
    return sorted(entry_points(group=GROUP), key=lambda one: (one.name, _package(one)))


def _changed(place: str) -> int:
    try:
        return os.stat(place or ".").st_mtime_ns
    except OSError:
        return 0


def find_keepable(scorer: Any) -> DetectionMethod | None:
    """The method whose fitted scorers are saved in detectors, by the scorer or by its class. What
    made the scorer is imported already."""
    kind = scorer if isinstance(scorer, type) else type(scorer)
    imported = [name for name, point in _find_points().items() if point.module in sys.modules]
    own = (one.given for one in find_own_methods(imported).values() if isinstance(one, OwnMethod))
    return next((given for given in own if given.scorer is kind), None)


def _load(name: str, point: EntryPoint) -> OwnMethod | UnusableMethod:
    package = _package(point)
    try:
        given = None if name != _name(point) else point.load()
    except Exception as error:  # whatever foreign code raises
        reason = f"{package} cannot be loaded ({type(error).__name__}: {error})"
    else:
        if name != _name(point):
            reason = f"there is another method of this name, so that of {package} is not run"
        elif not isinstance(given, DetectionMethod):
            told = f'"{point.value}" is not a clew.DetectionMethod, but {type(given).__name__}'
            reason = f"{package} cannot be used: {told}"
        elif given.name != name:
            told = f'its entry point is named "{name}", but its method "{given.name}"'
            reason = f"{package} cannot be used: {told}"
        else:
            return OwnMethod.of(given, package)
    return UnusableMethod(name, name, "probe", (), Fitted, reason=reason)


def _name(point: EntryPoint) -> str:
    return re.sub(r"\W", "_", point.name)[:60]


def _package(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else point.value


def _list_built_in() -> set[str]:
    from clew.hallucination.detectors.registry import NETWORKS

    return {*PROBES, *NETWORKS}


def _is_same(one: Any, other: Any) -> bool:
    names = ("__module__", "__qualname__")
    return all(getattr(one, name, one) == getattr(other, name, other) for name in names)
