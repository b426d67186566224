"""The sections of the page, in the order in which a reader asks."""

from dataclasses import replace

from clew.hallucination.comparison.report.answer_sections import (
    agreement_section,
    categories_section,
    data_section,
    disputed_section,
    left_out_section,
    mistakes_section,
    settings_section,
    transfer_section,
)
from clew.hallucination.comparison.report.comparison import Comparison
from clew.hallucination.comparison.report.method_sections import (
    curves_section,
    layers_section,
    losses_section,
    rank_section,
    table_section,
)
from clew.pages.section import Section

_ORDER = (
    rank_section,
    table_section,
    curves_section,
    layers_section,
    mistakes_section,
    agreement_section,
    disputed_section,
    categories_section,
    transfer_section,
    losses_section,
    left_out_section,
    data_section,
    settings_section,
)


def make_sections(comparison: Comparison, pictures: frozenset[str]) -> list[Section]:
    """All of them; one that has nothing to show says why. `pictures` are the PNGs that exist."""
    return [_with_existing(make(comparison), pictures) for make in _ORDER]


def _with_existing(section: Section, pictures: frozenset[str]) -> Section:
    return replace(section, pictures=tuple(name for name in section.pictures if name in pictures))
