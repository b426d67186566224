"""The attention graph: what is drawn is what the model attended to."""

from pathlib import Path

import numpy as np
import pytest

from clew.hallucination.answer_page.picture import AttentionGraph, fold_rows
from clew.hallucination.traces import TraceBatchLoader


@pytest.mark.slow
def test_edges_and_shares_match_the_attention_maps(full_store: Path) -> None:
    trace = TraceBatchLoader(full_store).get_trace_by_global_id(4)
    assert trace is not None
    border, tokens = trace["prompt_length"], len(trace["tokens"])
    graph = AttentionGraph(
        sources=trace["edge_source"],
        weights=trace["edge_weight"].astype(np.float32),
        prompt_length=border,
    )
    rows = fold_rows(tokens, border, 500)
    for layer in range(3):
        mean = trace["attentions"][layer].astype(np.float32).mean(0)
        edges = graph.edges(layer, rows)
        assert len(edges.weight) > tokens and (edges.source < edges.target).all()
        np.testing.assert_allclose(edges.weight, mean[edges.target, edges.source], atol=2e-3)
        share = graph.shares(layer)
        fourth = np.sort(mean, axis=1)[border:, -4]
        stored = np.where(mean[border:] >= fourth[:, None], mean[border:], 0)
        itself = stored[np.arange(tokens - border), np.arange(border, tokens)]
        assert share.first == pytest.approx(stored[:, 0].mean(), abs=2e-3)
        assert share.itself == pytest.approx(itself.mean(), abs=2e-3)
        assert share.prompt == pytest.approx(stored[:, 1:border].sum(1).mean(), abs=5e-3)
        assert share.unstored == pytest.approx(1 - stored.sum(1).mean(), abs=5e-3)
        assert sum(share) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
    ("tokens", "prompt"), [(5000, 4900), (5000, 100), (5000, 2500), (5000, 0), (40, 30), (1, 1)]
)
def test_long_lists_are_folded_and_no_token_is_lost(tokens: int, prompt: int) -> None:
    rows = fold_rows(tokens, prompt, 120)
    assert len(rows) <= 124 and len(rows.of_token) == tokens
    assert (np.diff(rows.of_token) >= 0).all() and set(rows.of_token) == set(range(len(rows)))
    assert rows.token[0] == 0 and rows.token[-1] == tokens - 1
    shown = int((rows.token >= 0).sum())
    assert shown + sum(rows.folded.values()) == tokens
    if 0 < prompt < tokens:
        assert rows.token[rows.of_token[prompt]] == prompt, "the answer's first token is seen"
        assert rows.token[rows.of_token[prompt - 1]] == prompt - 1


def test_folded_prompt_keeps_its_first_token_and_the_question() -> None:
    rows = fold_rows(40, 30, 120, range(10, 15))
    assert rows.token.tolist() == [0, -1, *range(10, 15), -1, *range(30, 40)]
    assert rows.folded == {1: 9, 7: 15}
    # A single token takes as much room as its fold.
    near = fold_rows(40, 30, 120, range(2, 29))
    assert near.token.tolist() == list(range(40)) and not near.folded


def test_edges_of_folded_tokens_meet_in_their_row() -> None:
    sources = np.tile(np.array([50, 51], np.uint16), (1, 100, 1))
    weights = np.zeros((1, 100, 2), np.float32)
    weights[0, 99] = 0.25
    weights[0, 60:70] = 0.1
    rows = fold_rows(100, 95, 20)
    edges = AttentionGraph(sources=sources, weights=weights, prompt_length=95).edges(0, rows)
    # The edges within the folded row are not seen; what it attends to is the mean of its tokens.
    assert edges.weight.tolist() == [0.5]
    assert int(edges.source[0]) in rows.folded and rows.token[edges.target[0]] == 99


def test_folded_row_attends_to_the_mean_of_its_tokens() -> None:
    sources = np.zeros((1, 100, 1), np.uint16)
    weights = np.full((1, 100, 1), 0.5, np.float32)
    edges = AttentionGraph(sources=sources, weights=weights, prompt_length=95).edges(
        0, fold_rows(100, 95, 20)
    )
    np.testing.assert_allclose(edges.weight, 0.5)
