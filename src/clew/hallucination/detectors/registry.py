"""The networks that can be trained as detectors, one entry each (nothing else names them), and the
kinds of samples that they read."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from clew.base.errors import InputError
from clew.base.settings import check_fraction, check_numbers, check_positive, check_weight
from clew.base.texts import suggest

if TYPE_CHECKING:
    from torch import nn

    from clew.hallucination.samples.datasets import SampleKind

_AGAIN = 'rerun the "clew preprocess" command that created it'
# Sample stores in a folder of `clew preprocess`, and how to get a missing one.
STORES = {
    "sequences": f"{_AGAIN} without `sequences=False`",
    "graphs": f"{_AGAIN} without `graphs=False`",
    "heads": (
        'run "clew extract" with `keep="full"`, which stores full attention maps, then "clew '
        'preprocess" (without `heads=False`)'
    ),
}


class SampleForm(NamedTuple):
    """A kind of samples: `stores` are the stores they are read from; `keys` identify a batch of
    them."""

    stores: tuple[str, ...]
    keys: tuple[str, ...]
    opened_with: str


FORMS: "dict[SampleKind, SampleForm]" = {
    "sequences": SampleForm(("sequences",), ("sequence",), "PreprocessedLSTMMapDataset(...)"),
    "graphs": SampleForm(
        ("sequences", "graphs"),
        ("sequence", "edge_attr"),
        "PreprocessedGNNMapDataset(..., with_sequence=True)",
    ),
    "heads": SampleForm(("heads",), ("edge_attr", "is_answer"), "PreprocessedHeadsMapDataset(...)"),
    "grids": SampleForm(("graphs",), ("nodes", "max_tokens"), "PreprocessedGridsMapDataset(...)"),
}


@dataclass(frozen=True)
class NetworkKind:
    """A network on the samples of `clew preprocess`; `name` is also the name of its folder. `home`
    is its module and what its classes are called, which are imported on first use: names are
    checked before PyTorch is loaded. `is_usual`: trained by default.
    """

    name: str
    title: str
    samples: "SampleKind"
    home: str
    is_usual: bool = True

    @cached_property
    def config(self) -> type[Any]:
        return self._import("Config")

    @cached_property
    def network(self) -> "type[nn.Module]":
        return self._import("Detector")

    def _import(self, ending: str) -> Any:
        module, name = self.home.split(".")
        found = import_module(f"clew.hallucination.detectors.networks.{module}")
        return getattr(found, f"{name}{ending}")

    @property
    def setting_names(self) -> set[str]:
        return {field.name for field in fields(self.config)}


NETWORKS = {
    kind.name: kind
    for kind in (
        NetworkKind("lstm", "LSTM", "sequences", "lstm.LSTM"),
        NetworkKind("gnn_det", "GNN-det + LSTM", "graphs", "lstm.GNNLSTM"),
        NetworkKind("gvae", "GVAE + LSTM", "graphs", "lstm.GVAELSTM"),
        NetworkKind("charm", "CHARM", "heads", "charm.Charm", is_usual=False),
        NetworkKind("act_vit", "ACT-ViT", "grids", "act_vit.ActViT", is_usual=False),
    )
}
_SIZES = ("lstm_hidden", "num_lstm_layers", "gnn_hidden", "latent_dim")
_WEIGHTS = ("kl_weight", "reconstruction_weight")
USUAL_NETWORKS = tuple(kind.name for kind in NETWORKS.values() if kind.is_usual)


@dataclass(frozen=True, kw_only=True)
class NetworkSettings:
    """Sizes and loss weights of the networks; None means each network's default."""

    lstm_hidden: int | None = None
    num_lstm_layers: int | None = None
    dropout: float | None = None
    gnn_hidden: int | None = None
    latent_dim: int | None = None
    kl_weight: float | None = None
    reconstruction_weight: float | None = None

    def __post_init__(self) -> None:
        check_numbers(self)
        chosen = self.chosen()
        check_positive(self, *chosen.keys() & {*_SIZES})
        check_fraction(self, *chosen.keys() & {"dropout"})
        check_weight(self, *chosen.keys() & {*_WEIGHTS})

    def chosen(self) -> dict[str, int | float]:
        return {name: value for name, value in asdict(self).items() if value is not None}


def find_networks(names: Iterable[str]) -> list[NetworkKind]:
    """The networks with these names; raises InputError for an unknown one, or for none."""
    wanted = list(names)
    unknown = [name for name in wanted if name not in NETWORKS]
    if unknown:
        known = ", ".join(NETWORKS)
        meant = suggest(unknown[0], NETWORKS)
        raise InputError(f'unknown network "{unknown[0]}"{meant}: choose from: {known}.')
    if not wanted:
        settings = ", ".join(map(run_setting, NETWORKS))
        raise InputError(f"no network to train: give at least one of {settings}.")
    return [NETWORKS[name] for name in wanted]


def run_setting(name: str, *, on: bool = True) -> str:
    """The setting that turns a network on or off, for an error."""
    return f"`run_{name}={on}`"


def configure(kind: NetworkKind, sizes: dict[str, int], settings: NetworkSettings) -> Any:
    """The network's config from the sizes of the data and the settings that apply to it."""
    given = {**sizes, **settings.chosen()}
    return kind.config(**{name: given[name] for name in kind.setting_names & given.keys()})


def refuse_unused(settings: NetworkSettings, kinds: Iterable[NetworkKind]) -> None:
    """Raises InputError for a setting that none of the networks has, so that it is not ignored
    silently."""
    chosen = settings.chosen()
    known = set().union(*(kind.setting_names for kind in kinds)) if chosen else set()
    for name, value in chosen.items():
        if name not in known:
            owners = [kind.name for kind in NETWORKS.values() if name in kind.setting_names]
            raise InputError(
                f"this is a setting of {' and '.join(owners)}, which this run does not train. Omit "
                f"it, or add {run_setting(owners[0])}.",
                setting=name,
                value=value,
            )
