"""`draws`: more answers per question from the model's distribution, reproducible in every case."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from clew import TraceBatchLoader
from clew.base.errors import InputError, SettingsMismatchError
from clew.hallucination.capture import ExtractConfig, ExtractResult, LoadedModel, extract
from clew.hallucination.capture.job import trace_bytes
from clew.hallucination.llm.generation import draw_numbers, draw_tokens
from clew.hallucination.llm.memory import BatchPlan
from clew.hallucination.llm.scheduler import Scheduler
from clew.hallucination.traces.schema import TraceShape
from clew.storage.manifest import read_manifest
from tests.builders import VOCABULARY, make_decoder, ragged_prompts, tiny_loaded
from tests.hallucination.llm.reference import pass_plainly
from tests.hallucination.llm.test_faithful import pass_as_on_gpu
from tests.stores import after_one_batch, one_thread, read_columns, tiny_config

PLAN = BatchPlan(rows=12, tokens=10_000)


@pytest.fixture
def capture(model_folder: Path, loaded: LoadedModel, questions_file: Path, tmp_path: Path) -> Any:
    """Captures 12 questions with three drawn answers each into `tmp_path/name`."""

    def run(name: str = "new", **changes: Any) -> ExtractResult:
        should_stop = changes.pop("should_stop", lambda: False)
        settings = {"draws": 3, "num_samples": 12} | changes
        config = tiny_config(model_folder, questions_file, tmp_path / name, **settings)
        with one_thread():
            return extract(config, should_stop=should_stop, loaded=loaded)

    return run


@pytest.fixture(scope="module")
def plain_store(
    tmp_path_factory: pytest.TempPathFactory,
    model_folder: Path,
    loaded: LoadedModel,
    questions_file: Path,
) -> Path:
    """The store of an uninterrupted capture. Shared: do not modify."""
    out = tmp_path_factory.mktemp("plain") / "store"
    config = tiny_config(model_folder, questions_file, out, draws=3, num_samples=12)
    with one_thread():
        extract(config, loaded=loaded)
    return out


def samples_of(store: Path) -> list[list[str]]:
    return [trace["samples"] for trace in TraceBatchLoader(store).iter_traces()]


@pytest.mark.slow
def test_draws_do_not_change_the_rest_of_the_capture(
    capture: Any, plain_store: Path, tmp_path: Path
) -> None:
    capture("without", draws=0)
    drawn = samples_of(plain_store)
    assert {len(samples) for samples in drawn} == {3}
    assert len({text for samples in drawn for text in samples}) > 25
    with_samples = read_columns(plain_store)
    del with_samples["samples"]
    assert with_samples == read_columns(tmp_path / "without")
    generation = read_manifest(plain_store).settings["generation"]
    assert (generation["samples"], generation["sample_temperature"]) == (3, 1.0)
    assert "samples" not in read_manifest(tmp_path / "without").settings["generation"]


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("graphs", [False, True])
def test_draws_equal_those_of_plain_passes(family: str, graphs: bool) -> None:
    """One token at a time, with the whole sequence passed again for each; `graphs`: as on a GPU."""
    prompts = ragged_prompts(5, [40, 41])
    decoder = make_decoder(tiny_loaded(family), max_new_tokens=9)
    decoder.answer_end.end_tokens = list(range(0, VOCABULARY, 9))
    if graphs:
        pass_as_on_gpu(decoder)
    ids = [f"q{i}" for i in range(5)]
    drawn = decoder.draw(prompts, ids, PLAN, count=4, temperature=0.7)
    found = [[list(one.tokens) for one in some] for some in drawn]
    assert len({len(answer) for samples in found for answer in samples}) > 2
    for prompt, question_id, samples in zip(prompts, ids, found, strict=True):
        numbers = draw_numbers(question_id, 4, 9)
        assert samples == [sample_plainly(decoder, prompt, row) for row in numbers]


def sample_plainly(decoder: Any, prompt: list[int], numbers: np.ndarray) -> list[int]:
    answer: list[int] = []
    for number in numbers:
        logprobs = pass_plainly(decoder.model, [*prompt, *answer]).logprobs[-1]
        weights = np.exp(logprobs.astype(np.float64) / 0.7)
        token = int(np.searchsorted(np.cumsum(weights) / weights.sum(), number, side="right"))
        if token in decoder.answer_end.end_tokens:
            break
        answer.append(token)
    return answer


@pytest.mark.slow
def test_draws_at_low_temperature_are_the_greedy_answers(capture: Any, tmp_path: Path) -> None:
    """Near temperature 0 the same tokens are drawn, so they must be cut at the same place."""
    capture(draw_temperature=1e-4, max_new_tokens=24)
    traces = list(TraceBatchLoader(tmp_path / "new").iter_traces())
    assert {"repetition", "length"} <= {trace["stop_reason"] for trace in traces}
    assert [trace["samples"] for trace in traces] == [[trace["answer"]] * 3 for trace in traces]


def test_tokens_are_drawn_with_their_probability() -> None:
    chance = torch.tensor([0.0, 0.5, 0.2, 0.0, 0.3, 0.0])
    numbers = ((torch.arange(1000) + 0.5) / 1000)[:, None]
    drawn = draw_tokens(chance.log().expand(1000, -1), numbers, 1.0)
    assert torch.bincount(drawn, minlength=6).tolist() == [0, 500, 200, 0, 300, 0]
    ends = torch.tensor([[0.0], [1 - 2**-24]])
    assert draw_tokens(chance.log().expand(2, -1), ends, 1.0).tolist() == [1, 4]


@pytest.mark.slow
@pytest.mark.parametrize(
    "change", [{"generation_batch": 2}, {"generation_batch": 5}, {"keep": "full"}]
)
def test_batches_do_not_change_what_is_drawn(
    capture: Any, plain_store: Path, tmp_path: Path, change: dict[str, Any]
) -> None:
    capture(**change)
    assert samples_of(tmp_path / "new") == samples_of(plain_store)


@pytest.mark.slow
def test_stopped_run_draws_the_same_answers(
    capture: Any, plain_store: Path, tmp_path: Path
) -> None:
    while not capture(should_stop=after_one_batch()).finished:
        pass
    assert read_columns(tmp_path / "new") == read_columns(plain_store)


@pytest.mark.slow
def test_out_of_device_memory_while_drawing_halves_the_batch(
    capture: Any, plain_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So little that not even the three draws of one question fit together."""
    run = Scheduler.run

    def limited(batch: Scheduler, requests: Any, on_pass: Any) -> Any:
        if len(requests) > 2 and not requests[0].is_scored:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return run(batch, requests, on_pass)

    monkeypatch.setattr(Scheduler, "run", limited)
    assert capture().finished
    assert any("2 prompts at a time" in note for note in read_manifest(tmp_path / "new").notes)
    assert samples_of(tmp_path / "new") == samples_of(plain_store)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"draws": 4}, "generation.samples: was 3, is now 4"),
        ({"draws": 0}, "generation.samples: was 3, is now None"),
        ({"draw_temperature": 0.5}, "generation.sample_temperature: was 1.0, is now 0.5"),
    ],
)
def test_other_draw_settings_in_the_same_store_are_rejected(
    capture: Any, change: dict[str, Any], sentence: str
) -> None:
    capture(num_samples=5)
    with pytest.raises(SettingsMismatchError, match=sentence):
        capture(**change)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"draws": -1}, "draws is -1: it must be 0 or more"),
        ({"draw_temperature": 0.0}, "draw_temperature is 0.0: it must be greater"),
        ({"draw_temperature": float("nan")}, "draw_temperature is nan: it must be greater"),
    ],
)
def test_invalid_settings_are_rejected(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        ExtractConfig(**wrong)


@pytest.mark.slow
def test_disk_space_of_draws_is_estimated(capture: Any, tmp_path: Path) -> None:
    capture(num_samples=8, draws=40, generation_batch=80)
    store = tmp_path / "new"
    shape = TraceShape(layers=3, dim=32, heads=4, node_dim=4, edges_per_token=4)
    foreseen = [
        trace_bytes(shape, "compact", 16, len(trace["tokens"]), 40 * 6)
        for trace in TraceBatchLoader(store).iter_traces()
    ]
    assert read_manifest(store).bytes < sum(foreseen)
