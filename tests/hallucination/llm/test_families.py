"""Families whose layers are of every kind: captured, compared with plain passes, and served."""

import json
from pathlib import Path

import numpy as np
import pytest

import clew
from clew.base.errors import InputError
from clew.hallucination.live.session import Session
from clew.hallucination.llm.models import LoadedModel, load_model
from clew.hallucination.llm.passes import PackedModel
from clew.hallucination.traces.schema import KINDS_KEY
from clew.storage.reader import ShardReader
from tests.builders import VOCABULARY, make_decoder, tiny_tokenizer
from tests.families import check_family, tiny_family
from tests.hallucination.live.service.serving import MODEL, serving

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


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a hybrid model, its traces with full attention maps, and their samples."""
    return _capture("qwen3_next", tmp_path_factory.mktemp("hybrid"))


@pytest.fixture(scope="module")
def recurrent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same of a model without attention."""
    return _capture("mamba2", tmp_path_factory.mktemp("recurrent"))


def _capture(family: str, folder: Path) -> Path:
    model = tiny_family(family, vocabulary=VOCABULARY)
    # Most answers of a random model would not end.
    model.generation_config.eos_token_id = list(range(0, VOCABULARY, 6))
    for part in (model, tiny_tokenizer()):
        part.save_pretrained(folder)
    (folder / "questions.csv").write_text(
        "question,answer\n" + "".join(f"Who is {number}?,me\n" for number in range(40))
    )
    clew.extract(
        model=str(folder),
        questions=str(folder / "questions.csv"),
        out=str(folder / "traces"),
        max_new_tokens=6,
        keep="full",
        self_evaluation=True,
    )
    names = [trace["question_id"] for trace in clew.TraceBatchLoader(folder / "traces")]
    rows = (f"{name},{number % 2}\n" for number, name in enumerate(names))
    scores = folder / "scores.csv"
    scores.write_text("question_id,score\n" + "".join(rows))
    clew.preprocess(str(folder / "traces"), scores_file=str(scores), out=str(folder / "samples"))
    return folder


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
        preprocessed_dir=str(hybrid / "samples"), methods=methods, out=str(tmp_path), epochs=1
    )

    assert not found.results["excluded"]
    [score] = [one for one in found.results["methods"] if one["method"] == "attention_score"]
    assert score["chosen"] == {"layer": 3}


@pytest.mark.slow
def test_model_without_attention_has_methods_on_states_only(
    recurrent: Path, tmp_path: Path
) -> None:
    methods = "perplexity,linear_probe,token_probe,robust,lookback,gnn_det"
    found = clew.compare(
        preprocessed_dir=str(recurrent / "samples"), methods=methods, out=str(tmp_path), epochs=1
    )

    excluded = found.results["excluded"]
    assert {one["method"] for one in excluded} == {"lookback", "gnn_det"}
    assert all("no layer of the model has any" in one["reason"] for one in excluded)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["hybrid", "recurrent"])
def test_answer_has_the_same_risk_asked_given_and_served(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    folder = request.getfixturevalue(kind)
    clew.compare(
        preprocessed_dir=str(folder / "samples"),
        methods="linear_probe",
        out=str(tmp_path),
        seeds=1,
        keep_at_chance=True,
    )
    detector, model = str(tmp_path / "detector"), load_model(str(folder), device="cpu")
    asked = clew.ask(questions=str(folder / "questions.csv"), detector=detector, model=model)
    given = clew.score(questions=str(folder / "traces"), detector=detector, model=model)

    rows = {row["id"]: row for row in given.table.to_pylist()}
    for one in asked:
        row = rows[one.question.id]
        assert (one.text.strip(), one.state) == (row["answer"], row["state"])
        assert one.risk == pytest.approx(row["risk"], abs=1e-3)
    checked = next(one for one in asked if one.state == "checked")
    messages = [{"role": "user", "content": checked.question.question}]
    with Session.open(detector, model=model) as session, serving(session) as served:
        body = {"model": MODEL, "messages": messages, "temperature": 0}
        status, found, _ = served.fetch("v1/chat/completions", body)
    assert status == 200 and found["choices"][0]["message"]["content"] == checked.text
    assert found["clew"]["risk"] == pytest.approx(checked.risk, abs=1e-3)


def test_model_whose_tokens_see_later_ones_is_refused() -> None:
    model = tiny_family("xlm", vocabulary=VOCABULARY)

    with pytest.raises(InputError, match="not a causal language model"):
        PackedModel(LoadedModel(model, tiny_tokenizer()).model)
