"""The sections on the answers: where methods disagree, mistakes, categories, other question
sets, and where the figures come from."""

from clew.hallucination.comparison.report.agreement import draw_agreement
from clew.hallucination.comparison.report.categories import compared_methods, draw_categories
from clew.hallucination.comparison.report.comparison import Comparison
from clew.hallucination.comparison.report.mistakes import draw_disputed, draw_mistakes
from clew.hallucination.comparison.report.origin import (
    draw_data,
    draw_left_out,
    draw_settings,
    draw_versions,
)
from clew.hallucination.comparison.report.overview import draw_method_key
from clew.hallucination.comparison.report.transfer import draw_transfer, split_shown
from clew.pages.forest import draw_forest
from clew.pages.heatmap import draw_matrix
from clew.pages.markup import Html, join, tag
from clew.pages.panels import Matrix
from clew.pages.section import Section
from clew.pages.wording import counted

CHANCE = 0.5


def agreement_section(comparison: Comparison) -> Section:
    matrix = draw_agreement(comparison)
    words = "Rank correlation between the methods' scores"
    section = Section(
        name="agreement",
        short="Agreement",
        title="Where the methods agree",
        lead="Methods that rank answers alike have found the same signal; those that do not might "
        "be joined.",
        content=draw_matrix(matrix, words=words) if matrix else join(),
        reading="A cell is Spearman's rank correlation of two methods' scores on the test split: 1 "
        "is the same order, 0 is no relation. Those most like the best come first. Point at a cell "
        "to see how often the two decide differently.",
        pictures=("agreement",),
    )
    return section.if_there(
        matrix, "It takes the scores of two methods on three test answers to compare."
    )


def disputed_section(comparison: Comparison) -> Section:
    return Section(
        name="disputed",
        short="Disputes",
        title="The answers they dispute most",
        lead="Test answers whose probabilities lie farthest apart.",
        content=draw_disputed(comparison),
        reading="A dot is a method (coloured by family, without the baselines) at the probability "
        "that it gave; on the left it trusts the answer, on the right it does not.",
    )


def mistakes_section(comparison: Comparison) -> Section:
    return Section(
        name="mistakes",
        short="Mistakes",
        title="The worst mistakes of the best method",
        lead=f"Where {comparison.best.title} was surest and wrong. Read them before you trust it: "
        "some may be answers that were labelled wrongly.",
        content=draw_mistakes(comparison),
        reading="The dot is the probability that the answer is made up, the tick the threshold "
        "from which it is flagged, chosen on validation.",
    )


def categories_section(comparison: Comparison) -> Section:
    rows = draw_categories(comparison)
    forest = draw_forest(rows, reference=CHANCE, words="test AUROC", is_grouped=True)
    section = Section(
        name="categories",
        short="Categories",
        title="By category of question",
        lead=f"How {comparison.best.title} and perplexity do within each category.",
        content=join(draw_method_key(compared_methods(comparison)), forest),
        reading="Within a category the category itself tells nothing, so a method that is good "
        "here has seen more than the kind of question. Few answers make long bars, or none at all "
        "where they happen to be ranked perfectly: look at their number.",
        pictures=("categories",),
    )
    return section.if_there(
        rows, "The questions bear no category, or the scores of single answers are not known."
    )


def transfer_section(comparison: Comparison) -> Section:
    matrices = draw_transfer(comparison)
    shown, folded = split_shown(matrices)
    more = tag("summary", f"{counted(len(folded), 'more method')}")
    section = Section(
        name="transfer",
        short="Transfer",
        title="On questions of another kind",
        lead="Trained on one set of questions, tested on another.",
        content=join(
            _heat_maps(shown), tag("details", more, _heat_maps(folded)) if folded else None
        ),
        reading="A row is what was trained on, a column what was tested on, a cell the test AUROC: "
        "pale is chance. Off the diagonal the method meets questions it was not made for.",
        pictures=("transfer",),
    )
    return section.if_there(
        matrices,
        "Trained and tested on one set of questions. For a matrix, give several stores of the "
        "same model.",
    )


def left_out_section(comparison: Comparison) -> Section:
    return Section(
        name="left-out",
        short="Left out",
        title="Left out",
        lead="Methods that could not run on these data, and what they would need.",
        content=draw_left_out(comparison),
    )


def data_section(comparison: Comparison) -> Section:
    return Section(
        name="data",
        short="Data",
        title="The data",
        lead="Answers that the model gave itself, split by question.",
        content=draw_data(comparison),
    )


def settings_section(comparison: Comparison) -> Section:
    return Section(
        name="settings",
        short="Settings",
        title="Settings and versions",
        lead="Everything needed to do it again.",
        content=join(draw_settings(comparison), draw_versions(comparison)),
    )


def _heat_maps(matrices: tuple[tuple[str, Matrix], ...]) -> Html:
    figures = [
        tag("div", tag("h3", title), draw_matrix(matrix, words=f"Transfer of {title}"))
        for title, matrix in matrices
    ]
    return tag("div", figures, class_="heat-maps")
