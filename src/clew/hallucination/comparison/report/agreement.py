"""Where the methods agree and where they do not: ranks, decisions and single answers."""

import numpy as np

from clew.hallucination.comparison.report.comparison import Comparison, MethodResult
from clew.pages.figures import Matrix, draw_matrix
from clew.pages.markup import Section, join
from clew.pages.numbers import percent

_LEAST_ANSWERS = 3


def draw_agreement(comparison: Comparison) -> Matrix | None:
    """Spearman's rank correlation between all methods, those most similar to the best first; None
    with fewer than two methods or three answers."""
    methods = comparison.scored
    if len(methods) < 2 or len(comparison.test) < _LEAST_ANSWERS:
        return None
    table = rank_correlations(np.stack([comparison.test.risks[m.name] for m in methods]))
    order = _order(methods, comparison.best, table)
    methods, table = tuple(methods[place] for place in order), table[np.ix_(order, order)]
    names = tuple(method.title for method in methods)
    return Matrix(
        rows=names,
        columns=names,
        values=table,
        tips=tuple(tuple(_tip(comparison, one, two) for two in methods) for one in methods),
        low=0.0,
        high=1.0,
    )


def rank_correlations(risks: np.ndarray) -> np.ndarray:
    """Spearman's rank correlation of every pair of rows; NaN if all values of a row are equal."""
    ranks = np.stack([_mid_ranks(row) for row in risks])
    ranks = ranks - ranks.mean(axis=1, keepdims=True)
    lengths = np.sqrt((ranks**2).sum(axis=1))
    with np.errstate(invalid="ignore", divide="ignore"):
        return (ranks @ ranks.T) / np.outer(lengths, lengths)


def disagreement(comparison: Comparison) -> np.ndarray:
    """The standard deviation of the methods' risks per answer, without the baselines, which do not
    read the model. Zeros with fewer than two methods."""
    names = [method.name for method in comparison.scored if method.family != "baseline"]
    if len(names) < 2:
        return np.zeros(len(comparison.test))
    return np.std([comparison.test.risks[name] for name in names], axis=0)


def _mid_ranks(values: np.ndarray) -> np.ndarray:
    """The ranks of the values; ties get the mean of their ranks."""
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[group]


def _order(methods: tuple[MethodResult, ...], best: MethodResult, table: np.ndarray) -> list[int]:
    start = methods.index(best) if best in methods else 0
    likeness = np.nan_to_num(table[start], nan=-1.0)
    likeness[start] = 2.0
    return [int(place) for place in np.argsort(-likeness, kind="stable")]


def _tip(comparison: Comparison, one: MethodResult, other: MethodResult) -> str:
    if one is other:
        return one.title
    risks = comparison.test.risks
    differ = (risks[one.name] > one.threshold) != (risks[other.name] > other.threshold)
    return (
        f"{one.title} and {other.title} disagree on {percent(float(differ.mean()))} "
        f"of the test answers"
    )


def agreement_section(comparison: Comparison) -> Section:
    matrix = draw_agreement(comparison)
    words = "Rank correlation between the methods' risks"
    section = Section(
        name="agreement",
        short="Agreement",
        title="Where the methods agree",
        lead="Methods that rank answers alike probably use the same signal; methods that do not "
        "may be worth combining.",
        content=draw_matrix(matrix, words=words) if matrix else join(),
        reading="A cell is Spearman's rank correlation of two methods' risks on the test split: 1 "
        "means the same order, 0 no relation. The methods most similar to the best come first. "
        "Hover over a cell to see how often the two disagree at their thresholds.",
        pictures=("agreement",),
    )
    return section.if_there(matrix, "This requires at least two methods and three test answers.")
