"""All methods, from cheap to expensive, and why one of them cannot run on some data."""

import tomllib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Literal, TypeAlias

from clew.base.errors import InputError
from clew.base.texts import suggest
from clew.hallucination.detectors.probes.method import OF_HEADS, Method
from clew.hallucination.detectors.probes.registry import (
    PROBES,
    UnusableMethod,
    find_own_methods,
    list_package_methods,
)
from clew.hallucination.detectors.registry import FORMS, NETWORKS, NetworkKind
from clew.hallucination.hub import READY
from clew.hallucination.samples.source import NODE_TOKENS
from clew.hallucination.traces.schema import ANSWERS_KEY, CONTEXT, ENTAILMENT, GIVEN

if TYPE_CHECKING:
    from clew.hallucination.samples.mixed import AnswerData

_FAMILIES = ("baseline", "no training", "probe", "network")
# Names for all methods of a family.
_GROUPS = dict(zip(("baselines", "untrained", "probes", "networks"), _FAMILIES, strict=True))
_SAMPLES = ("sequences", "graphs", "heads", "answers")
# What further answers of the model give, and given ones never have.
_DRAWN = ("samples", ENTAILMENT)
_READER = "reader"


@dataclass(frozen=True, kw_only=True)
class NetworkMethod:
    """A network as a method; `needs` are kinds of samples."""

    kind: NetworkKind
    family: Literal["network"] = "network"
    is_seeded: bool = True
    also_reads: tuple[str, ...] = ()
    learns_from: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.kind.name

    @property
    def title(self) -> str:
        return self.kind.title

    @property
    def needs(self) -> tuple[str, ...]:
        return FORMS[self.kind.samples].stores

    @property
    def reads_edges(self) -> bool:
        """Whether it reads the attention between tokens."""
        return self.kind.samples in ("graphs", "heads")


AnyMethod: TypeAlias = Method | NetworkMethod
NETWORK_METHODS = [NetworkMethod(kind=kind) for kind in NETWORKS.values()]


def list_methods(names: Collection[str] = ()) -> dict[str, AnyMethod]:
    """All methods of clew and those that were registered, the cheap ones first, so that results
    appear early; those from outside clew come last in their family. A method of an installed
    package is among them if it is among `names`: other packages are not imported. So is the reader
    of grounded answers, which passes every answer through a model of its own, and so is the ready
    detector."""
    own = find_own_methods(names).values()
    every: list[AnyMethod] = [*PROBES.values(), *own, *NETWORK_METHODS]
    if _READER in names:
        from clew.hallucination.grounded.method import READER_METHOD  # loads transformers

        every.append(READER_METHOD)
    if READY in names:
        from clew.hallucination.comparison.ready import READY_METHOD

        every.append(READY_METHOD)
    ordered = sorted(every, key=lambda one: (_FAMILIES.index(one.family), one.is_seeded))
    return {one.name: one for one in ordered}


def find_methods(names: Iterable[str] | None) -> list[AnyMethod]:
    """The methods with these names, or of families with these, in the order of `list_methods`; None
    selects all but those of installed packages. Raises InputError for an unknown name."""
    if names is None:
        return list(list_methods().values())
    wanted = set(names)
    known, families = list_methods(wanted), {_GROUPS[name] for name in wanted & _GROUPS.keys()}
    unknown = sorted(wanted - known.keys() - _GROUPS.keys())
    if unknown or not wanted:
        every = dict.fromkeys((*known, _READER, READY, *_GROUPS, *list_package_methods()))
        named = ", ".join(f'"{name}"' for name in unknown)
        meant = suggest(unknown[0], every) if unknown else ""
        which = f"unknown method {named}{meant}" if unknown else "no methods given"
        raise InputError(f"{which}: choose `methods` from: {', '.join(every)}.")
    return [one for name, one in known.items() if name in wanted or one.family in families]


def choose_names(networks: Sequence[str]) -> tuple[str, ...]:
    """All methods that are not of installed packages, but only these networks."""
    every = list_methods().values()
    return tuple(one.name for one in every if one.family != "network" or one.name in networks)


def explain_missing(method: AnyMethod, data: "AnswerData", *, is_fitted: bool = True) -> str | None:
    """Which data the method is missing and how to get it; None if it has all. `is_fitted`: it is
    fitted on this data, not only tested."""
    if isinstance(method, UnusableMethod):
        return method.reason
    needs = (*method.needs, *(method.learns_from if is_fitted else ()))
    missing = [need for need in needs if need not in data.fields | data.samples]
    for text in ("category", CONTEXT):
        if text in method.needs and not missing and not any(data.read(text, "train")):
            missing = [text]
    if not (data.layers - len(data.without_attention)) and (
        getattr(method, "reads_edges", False) or {*missing} & {*OF_HEADS, "heads"}
    ):
        return _read_fixes()["attention"]
    if not missing:
        refuses = getattr(method, "refuses", None)
        return refuses(data) if refuses else None
    need = missing[0]
    if need in _DRAWN and data.settings["capture"].get(ANSWERS_KEY) == GIVEN:
        need = GIVEN
    if find_kind(need) == "answers" and "answers" not in data.samples:
        need = "answers"
    elif need == NODE_TOKENS and "graphs" in data.samples:
        need = "prompt_length"  # without it, nobody knows which nodes are the answer's
    fixes = _read_fixes()
    return fixes.get(need, fixes["other"].format(need=need))


@cache
def _read_fixes() -> dict[str, str]:
    """What to do if a field is missing."""
    told = tomllib.loads(files(__package__).joinpath("missing.toml").read_text("utf-8"))
    return {name: fix["reason"] for fix in told["fix"] for name in fix["missing"]}


def find_kinds(method: AnyMethod) -> list[str]:
    """The kinds of samples that contain what the method reads."""
    return sorted({find_kind(need) for need in (*method.needs, *method.learns_from)})


def find_kind(need: str) -> str:
    """The kinds that contain a field; a kind contains itself."""
    own = {"sequence": "sequences", NODE_TOKENS: "graphs", **{kind: kind for kind in _SAMPLES}}
    return own.get(need, "answers")


def count_bytes(method: AnyMethod, data: "AnswerData") -> float:
    """The stored fields of an answer that the method reads."""
    also = (field for field in method.also_reads if field in data.fields)
    return sum(data.bytes_of(name) for name in dict.fromkeys((*method.needs, *also)))


def reads_nodes(method: AnyMethod) -> bool:
    """Whether the method requires node features; optional inputs do not count."""
    from clew.hallucination.samples.mixed import is_of_nodes

    return any(map(is_of_nodes, method.needs))


def names_of_graph_methods(methods: Sequence[AnyMethod]) -> list[str]:
    """The methods that read the attention between tokens."""
    return [one.name for one in methods if getattr(one, "reads_edges", False)]
