"""Families whose layers are of every kind: captured, compared with plain passes, and served."""

import json
from pathlib import Path

import numpy as np
import pytest

import clew
from clew.base.errors import InputError
from clew.hallucination.llm.models import LoadedModel, load_model
from clew.hallucination.llm.passes import PackedModel
from clew.hallucination.traces.schema import KINDS_KEY
from clew.storage.reader import ShardReader
from tests.builders import VOCABULARY, make_decoder, tiny_tokenizer
from tests.families import check_family, tiny_family

# Softmax, sliding window, chunks, latent, indexed, linear, Mamba beside attention and in its place,
# convolution, states without attention, a model without a cache, and one that reads images.
KINDS = {
    "mistral": 4,
    "llama4": 4,
    "deepseek_v3": 4,
    "glm_moe_dsa": 4,
    "qwen3_5": 1,
    "minimax": 2,
    "falcon_h1": 4,
    "granitemoehybrid": 1,
    "lfm2": 1,
    "mamba2": 0,
    "recurrent_gemma": 1,
}


@pytest.mark.slow
@pytest.mark.parametrize("family", KINDS)
def test_family_is_captured_and_served_as_plain_passes_answer(family: str, tmp_path: Path) -> None:
    found = check_family(family, tmp_path)

    assert found.works, found.reason
    assert found.attention_layers == KINDS[family]


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gemma3", "gemma4", "llama4", "mistral3", "qwen3_vl"])
def test_vision_language_model_answers_text_by_its_ordinary_name(
    family: str, tmp_path: Path
) -> None:
    assert check_family(family, tmp_path, images=True).works


def _save(family: str, folder: Path) -> Path:
    for part in (tiny_family(family, vocabulary=VOCABULARY), tiny_tokenizer()):
        part.save_pretrained(folder)
    (folder / "questions.csv").write_text(
        "question,answer\n" + "".join(f"Who is {number}?,me\n" for number in range(40))
    )
    return folder


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a hybrid model, and its traces with full attention maps."""
    folder = _save("qwen3_next", tmp_path_factory.mktemp("hybrid"))
    _extract(folder)
    return folder


def _extract(folder: Path) -> None:
    clew.extract(
        model=str(folder),
        questions=str(folder / "questions.csv"),
        out=str(folder / "traces"),
        max_new_tokens=4,
        keep="full",
        self_evaluation=True,
    )


def _preprocess(folder: Path) -> Path:
    names = [trace["question_id"] for trace in clew.TraceBatchLoader(folder / "traces")]
    rows = (f"{name},{number % 2}\n" for number, name in enumerate(names))
    (folder / "scores.csv").write_text("question_id,score\n" + "".join(rows))
    out = folder / "samples"
    clew.preprocess(str(folder / "traces"), scores_file=str(folder / "scores.csv"), out=str(out))
    return out


@pytest.mark.slow
def test_hybrid_store_has_states_of_all_layers_and_attention_of_some(hybrid: Path) -> None:
    trace = next(iter(clew.TraceBatchLoader(hybrid / "traces")))
    schema = ShardReader(hybrid / "traces" / "batch_0000.arrow").schema

    assert trace.with_attention == (3,)
    assert trace.layer_kinds == ["linear_attention"] * 3 + ["full_attention"]
    assert [one["attention"] for one in json.loads(schema.metadata[KINDS_KEY])] == [0, 0, 0, 1]
    assert trace["last_hidden"].shape[0] == trace["nodes"].shape[0] == 4
    for name in ("lookback", "laplacian_top", "edge_weight", "attentions"):
        assert trace[name].shape[0] == 1
    assert np.allclose(trace["attentions"].astype(np.float32).sum(-1), 1, atol=1e-2)


@pytest.mark.slow
def test_hybrid_answers_that_are_read_again_have_what_was_stored(hybrid: Path) -> None:
    traces = list(clew.TraceBatchLoader(hybrid / "traces"))[:5]
    decoder = make_decoder(load_model(str(hybrid), device="cpu"))
    borders = [trace["prompt_length"] for trace in traces]
    tokens = [trace["tokens"].tolist() for trace in traces]
    parts = [(one[:end], one[end:]) for one, end in zip(tokens, borders, strict=True)]
    _, found = decoder.record([prompt for prompt, _ in parts], [answer for _, answer in parts])

    for row, trace in enumerate(traces):
        for name in ("last_hidden", "lookback"):
            assert np.allclose(getattr(found, name)[row], trace[name], atol=5e-3), name


@pytest.mark.slow
def test_methods_use_the_attention_that_a_hybrid_model_has(hybrid: Path, tmp_path: Path) -> None:
    methods = "lapeigvals,attention_score,lookback,robust,linear_probe,gnn_det"
    found = clew.compare(
        preprocessed_dir=str(_preprocess(hybrid)), methods=methods, out=str(tmp_path), epochs=1
    )

    assert not found.results["excluded"]
    [score] = [one for one in found.results["methods"] if one["method"] == "attention_score"]
    assert score["chosen"] == {"layer": 3}


@pytest.mark.slow
def test_model_without_attention_has_methods_on_states_only(tmp_path: Path) -> None:
    folder = _save("mamba2", tmp_path / "model")
    _extract(folder)
    methods = "perplexity,linear_probe,token_probe,robust,lookback,gnn_det"
    found = clew.compare(
        preprocessed_dir=str(_preprocess(folder)), methods=methods, out=str(tmp_path), epochs=1
    )

    excluded = found.results["excluded"]
    assert {one["method"] for one in excluded} == {"lookback", "gnn_det"}
    assert all("no layer of the model has any" in one["reason"] for one in excluded)


def test_model_whose_tokens_see_later_ones_is_refused() -> None:
    model = tiny_family("xlm", vocabulary=VOCABULARY)

    with pytest.raises(InputError, match="not a causal language model"):
        PackedModel(LoadedModel(model, tiny_tokenizer()).model)
