"""Rows of any table or log are read by the same rules, and a line says what was taken for what."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clew.base.errors import InputError
from clew.hallucination.questions import (
    AnsweredQuestion,
    collect_questions,
    describe_answers,
    load_questions,
    open_records,
    parse_format,
    read_answers,
)
from clew.hallucination.questions.answered import OwnIds

SHARED = Path(__file__).parents[3].parent / "shared/data/grounded"
TICKETS = """Ticket Nr.;Frage;Antwort;Urteil;Datum
7;Größter See Österreichs?;Neusiedler See;richtig;1.1.
7;Größter See Österreichs?;"Der Attersee; glaube ich";falsch;2.1.
8;Höchster Berg?;Großglockner;;
9;Länge der Donau?;;richtig;
;;;;
10;;Ja;falsch;3.1.
"""
MAPPING = {"question": "Frage", "answer": "Antwort", "id": "Ticket Nr.", "label": "Urteil"}
VALUES = "hallucinated=falsch,correct=richtig"


def read(source: Any, **settings: Any) -> list[AnsweredQuestion]:
    rows = open_records(source, parse_format(**settings))
    describe_answers(rows)
    return list(read_answers(rows))


def read_one(record: dict[str, Any], **settings: Any) -> AnsweredQuestion:
    [found] = read([{"question": "q", "answer": "Bern", **record}], **settings)
    return found


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-8-sig", "utf-16", "utf-16-be"])
def test_a_german_spreadsheet_is_read_with_one_mapping(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "tickets.csv"
    path.write_bytes(TICKETS.encode(encoding))
    rows = open_records(path, parse_format(MAPPING, VALUES))
    text = describe_answers(rows).text
    assert text.startswith("tickets.csv (") and '";"): question=Frage, answer=Antwort' in text
    assert "label=Urteil (richtig = correct, falsch = hallucinated)" in text
    assert text.endswith("not used: Datum")
    found = list(read_answers(rows))
    assert [one.id for one in found] == ["7", "7#2", "8", "9", "10"]
    assert [one.hallucinated for one in found] == [False, True, None, False, None]
    assert found[1].answer == "Der Attersee; glaube ich" and found[3].answer == ""
    assert found[4].problem == "row 5: its question is empty"


def test_the_encoding_can_be_given(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("question,answer\nГде?,Тут\n".encode("cp1251"))
    assert read(path, encoding="cp1251")[0].answer == "Тут"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"columns": "frag=Frage"}, 'there is no "frag". Choose from: question, answer'),
        ({"columns": "question=Frge"}, r'has no column "Frge" \(did you mean "Frage"\?\) \(found:'),
        ({"columns": "question"}, 'has no "=": give pairs such as question=Frage'),
        ({"columns": "question=Frage,question=Datum"}, "question is given twice"),
        ({"columns": "question=Frage,id=Frage"}, '"Frage" is given for question and for id'),
        ({"columns": 'id="Ticket'}, "a double quote is not closed"),
        ({"columns": {**MAPPING, "answer": ""}}, "no column with answers to score"),
        ({"columns": {**MAPPING, "question": None}}, "no column with questions"),
        ({"columns": MAPPING}, 'labels richtig, falsch.*"hallucinated=...,correct=..."'),
        ({"columns": MAPPING, "label_values": "correct=richtig"}, "labels richtig, falsch"),
        ({"label_values": "right=richtig"}, 'there is no class "right"'),
        ({"label_values": {"correct": "x", "hallucinated": ["y", "X"]}}, '"X" is given twice'),
        ({"encoding": "klingon"}, "knows no such text encoding"),
        ({"encoding": "hex"}, "knows no such text encoding"),
        ({"columns": MAPPING, "label_values": VALUES, "keep": "Tag"}, 'no column "Tag"'),
    ],
)
def test_a_wrong_mapping_is_one_sentence(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    path = tmp_path / "tickets.csv"
    path.write_bytes(TICKETS.encode("latin-1"))
    with pytest.raises(InputError, match=message) as error:
        read(path, **settings)
    assert "\n" not in str(error.value)


def test_any_number_of_answers_with_one_id_get_ids_of_their_own() -> None:
    own, names = OwnIds(), ["a#3", *["a"] * 20_000]
    found = [own.give(AnsweredQuestion(id=name)).id for name in names]
    assert found[:4] == ["a#3", "a", "a#2", "a#4"] and len({*found}) == len(names)
    assert own.text == "renamed 19,999 answers whose ID is repeated, such as a#2"


@pytest.mark.parametrize("value", [0, 1, True, "yes", "0.0", "maybe", "4", float("inf")])
def test_a_label_that_gives_no_direction_is_an_error(value: object) -> None:
    with pytest.raises(InputError, match=r"give `label_values` as .*`columns=\"label=\"`"):
        read_one({"label": value})
    assert read_one({"label": value}, columns="label=").hallucinated is None
    given = {"hallucinated": value, "correct": "other"}
    assert read_one({"label": value}, label_values=given).hallucinated is True


def test_a_strange_label_after_the_first_rows_is_named_with_its_row() -> None:
    rows = [{"question": "q", "answer": "a", "label": "right"}] * 1500
    with pytest.raises(InputError, match=r'answer 1501: its column "label" has the labels meh'):
        read([*rows, {**rows[0], "label": "meh"}])


@pytest.mark.parametrize("value", ["", None, float("nan"), " ", "n/a", "unsure"])
def test_an_empty_label_is_none(value: object) -> None:
    assert read_one({"hallucinated": value}).hallucinated is None


@pytest.mark.slow
def test_labels_of_a_table_are_read_and_further_columns_are_kept(tmp_path: Path) -> None:
    table = pa.table({"Q": ["a"], "A": ["b"], "ok": [True], "channel": ["web"], "n": [3]})
    pq.write_table(table, tmp_path / "a.parquet")
    settings = {"columns": "question=Q,answer=A,label=ok", "label_values": "correct=true"}
    [found] = read(tmp_path / "a.parquet", **settings, keep="all")
    assert found.hallucinated is False and found.kept == {"channel": "web", "n": 3}
    [found] = read(tmp_path / "a.parquet", **settings, keep=["N"])
    assert found.kept == {"n": 3}
    rows = open_records(tmp_path / "a.parquet", parse_format(**settings))
    assert describe_answers(rows).text.endswith("not used: channel, n")


CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Capital of Norway?"},
    {"role": "assistant", "content": "Oslo."},
    {"role": "user", "content": [{"type": "text", "text": "And of"}, {"text": "Sweden?"}]},
    {"role": "tool", "content": "Sweden: Stockholm"},
    {"role": "assistant", "content": "Stockholm."},
]


@pytest.mark.parametrize("pack", [lambda chat: chat, json.dumps, lambda chat: {"messages": chat}])
def test_a_conversation_is_read_up_to_its_last_answer(pack: Any) -> None:
    [found] = read([{"messages": pack(CHAT), "label": "up", "session_id": 4}])
    assert (found.question, found.answer) == ("And of\nSweden?", "Stockholm.")
    seen = "Be brief.\n\nUser: Capital of Norway?\n\nAssistant: Oslo.\n\nTool: Sweden: Stockholm"
    assert (found.context, found.group, found.hallucinated) == (seen, "4", False)


def test_messages_may_be_the_prompt_of_an_answer() -> None:
    [found] = read([{"prompt": CHAT[:2], "response": "Bergen"}])
    assert (found.question, found.answer) == ("Capital of Norway?", "Bergen")
    assert found.context == "Be brief."
    [question] = collect_questions([{"messages": CHAT}]).questions
    assert (question.question, question.answers) == ("And of\nSweden?", ())


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ("[{", "its messages are not JSON"),
        ([1], "its messages are not a list of records with a role"),
        ([{"role": "assistant", "content": "Hi"}], "no user's message before the answer"),
    ],
)
def test_messages_that_cannot_be_read_exclude_their_row(messages: Any, problem: str) -> None:
    found = read([{"messages": messages}, {"messages": CHAT}])
    assert problem in (found[0].problem or "") and found[1].problem is None


@pytest.mark.parametrize(
    ("spans", "found"),
    [
        ([[1, 3]], ((0, 2, 1),)),
        ("[[1, 3, 0], [3, 5]]", ((0, 2, 0), (2, 4, 1))),
        ([{"start": 1, "end": 5, "text": "Bern", "label_type": "Conflict"}], ((0, 4, 1),)),
        ([{"start": 0, "end": 6, "label": "unsure"}], ((0, 4, -1),)),
        ([], ()),
        (None, None),
        ("", None),
    ],
)
def test_spans_are_placed_in_the_answer_without_spaces_around_it(spans: Any, found: Any) -> None:
    one = read_one({"answer": " Bern ", "spans": spans})
    assert one.problem is None and one.spans == found
    assert one.hallucinated == (None if found is None else any(s[2] == 1 for s in found))


def test_spans_of_a_correct_answer_are_correct() -> None:
    assert read_one({"hallucinated": 0, "spans": [[0, 2]]}).spans == ((0, 2, 0),)


@pytest.mark.parametrize(
    ("spans", "problem"),
    [
        ([[2, 9]], "its span from 2 to 9 is not in the answer, which has 4 characters"),
        ([[2, 2]], "is not in the answer"),
        ([["a", 2]], "has no whole numbers"),
        ([[0, 10**5000]], "has no whole numbers"),
        ([{"start": 0, "end": 2, "text": "Ba"}], 'is "Ba", but "Be" is there'),
        ([[0, 2, "PER"]], 'has the label "PER"'),
        ("[[0", "its spans are not JSON"),
        (7, "its spans are not a list"),
    ],
)
def test_spans_out_of_place_exclude_their_row(spans: Any, problem: str) -> None:
    assert problem in (read_one({"spans": spans}).problem or "")


def test_a_claim_needs_no_question_but_its_source() -> None:
    found = read([{"source": "Oslo is in Norway.", "answer": "Oslo is in Chile."}, {"answer": "a"}])
    assert found[0].question == "" and found[0].context == "Oslo is in Norway."
    assert found[1].problem == "answer 2: it has no question"


def test_a_name_of_a_source_is_no_context() -> None:
    assert read_one({"source": "wikipedia"}).context is None
    assert read_one({"source": {"url": 1}}).context is None
    assert read_one({"source": "wikipedia"}, columns="source=source").context == "wikipedia"


def test_questions_are_read_by_the_same_rules(tmp_path: Path) -> None:
    path = tmp_path / "q.csv"
    path.write_bytes("Frage;Antwort\nWo?;Köln\n".encode("latin-1"))
    lines: list[Any] = []
    format = parse_format("question=Frage,answer=Antwort")
    [question] = load_questions(str(path), None, format, lines.append).questions
    assert (question.question, question.answers) == ("Wo?", ("Köln",))
    assert lines[0].text == 'q.csv (Latin-1, ";"): question=Frage, accepted=Antwort'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a.csv is empty"),
        ("question,answer\n", "a.csv is empty"),
        ("question,answer,answer\nq,a,b\n", 'two columns "answer": .* "answer=answer .2."'),
        ("a b,`out`\nq,a\n", "found: a b, 'out'"),
    ],
)
def test_an_odd_file_is_refused_with_the_reason(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        if not read(tmp_path / "a.csv"):
            load_questions(str(tmp_path / "a.csv"))


def test_the_second_of_two_columns_can_be_chosen(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("question,answer,answer\nq,a,b\n")
    assert read(tmp_path / "a.csv", columns="answer=answer (2)")[0].answer == "b"


def test_a_cell_of_ten_megabytes_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"question,answer,note\nq,a,{'x' * 10_000_000}\nr,b,c\n")
    assert [one.answer for one in read(tmp_path / "a.csv")] == ["a", "b"]


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.exists(), reason="the shared grounded answers are not here")
def test_grounded_answers_are_read_without_any_mapping() -> None:
    for path in sorted(SHARED.glob("*.jsonl.gz")):
        found = read(path)
        assert found and all(one.problem is None and one.context for one in found), path
        assert all(one.group and one.hallucinated is not None for one in found), path
