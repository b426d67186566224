"""A model that accelerate spreads over CPU memory and disk gives the values of one device."""

import json
from pathlib import Path
from typing import Any

import accelerate
import numpy as np
import pytest
import torch

from clew import TraceBatchLoader
from clew.base.errors import InputError
from clew.base.progress import Note
from clew.hallucination.capture import LoadedModel, extract, load_model
from clew.hallucination.live.features import Answer
from clew.hallucination.live.session import Session
from clew.hallucination.llm.device_map import explain_spread, is_spread
from clew.hallucination.llm.models import describe_model
from tests.builders import save_tiny_model
from tests.hallucination.conftest import FitDetector
from tests.stores import one_thread, tiny_config

pytestmark = pytest.mark.slow

LLAMA = {
    "model.embed_tokens": "disk",
    "model.layers.0": "cpu",
    "model.layers.1": "disk",
    "model.layers.2": "disk",
    "model.norm": "cpu",
    "model.rotary_emb": "cpu",
    "lm_head": "disk",
}
GPT2 = {  # its embeddings and its head are the same weights
    "transformer.wte": "disk",
    "transformer.wpe": "cpu",
    "transformer.h": "disk",
    "transformer.ln_f": "cpu",
    "lm_head": "disk",
}


def in_cpu_memory(folder: Path) -> LoadedModel:
    """Every weight is fetched from CPU memory, as it is where a GPU computes."""
    loaded = load_model(str(folder), device="cpu")
    accelerate.cpu_offload(loaded.model, execution_device=torch.device("cpu"))
    return loaded


def capture(folder: Path, questions: Path, out: Path, loaded: LoadedModel) -> Path:
    changes: dict[str, Any] = {"num_samples": 4, "keep": "full", "max_new_tokens": 3}
    with one_thread():
        extract(tiny_config(folder, questions, out, **changes), loaded=loaded)
    return out


@pytest.mark.parametrize(("family", "device_map"), [("llama", LLAMA), ("gpt2", GPT2)])
def test_layers_on_disk_and_in_cpu_memory_give_the_same_store(
    tmp_path: Path, questions_file: Path, family: str, device_map: dict[str, str]
) -> None:
    folder = save_tiny_model(tmp_path / "model", family)
    plain = load_model(str(folder), device="cpu")
    stores = {
        name: capture(folder, questions_file, tmp_path / name, loaded)
        for name, loaded in (
            ("plain", plain),
            ("disk", load_model(str(folder), device_map=device_map)),
            ("memory", in_cpu_memory(folder)),
        )
    }
    for name in ("disk", "memory"):
        assert_same_values(stores[name], stores["plain"])


def assert_same_values(found: Path, expected: Path) -> None:
    """The CPU's float32 kernels round by where a weight lies in memory, which changes when it is
    fetched: logits may differ in their last bits, and all else has fewer bits."""
    for ours, theirs in zip(
        TraceBatchLoader(found).iter_traces(), TraceBatchLoader(expected).iter_traces(), strict=True
    ):
        for column in theirs.keys() - {"batch_number"}:
            mine, other = np.asarray(ours[column]), np.asarray(theirs[column])
            if column in ("token_logprobs", "token_entropies"):
                np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)
            else:
                assert np.array_equal(mine, other), column


def test_a_spread_model_is_the_same_model(tmp_path: Path) -> None:
    """Also after a pass, when accelerate has untied what was tied."""
    folder = save_tiny_model(tmp_path, "gpt2")
    expected = describe_model("m", load_model(str(folder), device="cpu").model, None)
    spread = load_model(str(folder), device_map=GPT2)
    assert describe_model("m", spread.model, None) == expected
    spread.model(torch.zeros(1, 3, dtype=torch.long))
    assert describe_model("m", spread.model, None) == expected
    assert spread.device == torch.device("cpu")


def test_extract_says_where_the_layers_are(
    tmp_path: Path, model_folder: Path, questions_file: Path
) -> None:
    path = tmp_path / "map.json"
    path.write_text(json.dumps(LLAMA))
    changes: dict[str, Any] = {"num_samples": 2, "device": "auto", "device_map": path}
    events: list[Any] = []
    with one_thread():
        extract(tiny_config(model_folder, questions_file, tmp_path / "s", **changes), events.append)
    notes = [event.text for event in events if isinstance(event, Note)]
    assert (
        "layers of the model: 1 in CPU memory, 2 on disk; cpu computes all, and fetches those "
        "weights in every pass" in notes
    )


def test_a_map_that_fits_on_one_device_needs_no_hooks(model_folder: Path) -> None:
    assert not is_spread(load_model(str(model_folder), device_map="auto").model)


def test_live_answers_of_a_spread_model_have_the_same_risks(
    live_model: LoadedModel, fit: FitDetector
) -> None:
    spread = load_model(live_model.name, device_map=LLAMA)
    (tokens, *risks), (same_tokens, *same_risks) = (
        _answer_and_score(one, fit) for one in (live_model, spread)
    )
    assert tokens == same_tokens
    assert risks == pytest.approx(same_risks, abs=1e-6)
    assert "2 on disk" in explain_spread(spread.model)


def _answer_and_score(loaded: LoadedModel, fit: FitDetector) -> tuple[Any, ...]:
    with one_thread(), Session(loaded, fit("fusion"), max_rows=4) as session:
        answer = session.ask("Who wrote it?")
        given = Answer(
            prompt=session.encoder.encode("Who knows?"), tokens=[5, 6, 7], question="Who knows?"
        )
        (scored,) = session.scorer().score([given])
        return answer.tokens, answer.risk, scored.risk


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ("automatic", "there is no such file. Choose from: auto, balanced"),
        ({"model.layers.0": "toaster"}, "toaster"),
        ({"model.(layers": "cpu"}, r"model.\(layers"),
        ({"model.layers.0": "disk"}, "could not be loaded"),
    ],
)
def test_a_wrong_device_map_is_one_sentence(model_folder: Path, given: Any, match: str) -> None:
    with pytest.raises(InputError, match=match):
        load_model(str(model_folder), device_map=given)


def test_a_device_and_a_device_map_are_refused(model_folder: Path) -> None:
    with pytest.raises(InputError, match='device is "cpu": .*device_map'):
        load_model(str(model_folder), device="cpu", device_map="auto")
