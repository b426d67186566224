"""One vocabulary wherever a person reads: source, docs and the names of tests."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# What not to write, as a pattern over lowercase text, and what to write instead. An underscore
# counts as a space, so that identifiers follow the same words.
WORDS = {
    "made[- ]up": "hallucinated",
    "sureness|how surely": "confidence",
    "beyond chance": "statistically significant (p < 0.05)",
    "anew": "again, start over",
    "learnt|spelt": "learned, trained on, spelled",
    "data sets?": "dataset",
    "(is|are|was|were|be|been|of) left out|left out:": "excluded, skipped",
    "(is|are|hold|holds|gives?) no numbers?": "non-finite (NaN or infinity)",
    "(goes|go|going|gone|went) on (where|with|from)": "resume, continue",
    "(choose|chosen) of": "choose from",
    "broken off": "interrupted",
    "(is|are|was|were) begun": "started",
    "in the making": "unfinished, being written",
    "leave [^ ]+ away": "omit",
    "tak(e|es|en|ing) (it|them) away": "delete, remove",
    "likeliest": "most likely",
    "fault of clew": "bug in clew",
    "(one|a) (trace|answer|row|line|column|folder|probe|graph|entry|file|array|logit|shard|score) "
    "an? (answer|question|class|layer|sample|trace|file|token|seed|row|network|split|store|method)"
    "(?! of)": "per",
    "by place": "map-style",
    "optimis(e|ed|er|ers|es|ing|ation)": "optimize",
    "colour[a-z]*": "color",
    "grey[a-z]*": "gray",
    "(behavi|fav|hon|lab)our[a-z]*": "-or",
    "neighbour[a-z]*": "neighbor",
    "cent(re|res|red|ring)": "center",
    "[a-z]*abell(ed|ing)": "labeled, labeling",
    "[a-z]+alis(e|ed|er|es|ing|ation)": "-alize",
    "(standard|recogn|summar|quant|organ|random|memor|poster|solar)is(e|ed|es|ing|ation)": "-ize",
    "judgements?": "judgment",
    "licence": "license",
    "catalogue|analogue": "catalog, analog",
}
# Names in the files of an earlier clew, which stay readable, and in the data of a package.
GIVEN_NAMES = re.compile('"(made_up|unlabelled|left_out|test_learnt_before|neighbours)"')
ANY = re.compile(rf"(?<![a-z])({'|'.join(f'(?:{words})' for words in WORDS)})(?![a-z])")


def list_texts() -> Iterator[tuple[str, str]]:
    """Every file that a person reads, and of tests the names: (where, text)."""
    for folder in ("src/clew", "docs", "examples"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in {".py", ".md", ".html", ".js", ".css"}:
                yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
    yield "README.md", (ROOT / "README.md").read_text(encoding="utf-8")
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        names = re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8"))
        yield str(path.relative_to(ROOT)), "\n".join(names)


def find_offenders(text: str) -> Iterator[str]:
    """What is not to be written, with its line and the word to use instead."""
    plain = GIVEN_NAMES.sub('""', text).replace("_", " ").lower()
    for number, line in enumerate(plain.splitlines(), 1):
        for found in ANY.finditer(line):
            better = next(new for old, new in WORDS.items() if re.fullmatch(old, found[0]))
            yield f'line {number}: "{found[0]}", use: {better}'


@pytest.mark.slow
def test_texts_use_one_vocabulary() -> None:
    offenders = [
        f"{where}, {what}" for where, text in list_texts() for what in find_offenders(text)
    ]
    assert not offenders, "\n".join(offenders)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("an answer that was made_up", "hallucinated"),
        ("does not differ beyond chance", "statistically significant"),
        ("2 photos are left out", "excluded"),
        ("values that are no numbers", "non-finite"),
        ("one trace an answer", "per"),
        ("the optimiser's colours", "optimize"),
    ],
)
def test_rejected_words_are_detected(text: str, found: str) -> None:
    assert found in next(find_offenders(text))


@pytest.mark.parametrize("text", ["the optimizer", "a row of a trace", 'counts["made_up"]'])
def test_accepted_words_are_not_flagged(text: str) -> None:
    assert not list(find_offenders(text))
