"""The built-in question sets: clean, varied, and the same on every machine."""

import hashlib
import json
import math
import re
import tomllib
from collections import Counter
from dataclasses import asdict
from functools import cache
from pathlib import Path

import pytest

import clew
from clew.base.errors import InputError
from clew.hallucination.questions import Question, QuestionSet, built_in_names, load_questions

# Of the whole set, as a store's manifest records it. A change here makes stores that users have
# started grow no further: change a set only for a reason that is worth that.
HASHES = {
    "facts": "400aa608756bd9c9",
    "elements": "4749e8f415384b4b",
    "arithmetic": "5398baf1b7fab809",
    "languages": "39b4603748dd43bb",
    "abbreviations": "ffdd8ba35e986cf3",
    "everyday": "ed6dfaceba9bffba",
    "reading": "5cb4949785435261",
    "statements": "e424ee6cb87dfc02",
    "words": "239c97dcd41fb657",
    "culture": "08a6a1ea702f9525",
    "facts-spans": "23f4603f67cd79f8",
    "all": "e40ad1489ccb7602",
}
# Of all that a set has: also categories, contexts and the instruction.
CONTENTS = {
    "facts": "7cf45c913a4d5720",
    "elements": "553267314f0d439a",
    "arithmetic": "d4919e4153c782f1",
    "languages": "994c4672eedc319d",
    "abbreviations": "fe3eccbd200d14bb",
    "everyday": "73f8fb8814c0eb9e",
    "reading": "d74da25ca12a681b",
    "statements": "6f81e6bd4d7ceb86",
    "words": "64928ef9b24e8b0f",
    "culture": "18adf59c4852cd56",
    "facts-spans": "6c3efc70ee5ef598",
    "all": "10553a2b19a0d7e3",
}
# Of the small sets and the sealed ones, one after the other.
SMALL_HASH = "a42a8d70081cf665"
SMALL = built_in_names("small") + built_in_names("sealed")
GENERATED = sorted({*HASHES} - {"facts", "facts-spans", "all"})


@cache
def load(name: str) -> QuestionSet:
    return load_questions(name)


def of(name: str, id: str) -> Question:
    return next(question for question in load(name).questions if question.id == id)


@pytest.mark.slow
@pytest.mark.parametrize("name", HASHES)
def test_a_set_is_the_same_everywhere(name: str) -> None:
    assert load(name).sha256.startswith(HASHES[name])
    content = json.dumps([asdict(load(name))], ensure_ascii=False, sort_keys=True)
    assert hashlib.sha256(content.encode()).hexdigest().startswith(CONTENTS[name])


def test_the_small_sets_are_the_same_everywhere() -> None:
    contents = json.dumps([asdict(load(name)) for name in SMALL], ensure_ascii=False)
    assert hashlib.sha256(contents.encode()).hexdigest().startswith(SMALL_HASH)


def test_the_package_has_the_data_of_the_sets() -> None:
    """A wheel holds the files that these patterns match."""
    root = Path(clew.__file__).parent
    settings = tomllib.loads((root.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = settings["tool"]["setuptools"]["package-data"]["clew"]
    packed = {path for pattern in patterns for path in root.glob(pattern)}
    others = {path for path in root.rglob("*.*") if not path.suffix.startswith(".py")}
    assert others and not others - packed


@pytest.mark.slow
@pytest.mark.parametrize("name", GENERATED)
def test_a_set_has_hundreds_of_questions_of_several_kinds(name: str) -> None:
    questions = load(name).questions
    assert 500 <= len(questions) <= 3000
    kinds = Counter(question.category for question in questions)
    assert len(kinds) >= 5
    assert max(kinds.values()) < 0.4 * len(questions)
    first = Counter(question.category for question in questions[:300])
    assert len(first) >= len(kinds) - 1


@pytest.mark.parametrize("name", GENERATED)
def test_questions_have_clean_texts_and_different_wordings(name: str) -> None:
    questions = load(name).questions
    assert len({(question.question, question.context) for question in questions}) == len(questions)
    for question in questions:
        texts = (question.question, *question.answers, question.context or "a")
        assert question.answers and len(set(question.answers)) == len(question.answers), question
        assert all(text and text == " ".join(text.split()) for text in texts), question
        assert not re.search(r"[{}_|]|\ba [aeio]\w+ing\b", " ".join(texts)), question


@pytest.mark.parametrize(
    ("name", "id", "question", "answer"),
    [
        ("elements", "symbol-fe", "iron", "Fe"),
        ("elements", "by-number-al", "13", "aluminium"),
        ("elements", "compound-h2o", "H2O", "water"),
        ("elements", "atoms-c2h6-H", "C2H6", "six"),
        ("languages", "country-de-HU", "Ungarn", "Hungary"),
        ("languages", "official-be", "Belgium", "Dutch"),
        (
            "abbreviations",
            "organization-nasa",
            "NASA",
            "National Aeronautics and Space Administration",
        ),
        ("abbreviations", "state-tx", "TX", "Texas"),
        ("everyday", "kind-violin", "a violin", "musical instrument"),
        ("statements", "capital-of-no", "Oslo is the capital of ...", "Norway"),
        ("statements", "neighbor-ca", "countries that border Canada is ...", "United States"),
        ("words", "plural-child", "child", "children"),
        ("culture", "novel-moby-dick", "“Moby-Dick”", "Herman Melville"),
    ],
)
def test_a_question_reads_well(name: str, id: str, question: str, answer: str) -> None:
    assert question in of(name, id).question
    assert answer in of(name, id).answers


@pytest.mark.parametrize(
    ("name", "id", "wrong"),
    [
        ("everyday", "kind-crossbow", "firearm"),
        ("everyday", "kind-trumpet", "string instrument"),
        ("culture", "novel-the-chronicles-of-narnia", "Lewis"),
        ("words", "opposite-hero", "coward"),
    ],
)
def test_what_is_true_of_similar_things_only_is_not_accepted(
    name: str, id: str, wrong: str
) -> None:
    assert wrong not in of(name, id).answers


def test_arithmetic_is_right() -> None:
    for question in load("arithmetic").questions:
        numbers = [int(number) for number in re.findall(r"\d+", question.question)]
        answer = int(question.answers[0])
        if question.category in ("sum", "gain"):
            assert answer == sum(numbers), question
        if question.category in ("product", "shares"):
            assert answer == math.prod(numbers), question
        assert answer not in numbers, question


def test_a_choice_of_two_is_in_the_statement_as_often_first_as_second() -> None:
    places = Counter()
    for question in load("statements").questions:
        if question.category in ("people", "order", "number"):
            first, _, second = question.question.partition(" and ")
            at = [question.answers[0] in half for half in (first, second)]
            assert sum(at) == 1, question
            places[at.index(True)] += 1
    assert 0.4 < places[0] / places.total() < 0.6


def test_answers_to_texts_are_in_them_or_denied() -> None:
    for question in load("reading").questions:
        text = question.context or ""
        stated = any(answer in text for answer in question.answers)
        assert stated != (question.category == "missing"), question


@pytest.mark.slow
def test_all_sets_together_ask_as_each_alone() -> None:
    together = load_questions("all", 500)
    alone = {name: load(name) for name in ("facts", *GENERATED)}
    assert Counter(
        question.id.partition("/")[0] for question in together.questions
    ) == dict.fromkeys(alone, 50)
    for question in together.questions:
        name, _, id = question.id.partition("/")
        same = next(one for one in alone[name].questions if one.id == id)
        assert question.question == f"{same.question} {alone[name].instruction}".strip()
        assert question.category == f"{name}/{same.category}"


def test_a_mistyped_set_is_suggested_among_all() -> None:
    with pytest.raises(InputError, match=r'\(did you mean "elements"\?\): give .* facts, elements'):
        load_questions("element")
    assert {"facts", "all", *GENERATED} <= set(built_in_names())


def test_several_sets_at_once_are_refused_with_advice() -> None:
    with pytest.raises(InputError, match=r'several sets: give one of them, or "all"'):
        load_questions("elements,words")


def test_a_small_set_is_small_and_asks_what_no_other_asks() -> None:
    assert len(SMALL) >= 20
    known = {(one.question, None) for name in (*GENERATED, "facts") for one in load(name).questions}
    for name in SMALL:
        questions = load(name).questions
        assert 100 <= len(questions) <= 200, name
        for question in questions:
            texts = (question.question, *question.answers)
            assert question.answers and all(t and t == " ".join(t.split()) for t in texts), question
            asked = (question.question, question.context)
            assert question.category.startswith(name) and asked not in known, question
            known.add(asked)


@pytest.mark.slow
def test_the_sealed_sets_are_in_no_group() -> None:
    sealed = built_in_names("sealed")
    assert len(sealed) == 5
    for group in ("all", "small"):
        assert not {one.id.partition("/")[0] for one in load(group).questions} & {*sealed}
    assert len(load("small").questions) == sum(
        len(load(name).questions) for name in built_in_names("small")
    )


def test_answers_about_code_are_what_it_prints(capsys: pytest.CaptureFixture[str]) -> None:
    for question in load("code").questions:
        exec(re.search(r"print\(.*\)", question.question)[0])
        assert capsys.readouterr().out.strip() == question.answers[0], question
