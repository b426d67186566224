"""Which answers each method accepts as correct."""

import pytest

from clew.hallucination.labels.methods import Method, match_answer

LUXEMBOURG = "What is the capital of Luxembourg?"
CHOICE = "Which is larger, New York or Chicago?"


def alias_score(answer: str, accepted: str | list[str], *, question: str = "") -> float:
    accepted = [accepted] if isinstance(accepted, str) else accepted
    return match_answer("alias", answer, accepted, question).score


def token_f1(answer: str, accepted: str) -> float:
    return match_answer("token-f1", answer, [accepted], "").score


def rouge_l(answer: str, accepted: str) -> float:
    return match_answer("rouge-l", answer, [accepted], "").score


@pytest.mark.parametrize(
    ("answer", "accepted"),
    [
        ("paris", "Paris"),
        ("The capital of France is Paris.", "Paris"),
        ("It was written by the Beatles, in 1967", "The Beatles"),
        ("There are 5 of them", "5"),
        ("On 8.5.1945", "1945"),
        ("About 12,500 people", "12500"),
        ("The symbol of tungsten is W.", "W"),
        ("Vitamin A is needed", "vitamin A"),
        ("It is not Lyon, it is Paris", "Paris"),
        ("It was written by J.R.R. Tolkien.", "J. R. R. Tolkien"),
        ("It was written by C. S. Lewis in 1950.", "C.S. Lewis"),
        ("It is by JK Rowling", "J. K. Rowling"),
        ("Not only Paris", "Paris"),
        ("I am not sure, but Paris", "Paris"),
        ("フランスの首都はパリです", "パリ"),
        ("首都是北京。", "北京"),
        ("عاصمة فرنسا هي باريس.", "باريس"),
        ("It is São Paulo", "Sao Paulo"),
        ("राजधानी दिल्ली है", "दिल्ली"),
        ("It is Me\u0301xico now", "México"),
        ("It is C, from the Latin carbo", "C"),
        ("It is −40 °F there", "-40 °C"),
        ("negative five", "-5"),
        ("It is 5.0.", "5"),
    ],
)
def test_answer_that_contains_an_accepted_one_is_correct(answer: str, accepted: str) -> None:
    assert alias_score(answer, accepted) == 1.0


@pytest.mark.parametrize(
    ("answer", "accepted"),
    [
        ("", "Paris"),
        (" \n", "Paris"),
        ("Parisian cafés", "Paris"),
        ("It is not Paris", "Paris"),
        ("It isn't in the Hague", "The Hague"),
        ("Lyon rather than Paris", "Paris"),
        ("Paris or Rome", "Rome"),
        ("1945", "19"),
        ("in the 1900s", "1900"),
        ("It is 3.5", "5"),
        ("2 million", "2"),
        ("40 degrees", "-40 degrees"),
        ("It is -40.", "40"),
        ("3 - 8 = -5", "5"),
        ("A dog", "A"),
        ("I think so", "I"),
        ("Vitamin C", "Vitamin A"),
        ("パリス", "パリ"),
        ("バリです", "パリ"),
    ],
)
def test_answer_that_only_shares_letters_is_not_correct(answer: str, accepted: str) -> None:
    assert alias_score(answer, accepted) == 0.0


@pytest.mark.parametrize(
    ("answer", "accepted", "question", "score"),
    [
        ("The capital of Luxembourg is Paris.", "Luxembourg", LUXEMBOURG, 0.0),
        ("The capital of Luxembourg is Luxembourg.", "Luxembourg", LUXEMBOURG, 1.0),
        ("Luxembourg", "Luxembourg", LUXEMBOURG, 1.0),
        ("Mexico City is in Peru", "Mexico", "In which country is Mexico City?", 0.0),
        ("New York is larger than Chicago.", "New York", CHOICE, 1.0),
        ("New York or Chicago", "New York", CHOICE, 0.0),
    ],
)
def test_words_repeated_from_the_question_do_not_count(
    answer: str, accepted: str, question: str, score: float
) -> None:
    assert alias_score(answer, accepted, question=question) == score


@pytest.mark.parametrize(
    ("answer", "accepted"),
    [
        ("It is in South Africa.", "Africa"),
        ("It is the Democratic Republic of the Congo.", "Republic of the Congo"),
        ("Guinea-Bissau", "Guinea"),
        ("Papua New Guinea", "Guinea"),
        ("It lies in West Virginia", "Virginia"),
        ("It is in Northern Ireland", "Ireland"),
        ("It was made in East Germany.", "Germany"),
        ("South Vietnam", "Vietnam"),
        ("It lies in South America", "America"),
        ("The South China Sea", "China"),
    ],
)
def test_longer_name_of_another_place_is_not_correct(answer: str, accepted: str) -> None:
    assert match_answer("alias", answer, [accepted], "").reason == "other name"
    assert alias_score(f"It is {accepted}.", accepted) == 1.0


def test_part_of_a_continent_is_in_it() -> None:
    assert alias_score("It is in East Asia.", "Asia") == 1.0


def test_two_accepted_answers_joined_by_or_are_correct() -> None:
    assert alias_score("Burma or Myanmar", ["Myanmar", "Burma"]) == 1.0
    assert alias_score("Burma or Laos", ["Myanmar", "Burma"]) == 0.0
    assert alias_score("James Watson and Francis Crick", ["Watson", "Crick"]) == 1.0


@pytest.mark.slow
@pytest.mark.parametrize(
    "repeated",
    [
        *("not Rome ", "near Rome, ", "the of city ", "is Rome. Wait, ", "I mean Rome "),
        *("1,", "one ", "000 ", "4 May 1990, ", "e\u0301", "is true "),
    ],
)
def test_long_answers_that_repeat_themselves_are_labeled(repeated: str) -> None:
    answer = repeated * (5_000 // len(repeated)) + " end"
    for accepted in (["Rome", "1", "é"], ["yes"]):
        found = match_answer("alias", answer, accepted, "How many cities are there?")
        assert found.score in (0, 1)


@pytest.mark.parametrize("answer", ["1." + "0" * 20_000 + "1", "1" + " " * 20_000, "1" * 20_000])
def test_long_runs_of_one_character_are_labeled(answer: str) -> None:
    assert match_answer("alias", answer, ["2 km"], "").score == 0.0


DENTIST = "Who is the dentist? If the text does not say it, answer “not stated”."


@pytest.mark.parametrize(
    ("answer", "accepted", "question", "reason"),
    [
        ("Lithuania and Latvia", "Latvia", "Which country?", "one of several"),
        ("Norway, Sweden, and Denmark", "Norway", "Which country?", "one of several"),
        ("a carnivore, but some can be omnivores", "carnivore", "", "hedged"),
        ("It is Rome. No, wait, it is Oslo.", "Rome", "", "contradicted"),
        ("Many people think it is Rome.", "Rome", "", "denied"),
        ("A town near Rome", "Rome", "", "aside"),
        ("South Sudan", "Sudan", "", "other name"),
        ("2 carbon atoms and 4 sulfur atoms", "2", "How many sulfur atoms?", "other number"),
        ("Paris, France", "Paris", "Where was it?", "stated"),
        ("Haiti and Cuba", "Haiti", "Which countries are islands?", "stated"),
        (
            "the Centers for Disease Control and Prevention",
            "Centers for Disease Control",
            "",
            "stated",
        ),
        ("red, white and blue", "blue, white and red", "", "same list"),
        ("26.2 miles", "42.195 km", "", "same value"),
        ("It was in 1990.", "May 4, 1990", "When was it?", "same value"),
        ("1990-05-04", "May 4, 1990", "", "equal"),
        ("He cannot swim.", "no", "Can he swim?", "says no"),
        ("That isn't true.", "no", "Can he swim?", "says no"),
        ("That is not false.", "yes", "Can he swim?", "says yes"),
        ("That's right, yes.", "yes", "Can he swim?", "says yes"),
        ("True or false", "yes", "He can swim: true or false?", "contradicted"),
        ("beliefs", "belief", "What is the singular of beliefs?", "absent"),
        ("I'm sorry, but I cannot say.", "Rome", "", "refused"),
        ("The text does not say it.", "not stated", DENTIST, "declines"),
        ("Not stated.", "Anna", DENTIST, "absent"),
    ],
)
def test_reason_says_why_an_answer_is_correct_or_not(
    answer: str, accepted: str, question: str, reason: str
) -> None:
    assert match_answer("alias", answer, [accepted], question).reason == reason


@pytest.mark.parametrize(
    ("method", "score", "accepted"),
    [
        ("alias", 1.0, "cat"),
        ("exact", 0.0, "dog"),
        ("token-f1", 2 * 3 / (5 + 3), "mat cat sat"),
        ("rouge-l", 2 * 2 / (5 + 3), "mat cat sat"),
    ],
)
def test_best_matching_accepted_answer_is_recorded(
    method: Method, score: float, accepted: str
) -> None:
    found = match_answer(method, "The cat sat on the mat today", ["dog", "cat", "mat cat sat"], "")
    assert found[:2] == (score, accepted)


def test_exact_is_equality_after_normalization() -> None:
    assert match_answer("exact", "the PARIS!", ["Paris"], "").score == 1.0
    assert match_answer("exact", "It is Paris", ["Paris"], "").score == 0.0


def test_overlap_matches_hand_computed_values() -> None:
    # 2 of 3 words and 2 of 4: precision 2/3, recall 1/2, F = 4/7.
    assert token_f1("x c b", "b c d e") == pytest.approx(4 / 7)
    # Only one of them in the same order: precision 1/3, recall 1/4, F = 2/7.
    assert rouge_l("x c b", "b c d e") == pytest.approx(2 / 7)
    # A repeated word counts once if the other text has it once.
    assert token_f1("b b", "b") == pytest.approx(2 / 3)


def test_overlap_works_in_other_scripts() -> None:
    assert rouge_l("Столица - Москва", "москва") == pytest.approx(2 / 3)
    assert token_f1("東京", "東京都") == pytest.approx(4 / 5)
    assert token_f1("", "x") == rouge_l("?", "x") == 0.0


FRANCE = "What is the capital of France?"
PARIS = "The capital of France is Paris."


@pytest.mark.parametrize(
    ("answer", "accepted", "question", "score"),
    [
        ("Paris", PARIS, FRANCE, 1.0),
        ("It is Paris, France", PARIS, FRANCE, 1.0),
        ("The capital of France is Lyon.", PARIS, FRANCE, 0.0),
        ("The capital of France is Lyon, not Paris.", PARIS, FRANCE, 0.0),
        ("Paris or Lyon", PARIS, FRANCE, 0.0),
        ("France", PARIS, FRANCE, 0.0),
        ("8", "A spider has eight legs.", "How many legs does a spider have?", 1.0),
        ("Six legs", "A spider has eight legs.", "How many legs does a spider have?", 0.0),
        ("Jupiter", "Jupiter is the largest planet.", "Which planet is the largest?", 1.0),
        ("Saturn", "Jupiter is the largest planet.", "Which planet is the largest?", 0.0),
        ("Yes, it is.", "Yes, a tomato is a fruit.", "Is a tomato a fruit?", 1.0),
        ("No", "Yes, a tomato is a fruit.", "Is a tomato a fruit?", 0.0),
        ("Canberra", "It is Canberra, not Sydney.", "What is the capital of Australia?", 1.0),
        ("Sydney", "It is Canberra, not Sydney.", "What is the capital of Australia?", 0.0),
        ("It was painted by Raphael.", "Leonardo da Vinci did.", "Who painted it?", 0.0),
        ("within 30 days", "You can return items within 30 days.", "What is the policy?", 0.0),
    ],
)
def test_accepted_sentences_match_by_their_content(
    answer: str, accepted: str, question: str, score: float
) -> None:
    found = match_answer("alias", answer, [accepted], question)
    assert (found.score, found.accepted) == (score, accepted)
