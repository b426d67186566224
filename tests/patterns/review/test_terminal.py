"""The review at a terminal: lines from a pipe, single keys in a real pseudo-terminal."""

import io
import re
import sys
import termios
from pathlib import Path

import pytest
from rich.console import Console

from clew.patterns.library.pattern_set import PatternSet
from clew.patterns.review import Review
from clew.patterns.review.terminal import Dialogue, LineKeys, draw_blocks, open_keys
from tests.patterns.review.making import NAMES, identify, list_photos, make_set, reviewing
from tests.patterns.review.terminals import in_a_terminal


def converse(review: Review, *lines: str) -> str:
    """The review with these lines piped in; returns what was shown."""
    out = io.StringIO()
    console = Console(file=out, width=200, highlight=False)
    piped = io.StringIO("".join(f"{line}\n" for line in lines))
    keys = open_keys(piped, lambda prompt: console.print(prompt, markup=False))
    assert isinstance(keys, LineKeys)
    Dialogue(console, review, keys).run()
    return out.getvalue()


def test_review_accepts_answers_as_lines(animals: PatternSet, photos: Path) -> None:
    with reviewing(animals) as review:
        shown = converse(review, "", "3", "s", "u", "a", "c", "DOG")
        assert review.current is None
    assert review.counts() == {"approved": 2, "corrected": 2}
    added = {"cat/a.png", f"fox/{NAMES[1]}", "fox/c.png", "dog/d.png"}
    assert added < set(list_photos(animals.photos))
    assert "1 of 4  a.png" in shown and str(photos / "a.png") in shown
    assert re.search(r"1 +cat +█+ +30%", shown) and "undone: sub folder/c.png" in shown
    assert f"cat: copied to {animals.photos}/cat/a.png" in shown


def test_new_class_is_created_only_on_confirmation(animals: PatternSet) -> None:
    with reviewing(animals) as review:
        shown = converse(review, "c", "do", "n", "c wolf", "y", "c", "", "c a/b", "q")
        assert review.place == 1 and review.new_classes() == {"wolf": 1}
    assert '"do" is a new class (did you mean dog?): create it? [y/N]' in shown
    assert '"a/b" cannot be the name of a class' in shown
    assert (animals.photos / "wolf" / "a.png").exists()


@pytest.mark.parametrize("end", [("q",), ("Q",), ()])
def test_quitting_keeps_the_rest_for_the_next_time(
    animals: PatternSet, end: tuple[str, ...]
) -> None:
    with reviewing(animals) as review:
        converse(review, "a", *end)
    with reviewing(animals) as review:
        assert [question.name for question in review.queue.questions] == list(NAMES[1:])


def test_invalid_answer_is_explained(animals: PatternSet) -> None:
    with reviewing(animals) as review:
        shown = converse(review, "what?", "7", "u", "q")
        assert review.place == 0
    assert "Enter or a: accept the most likely class" in shown
    assert "there is no class 7" in shown and "there is nothing to undo" in shown


def test_many_classes_are_chosen_by_number_or_name(tmp_path: Path, photos: Path) -> None:
    classes = [f"kind {number:02}" for number in range(30)]
    made = make_set(tmp_path, classes)
    identify(made.folder, photos, classes)
    with reviewing(made) as review:
        shown = converse(review, "12", "c 13", "c kind 29", "q")
    # The three guesses of a photo come first: 1 to 3.
    assert [answer.label for answer in review._made if answer] == [
        *("kind 11", "kind 12", "kind 29")
    ]
    assert "and 21 more: press c and type" in shown


def test_names_cannot_control_the_terminal(animals: PatternSet, photos: Path) -> None:
    identify(animals.folder, photos, names=("\x1b[2J\x1b]0;title\x07 [bold]x[/bold].png",))
    with reviewing(animals) as review:
        shown = converse(review, "a")
    assert "\x1b" not in shown and "\x07" not in shown and "[bold]x[/bold].png" in shown


def test_photo_is_drawn_with_two_pixels_per_character(photos: Path, animals: PatternSet) -> None:
    assert animals.folder.exists()
    text = draw_blocks(photos / "a.png", columns=20, rows=30)
    lines = text.plain.split("\n")
    assert (len(lines), {len(line) for line in lines}) == (10, {20})
    assert len(draw_blocks(photos / "a.png", columns=80, rows=6).plain.split("\n")) == 6


def review_here(animals: PatternSet) -> None:
    before = termios.tcgetattr(0)
    console = Console(force_terminal=True, color_system="truecolor", width=90, height=40)
    with reviewing(animals) as review:
        Dialogue(console, review, open_keys(sys.stdin, console.print)).run()
    assert termios.tcgetattr(0) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("typed", "placed"),
    [
        (
            [("quit", b"\na3sus\n")],
            ["cat/a.png", f"dog/{NAMES[1]}", "fox/c.png"],
        ),  # no Enter needed
        ([("quit", b"\x1b[A\x1bOP2uaq")], ["cat/a.png"]),  # arrow keys mean nothing
        ([("quit", b"c"), ("class: ", b"wolf\n"), ("[y/N]", b"y\n\x04")], ["wolf/a.png"]),
        ([("quit", b"c"), ("class: ", b"do\t\n"), ("quit", b"q")], ["dog/a.png"]),  # Tab completes
        ([("quit", b"c"), ("class: ", b"\x04"), ("nothing changed", b"aq")], ["cat/a.png"]),
    ],
)
def test_review_accepts_single_keys_in_a_real_terminal(
    animals: PatternSet, typed: list[tuple[str, bytes]], placed: list[str]
) -> None:
    shown = in_a_terminal(lambda: review_here(animals), *typed)
    assert "\N{UPPER HALF BLOCK}" in shown and "\x1b[38;2;" in shown  # the photo, in color
    first = {"cat/first.png", "dog/first.png", "fox/first.png"}
    assert set(list_photos(animals.photos)) - first == set(placed)
