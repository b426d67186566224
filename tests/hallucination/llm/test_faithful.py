"""What is recorded equals a plain pass over the same tokens, at every batch size."""

import gc
from collections.abc import Iterator
from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from clew.hallucination.llm import fused
from clew.hallucination.llm.decoder import Decoder, answer_with_beams, batching_error
from clew.hallucination.llm.models import LoadedModel
from clew.hallucination.llm.observe import record_fully
from clew.hallucination.llm.prompts import Cut
from clew.hallucination.llm.requests import Finished
from clew.hallucination.llm.scheduler import BATCH_CHUNK
from clew.hallucination.traces.compact import COLUMNS, Reduced
from tests.builders import VOCABULARY, make_decoder, pass_as_on_gpu, ragged_prompts, tiny_loaded
from tests.hallucination.llm.reference import (
    PlainPass,
    answer_mean,
    laplacian_diagonal,
    lookback,
    pass_plainly,
)

pytestmark = pytest.mark.slow

TOLERANCE = 1e-4
BATCH_SIZES = (1, 2, 7, 32)
LARGE = 130  # passed in several parts


@pytest.fixture(scope="module", params=["llama", "gpt2", "qwen2", "opt"])
def loaded(request: pytest.FixtureRequest) -> LoadedModel:
    return tiny_loaded(request.param)


@pytest.mark.parametrize("size", [*BATCH_SIZES, LARGE])
@pytest.mark.parametrize("prefix_length", [0, 5])
def test_batches_equal_plain_passes(loaded: LoadedModel, size: int, prefix_length: int) -> None:
    prefix = list(range(40, 40 + prefix_length))
    prompts = ragged_prompts(size, prefix)
    decoder = make_decoder(loaded)
    answers, reduced = decoder.answer(prompts)
    assert worst_error(decoder, prompts, answers, reduced) < TOLERANCE


@pytest.mark.parametrize("cut", ["none", "sentence"])
def test_fixed_shape_passes_of_a_gpu_equal_plain_passes(loaded: LoadedModel, cut: Cut) -> None:
    prompts = ragged_prompts(9, [40, 41])
    decoder = make_decoder(loaded, cut=cut, max_new_tokens=20)
    expected = [answer.tokens for answer in decoder.answer(prompts)[0]]
    answers, reduced = pass_as_on_gpu(decoder).answer(prompts)
    assert [answer.tokens for answer in answers] == expected
    assert worst_error(decoder, prompts, answers, reduced) < TOLERANCE


@pytest.mark.parametrize("graphs", [False, True])
def test_answers_of_different_lengths_equal_plain_passes(loaded: LoadedModel, graphs: bool) -> None:
    prompts = ragged_prompts(9, [40, 41])
    decoder = make_decoder(loaded, max_new_tokens=20)
    decoder.answer_end.end_tokens = list(range(0, VOCABULARY, 5))
    if graphs:
        pass_as_on_gpu(decoder)
    answers, reduced = decoder.answer(prompts)
    assert len({len(answer.tokens) for answer in answers}) > 2
    assert worst_error(decoder, prompts, answers, reduced) < TOLERANCE


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="PyTorch multiplies without MKL")
@pytest.mark.parametrize("family", ["llama", "qwen2", "opt"])
@pytest.mark.parametrize("size", BATCH_SIZES)
def test_products_of_few_tokens_equal_plain_passes(
    family: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused, "_LEAST_WEIGHTS", 1)
    prompts = ragged_prompts(size, [40, 41])
    decoder = make_decoder(tiny_loaded(family))
    assert fused.fused_parts(decoder.model).count and decoder.packed.packs
    answers, reduced = decoder.answer(prompts)
    assert worst_error(decoder, prompts, answers, reduced) < TOLERANCE


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="PyTorch multiplies without MKL")
def test_a_layer_that_cannot_read_such_products_gets_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def multiply(layer: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
        found = torch.nn.functional.linear(x, layer.weight, layer.bias)
        return found if x.shape[-2] < 8 else found.view(-1)

    monkeypatch.setattr(fused, "_LEAST_WEIGHTS", 1)
    monkeypatch.setattr(fused, "_multiply", multiply)
    decoder = make_decoder(tiny_loaded("llama"))
    assert decoder.packed.packs and not fused.fused_parts(decoder.model).count


def test_a_model_is_left_as_it_was() -> None:
    loaded = tiny_loaded("llama")
    make_decoder(loaded).answer(ragged_prompts(9))
    gc.collect()
    assert not any(module._forward_hooks for module in loaded.model.modules())
    assert not any("forward" in vars(module) for module in loaded.model.modules())


def test_long_prompts_are_passed_in_chunks(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BATCH_CHUNK, "cpu", 7)
    prompts = ragged_prompts(7)
    decoder = make_decoder(loaded)
    answers, reduced = decoder.answer(prompts)
    assert worst_error(decoder, prompts, answers, reduced) < TOLERANCE


def test_beam_search_answers_equal_plain_passes(loaded: LoadedModel) -> None:
    prompts = ragged_prompts(5, [40, 41, 42])
    decoder = make_decoder(loaded)
    answers, reduced = answer_with_beams(decoder, prompts, 3)
    assert worst_error(decoder, prompts, answers, reduced) < TOLERANCE


@pytest.mark.parametrize("prefix_length", [0, 5])
def test_answers_to_the_same_prompt_equal_plain_passes(
    loaded: LoadedModel, prefix_length: int
) -> None:
    decoder = make_decoder(loaded)
    different = ragged_prompts(3, list(range(40, 40 + prefix_length)))
    prompts = [different[0], different[0], different[0], different[1], different[2], different[2]]
    given = [[9, 8, 7], [4], [9, 8, 7, 6, 5], [3, 2], [1], [1, 2, 3, 4]]
    passed: list[int] = []
    with decoder.watched(passed.append):
        answers, reduced = decoder.read(prompts, [(tokens, "end") for tokens in given])
    assert worst_error(decoder, prompts, answers, reduced) < TOLERANCE
    # Of each prompt, all but the last token pass once, and what all start with.
    once = sum(len(one) - 1 for one in different) - 2 * prefix_length
    if decoder.packed.packs:
        assert sum(passed) == once + sum(1 + len(tokens) for tokens in given)


def test_cut_answers_are_recorded_as_cut() -> None:
    """This random model soon repeats itself; repetitions are not part of the trace."""
    loaded = tiny_loaded("llama")
    prompts = ragged_prompts(12, [40, 41])
    decoder = make_decoder(loaded, cut="sentence", max_new_tokens=40)
    answers, reduced = decoder.answer(prompts)
    assert "repetition" in {answer.ended for answer in answers}
    assert worst_error(decoder, prompts, answers, reduced) < TOLERANCE


def test_full_traces_equal_plain_passes(loaded: LoadedModel) -> None:
    sequences = ragged_prompts(7)
    record = record_fully(loaded.model, make_decoder(loaded).observer, sequences, torch.float32)
    for row, tokens in enumerate(sequences):
        plain = pass_plainly(loaded.model, tokens)
        assert np.abs(record.hidden_states(row).numpy() - plain.hidden).max() < TOLERANCE
        assert np.abs(record.attentions(row).numpy() - plain.attention).max() < TOLERANCE


def test_check_before_a_run_detects_wrong_positions(loaded: LoadedModel) -> None:
    decoder = make_decoder(loaded)
    prompts = ragged_prompts(3)
    assert batching_error(decoder, prompts) < 1e-4
    decoder.packed._arguments = lambda positions, keep: {  # positions as if it were one sequence
        "position_ids": torch.arange(positions.shape[1]).expand_as(positions),
        "logits_to_keep": keep,
    }
    assert batching_error(decoder, prompts) > 1e-2


def worst_error(
    decoder: Decoder, prompts: list[list[int]], answers: list[Finished], reduced: Reduced
) -> float:
    """The largest absolute difference of any recorded number from its definition."""
    worst = 0.0
    traces = split(prompts, answers, reduced)
    for prompt, answer, trace in zip(prompts, answers, traces, strict=True):
        plain = pass_plainly(decoder.model, [*prompt, *answer.tokens])
        worst = max(worst, *(difference for _, difference in differences(decoder, trace, plain)))
        rows = plain.logprobs[len(prompt) - 1 : -1] if answer.tokens else plain.logprobs[:0]
        chosen = rows[np.arange(len(answer.tokens)), answer.tokens]
        entropy = -(np.exp(rows) * rows).sum(-1)
        if answer.tokens:
            worst = max(worst, np.abs(chosen - answer.logprobs).max())
            worst = max(worst, np.abs(entropy - answer.entropies).max())
    return worst


def differences(decoder: Decoder, trace: dict, plain: PlainPass) -> Iterator[tuple[str, float]]:
    basis, k = decoder.basis, decoder.shape.edges_per_token
    nodes = (plain.hidden - basis.mean.numpy()[:, None]) @ basis.components.numpy()
    mean = plain.attention.mean(1)
    strongest = -np.sort(-mean, axis=-1)[..., :k]
    strongest = np.pad(strongest, [(0, 0), (0, 0), (0, k - strongest.shape[-1])])
    at_source = np.take_along_axis(mean, trace["edge_source"].astype(int), axis=-1)
    expected = {
        "last_hidden": plain.hidden[:, -1],
        "answer_hidden": answer_mean(plain.hidden, trace["prompt_length"]),
        "nodes": nodes,
        "edge_weight": strongest,
        "laplacian_diagonal": laplacian_diagonal(plain.attention),
        "lookback": lookback(plain.attention, trace["prompt_length"]),
    }
    for name, value in expected.items():
        yield name, float(np.abs(trace[name] - value).max())
    diagonal = np.diagonal(plain.attention, axis1=-2, axis2=-1)
    yield "diagonal", float(np.abs(np.exp(trace["attention_log_diagonal"]) - diagonal).max())
    real = trace["edge_weight"] > 0
    yield "edge_source", float(np.abs((at_source - trace["edge_weight"])[real]).max())


def split(prompts: list[list[int]], answers: list[Finished], reduced: Reduced) -> Iterator[dict]:
    """The fields of a batch as one dict per trace, without padding."""
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        tokens = len(prompt) + len(answer.tokens)
        found = {field.name: getattr(reduced, field.name)[row].numpy() for field in fields(reduced)}
        for name in ("nodes", "edge_weight", "edge_source"):
            assert not found[name][:, tokens:].any()
            found[name] = found[name][:, :tokens]
        for name in ("attention_log_diagonal", "laplacian_diagonal"):
            assert not found[name][..., tokens:].any()
            found[name] = found[name][..., :tokens]
        yield {"prompt_length": len(prompt), **found}


@pytest.mark.parametrize("column", sorted(COLUMNS))
def test_recording_one_column_gives_the_same_values(column: str) -> None:
    names = {"edges": ("edge_source", "edge_weight")}.get(column, (column,))
    decoder = make_decoder(tiny_loaded())
    prompts = ragged_prompts(3, prefix=[5, 6, 7])
    answers = [[9, 8, 7], [4], []]
    _, whole = decoder.record(prompts, answers)
    decoder.recording = replace(decoder.recording, columns=frozenset([column]))
    scores, some = decoder.record(prompts, answers)
    for name in names:
        assert torch.allclose(getattr(some, name), getattr(whole, name), atol=1e-5), name
    others = {field.name for field in fields(some)} - {*names}
    assert not any(getattr(some, name).numel() for name in others)
    assert [len(logprobs) for logprobs, _ in scores] == [3, 1, 0]
