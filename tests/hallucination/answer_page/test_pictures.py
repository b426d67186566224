"""Pictures: self-contained, escaped, readable; compared with answers that are not shown."""

import io
import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from clew.base.errors import InputError
from clew.hallucination.answer_page.page import render_page, render_png
from clew.hallucination.answer_page.picture import AttentionGraph
from clew.hallucination.answer_page.store import Judged
from clew.hallucination.legacy.convert import convert_folder
from tests.hallucination.answer_page.making import make_picture, write_scores
from tests.hallucination.legacy.old_files import write_traces

pytestmark = pytest.mark.usefixtures("real_pictures")

NASTY = "</script><script>alert('x')</script> & $x_1$ 日本 \x1b[2J"


class Page(HTMLParser):
    """The elements of a page, and the text in each kind of them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.links: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]

    def handle_data(self, data: str) -> None:
        if self.names:
            self.texts.setdefault(self.names[-1], []).append(data)


def test_page_is_self_contained_and_texts_never_become_markup(
    compact_store: Path, tmp_path: Path
) -> None:
    picture = make_picture(compact_store, tmp_path / "a.html")
    answer = picture.answers[0]
    nasty = replace(
        answer,
        question=NASTY,
        answer=NASTY,
        accepted=(NASTY,),
        category=NASTY,
        texts=(NASTY,) * len(answer.texts),
    )
    html = render_page(replace(picture, answers=(nasty,), store=NASTY), "clew show")
    page = Page(html)
    assert page.names.count("script") == 2 and not page.links
    assert "alert('x')" in "".join(page.texts["dd"])
    assert "\x1b" not in html and "http" not in html.replace("http://www.w3.org/2000/svg", "")
    data = json.loads(page.texts["script"][0])
    assert len(data["graphs"][0]["edges"]) == 3
    assert data["graphs"][0]["texts"][0].startswith("</script>")


@pytest.mark.slow
def test_png_draws_any_text_and_long_lists_at_a_readable_size(
    compact_store: Path, tmp_path: Path
) -> None:
    picture = make_picture(compact_store, tmp_path / "a.png")
    random = np.random.default_rng(0)
    tokens = 3000
    weights = random.random((3, tokens, 4)).astype(np.float32) / 8
    sources = (random.random((3, tokens, 4)) * np.arange(tokens)[:, None]).astype(np.uint16)
    logprobs = np.log(random.random(1000).astype(np.float32))
    long = replace(
        picture.answers[0],
        question=NASTY * 40,
        texts=(NASTY,) * tokens,
        prompt_length=2000,
        graph=AttentionGraph(sources=sources, weights=weights, prompt_length=2000),
        logprobs=logprobs,
        entropies=-logprobs,
    )
    image = Image.open(io.BytesIO(render_png(replace(picture, answers=(long,)), "clew show")))
    assert image.format == "PNG" and image.info["Software"] == "clew show"
    assert 1000 < image.width < 2000 and image.height < 5000


@pytest.mark.slow
def test_answers_with_both_labels_are_shown_side_by_side(
    compact_store: Path, tmp_path: Path
) -> None:
    hallucinated = write_scores(compact_store, tmp_path / "scores.csv")
    picture = make_picture(compact_store, tmp_path / "a.html", scores_file=tmp_path / "scores.csv")
    first, second = picture.answers
    assert {first.kind, second.kind} == {"correct", "hallucinated"}
    assert (first.kind == "hallucinated") == hallucinated[first.number]
    assert picture.latent is not None
    assert [mean.kind for mean in picture.latent.means] == ["correct", "hallucinated"]
    # The answers shown are not among those they are compared with.
    assert sum(mean.answers for mean in picture.latent.means) == 68
    text = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert text.count('class="card hallucinated"') == text.count('class="card correct"') == 1
    alone = make_picture(
        compact_store,
        tmp_path / "b.png",
        beside="none",
        scores_file=tmp_path / "scores.csv",
    )
    assert [answer.number for answer in alone.answers] == [3]


@pytest.mark.slow
def test_probe_output_separates_correct_from_hallucinated(
    compact_store: Path, tmp_path: Path
) -> None:
    hallucinated = write_scores(compact_store, tmp_path / "scores.csv")
    places: dict[bool, list[float]] = {True: [], False: []}
    for number in range(0, 70, 10):
        picture = make_picture(
            compact_store,
            tmp_path / "a.html",
            str(number),
            scores_file=tmp_path / "scores.csv",
            beside="none",
        )
        assert picture.latent is not None and picture.latent.places[0] is not None
        places[hallucinated[number]].append(float(picture.latent.places[0][-1]))
    assert np.mean(places[True]) > np.mean(places[False])


def test_without_scores_the_path_is_compared_with_the_mean_of_all(
    compact_store: Path, tmp_path: Path
) -> None:
    latent = make_picture(compact_store, tmp_path / "a.html").latent
    assert latent is not None and not latent.bands
    assert [(mean.kind, mean.answers) for mean in latent.means] == [(None, 69)]
    assert latent.paths[0] is not None and latent.paths[0].shape == (3, 2)


def test_counterpart_has_the_same_category_and_then_similar_wording() -> None:
    questions = ["capital of Chad", "capital of Mali", "capital of China", "capital of Chad?"]
    judged = Judged(
        numbers=np.arange(10, 14),
        scores=np.array([0, 1, 1, 1], np.float32),
        questions=questions,
        categories=["a", "a", "a", "b"],
        threshold=0.5,
        notes=(),
    )
    assert judged.find_counterpart(10) == 12
    others = replace(judged, categories=["c", "a", "a", "b"])
    assert others.find_counterpart(10) == 13
    assert replace(judged, scores=np.zeros(4, np.float32)).find_counterpart(10) is None
    unknown = replace(judged, scores=np.array([np.nan, 1, 1, 1], np.float32))
    assert unknown.of(10) == (None, None) and unknown.find_counterpart(10) is None


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["html", "png"])
def test_converted_store_is_drawn_as_far_as_possible(tmp_path: Path, ending: str) -> None:
    write_traces(tmp_path / "old", 0, count=3)
    convert_folder(tmp_path / "old", tmp_path / "store")
    picture = make_picture(tmp_path / "store", tmp_path / f"a.{ending}", "1")
    answer = picture.answers[0]
    assert "Abba" in "".join(answer.texts) and answer.graph is not None
    assert answer.logprobs is None
    assert any("token probabilities cannot be shown" in note for note in answer.notes)


@pytest.mark.slow
def test_non_finite_states_hide_their_panel(
    tmp_path: Path,
) -> None:
    from tests.hallucination.legacy.old_files import make_record, write_pickle

    broken = make_record(0)
    broken["hidden_states"][1][:] = np.nan
    records = [broken, *(make_record(seed) for seed in range(1, 4))]
    write_pickle(tmp_path / "old" / "trivia_qa_traces_batch_0000.pkl", records)
    convert_folder(tmp_path / "old", tmp_path / "store")
    picture = make_picture(tmp_path / "store", tmp_path / "a.html", "0")
    assert picture.latent is None
    assert any("non-finite values" in note for note in picture.answers[0].notes)
    other = make_picture(tmp_path / "store", tmp_path / "a.html", "1")
    assert other.latent is not None and other.latent.fitted_on == 2
    assert "1 answer without usable hidden states is excluded from the averages" in other.notes


def test_scores_of_another_store_are_refused(compact_store: Path, tmp_path: Path) -> None:
    scores = tmp_path / "scores.csv"
    scores.write_text("question_id,score\nelsewhere,1\n", encoding="utf-8")
    with pytest.raises(InputError, match="has no score for any answer in the store"):
        make_picture(compact_store, tmp_path / "a.html", scores_file=scores)
