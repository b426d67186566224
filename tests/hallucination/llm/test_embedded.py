"""The built-in model: downloaded and converted once per test run, and captured faithfully."""

from pathlib import Path

import numpy as np
import pytest

from clew.hallucination.capture import LoadedModel, load_model
from clew.hallucination.llm.embedded import embedded_model_folder
from clew.hallucination.llm.models import fingerprint
from clew.hallucination.llm.prompts import Encoder, choose_prompt
from tests.builders import make_decoder
from tests.hallucination.detectors.probes.test_attention import eigenvalues
from tests.hallucination.llm.reference import answer_mean, laplacian_diagonal, pass_plainly
from tests.hallucination.llm.test_faithful import TOLERANCE, split

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def embedded(embedded_folder: Path) -> LoadedModel:
    return load_model(str(embedded_folder))


@pytest.mark.sweep
def test_gguf_file_loads_as_the_converted_model(
    embedded_folder: Path, embedded_file: Path, embedded: LoadedModel
) -> None:
    direct = load_model(str(embedded_file))
    assert fingerprint(embedded.model) == fingerprint(direct.model)
    assert embedded.tokenizer.chat_template == direct.tokenizer.chat_template
    assert not list(embedded_folder.parent.glob(".fetch-*"))


def test_second_use_downloads_nothing(
    embedded_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("subprocess.run", None)
    assert embedded_model_folder(cache=embedded_folder.parents[1]) == embedded_folder


def test_states_beyond_single_precision_are_recorded_faithfully(embedded: LoadedModel) -> None:
    """Its states reach 23,000, where float32 itself is coarser than 1e-4: a ragged batch must be as
    close to the exact (float64) values as a plain float32 pass."""
    questions = [f"What is the capital of {'the old ' * (i % 4)}country {i}?" for i in range(6)]
    prompt = choose_prompt(embedded.tokenizer, None, None)
    prompts = list(Encoder(embedded.tokenizer, prompt, 8192).tokenize(questions))
    decoder = make_decoder(embedded, max_new_tokens=6, cut="sentence")
    answers, reduced = decoder.answer(prompts)
    checked = (0, 5)
    tokens = {row: [*prompts[row], *answers[row].tokens] for row in checked}
    plain = {row: pass_plainly(embedded.model, tokens[row]) for row in checked}
    exact_model = embedded.model.double()
    exact = {row: pass_plainly(exact_model, tokens[row]) for row in checked}
    embedded.model.float()
    for row, trace in enumerate(split(prompts, answers, reduced)):
        if row not in checked:
            continue
        single, truth, prompt_length = plain[row].hidden, exact[row], len(prompts[row])
        diagonal = np.diagonal(truth.attention, axis1=-2, axis2=-1)
        assert np.abs(np.exp(trace["attention_log_diagonal"]) - diagonal).max() < TOLERANCE
        laplacian = laplacian_diagonal(truth.attention)
        assert np.abs(trace["laplacian_diagonal"] - laplacian).max() < TOLERANCE
        for name, mine, best in (
            ("last_hidden", single[:, -1], truth.hidden[:, -1]),
            (
                "answer_hidden",
                answer_mean(single, prompt_length),
                answer_mean(truth.hidden, prompt_length),
            ),
        ):
            error, plain_error = np.abs(trace[name] - best).max(), np.abs(mine - best).max()
            assert error < max(TOLERANCE, 3 * plain_error), name


def test_laplacian_diagonals_are_the_eigenvalues(embedded: LoadedModel) -> None:
    questions = ["What is the capital of Peru?", "In which country does the city of Lyon lie?"]
    prompt = choose_prompt(embedded.tokenizer, None, None)
    prompts = list(Encoder(embedded.tokenizer, prompt, 8192).tokenize(questions))
    decoder = make_decoder(embedded, max_new_tokens=6, cut="sentence")
    answers, reduced = decoder.answer(prompts)
    for row, (prompt_tokens, answer) in enumerate(zip(prompts, answers, strict=True)):
        tokens = [*prompt_tokens, *answer.tokens]
        stored = -np.sort(-reduced.laplacian_diagonal[row, ..., : len(tokens)].numpy(), axis=-1)
        expected = eigenvalues(pass_plainly(embedded.model, tokens).attention)
        assert np.abs(stored - expected).max() < 1e-3
