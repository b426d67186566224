"""A detector and a capture inside a real vLLM, where it is installed: `make test-vllm`."""

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from openai import OpenAI

import clew
from clew.base.errors import InputError
from clew.hallucination.capture import ExtractConfig
from clew.hallucination.live.features import Answer
from clew.hallucination.live.session import Session
from clew.hallucination.llm.embedded import embedded_model_folder
from clew.hallucination.llm.recording import Recording, RowRecord
from clew.hallucination.llm.vllm_decoder import STATES
from clew.hallucination.traces.compact import Basis
from clew.hallucination.traces.schema import TraceShape
from tests.hallucination.live.making import read_traces

needs_vllm = pytest.mark.skipif(find_spec("vllm") is None, reason="vllm is not installed")
pytestmark = [
    pytest.mark.slow,
    # vLLM leaves sockets of its own open.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
FIELDS = ("last_hidden", "answer_hidden", "nodes", "token_logprobs", "token_entropies")
START_SECONDS = 600
QUESTIONS = ("What is the capital of Peru?", "Who wrote Emma?", "In which country is Tartu?")


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same questions, answered by the built-in model in clew's own engine and in vLLM."""
    root = tmp_path_factory.mktemp("stores")
    given: dict[str, Any] = {"questions": "facts", "num_samples": 60, "max_new_tokens": 12}
    clew.extract(**given, out=root / "clew")
    clew.extract(**given, out=root / "vllm", basis=root / "clew", engine="vllm")
    return {name: root / name for name in ("clew", "vllm")}


@pytest.fixture(scope="module")
def detector(stores: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("detector")
    scores, samples, out = folder / "scores.csv", folder / "samples", folder / "comparison"
    clew.label(stores["vllm"], out=scores)
    clew.preprocess(stores["vllm"], scores_file=scores, out=samples)
    given: dict[str, Any] = {"methods": "linear_probe,saplma", "seeds": 1, "keep_at_chance": True}
    clew.compare(preprocessed_dir=samples, out=out, engine="vllm", **given)
    return out / "detector"


@pytest.fixture(scope="module")
def served(detector: Path) -> Iterator[str]:
    """The address of `clew serve --engine vllm`."""
    with clew_serving(detector, "--engine", "vllm", "--engine-args", "--max-model-len 512") as one:
        yield one


@contextmanager
def clew_serving(detector: Path, *more: str) -> Iterator[str]:
    command = [sys.executable, "-m", "clew", "serve", str(detector), "--port", "0", *more]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield next(line for line in process.stdout if "page: " in line).split()[1]
        finally:
            process.send_signal(signal.SIGINT)


@pytest.fixture(scope="module")
def plain_vllm() -> Iterator[str]:
    """The address of vLLM's own server, which knows nothing of clew."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager"]
    command += ["--model", str(embedded_model_folder()), "--served-model-name", "small"]
    command += ["--dtype", "float32", "--max-model-len", "512", "--host", "127.0.0.1"]
    address, deadline = f"http://127.0.0.1:{port}/", time.monotonic() + START_SECONDS
    with subprocess.Popen([*command, "--port", port]) as process:
        try:
            while process.poll() is None and time.monotonic() < deadline:
                with suppress(OSError), urllib.request.urlopen(f"{address}health"):
                    yield address
                    return
                time.sleep(1)
            pytest.fail("vLLM did not start")
        finally:
            process.send_signal(signal.SIGINT)


def curl(address: str, **body: Any) -> dict[str, Any]:
    command = ["curl", "--silent", "--fail-with-body", f"{address}v1/chat/completions"]
    command += ["--header", "Content-Type: application/json", "--data", json.dumps(body)]
    found: dict[str, Any] = json.loads(subprocess.check_output(command))
    return found


def ask(address: str, question: str, **more: Any) -> str:
    body = {"messages": [{"role": "user", "content": question}], "temperature": 0, **more}
    request = urllib.request.Request(
        f"{address}v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as response:
        return str(response.read().decode())


@needs_vllm
def test_states_by_vllm_equal_those_of_clews_own_engine(stores: dict[str, Path]) -> None:
    ours, theirs = read_traces(stores["clew"]), read_traces(stores["vllm"])
    assert ours.keys() == theirs.keys()
    for number, trace in ours.items():
        assert trace["tokens"].tolist() == theirs[number]["tokens"].tolist()
        for name in FIELDS:
            both = (np.asarray(one[name], np.float32) for one in (trace, theirs[number]))
            np.testing.assert_allclose(*both, rtol=1e-2, atol=2e-2, err_msg=name)


@needs_vllm
def test_store_says_that_vllm_made_it_without_attention(stores: dict[str, Path]) -> None:
    manifest = json.loads((stores["vllm"] / "manifest.json").read_text())
    assert manifest["settings"]["engine"] == "vllm"
    assert "edge_weight" not in next(iter(read_traces(stores["vllm"]).values()))


@needs_vllm
def test_risk_inside_vllm_equals_that_of_clews_own_engine(served: str, detector: Path) -> None:
    with Session.open(detector) as session:
        for question in QUESTIONS:
            answer = json.loads(ask(served, question, max_tokens=60))
            [choice] = answer["choices"]
            given = Answer(
                prompt=session.encoder.encode(question),
                tokens=[one["id"] for one in answer["clew"]["tokens"]],
                question=question,
                text=choice["message"]["content"],
            )
            [expected] = session.scorer().score_window([given])
            assert choice["finish_reason"] == "stop"
            assert answer["clew"]["state"] == expected.risk.state
            assert answer["clew"]["risk"] == pytest.approx(expected.risk.risk, abs=1e-3)
            assert answer["clew"]["distance"] == pytest.approx(expected.risk.distance, abs=1e-3)


@needs_vllm
def test_answers_of_a_vllm_behind_clew_are_its_own_with_a_risk(
    plain_vllm: str, detector: Path
) -> None:
    messages = [{"role": "user", "content": QUESTIONS[0]}]
    body: dict[str, Any] = {"model": "small", "messages": messages, "temperature": 0, "seed": 1}
    with clew_serving(detector, "--upstream", f"{plain_vllm}v1") as address:
        before, after = curl(plain_vllm, **body), curl(address, **body)
        client = OpenAI(base_url=f"{address}v1", api_key="none")
        chunks = [*client.chat.completions.create(**body, stream=True)]
    checked = after.pop("clew")
    after["choices"][0].pop("clew")
    assert checked["state"] in ("checked", "out_of_distribution") and "risk" in checked
    own = ("id", "created")  # of each request
    assert {**after, **dict.fromkeys(own)} == {**before, **dict.fromkeys(own)}
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(texts) == before["choices"][0]["message"]["content"]
    assert (chunks[-1].model_extra or {})["clew"]["risk"] == pytest.approx(checked["risk"])


@needs_vllm
def test_stream_and_several_answers_have_the_risk_of_each(served: str) -> None:
    events = ask(served, QUESTIONS[0], stream=True, max_tokens=60).split("\n\n")
    chunks = [json.loads(one.removeprefix("data: ")) for one in events if "{" in one]
    assert chunks[-1]["clew"]["state"] in ("checked", "out_of_distribution")
    two = json.loads(ask(served, QUESTIONS[1], n=2, temperature=1.0, seed=1, max_tokens=80))
    assert [len(one["clew"]["tokens"]) > 0 for one in two["choices"]] == [True, True]


@pytest.mark.parametrize("is_ahead", [False, True])
def test_step_of_answers_is_recorded_as_any_pass_is(is_ahead: bool) -> None:
    shape = TraceShape(layers=3, dim=5, heads=2, edges_per_token=2, node_dim=2)
    recording = Recording(shape=shape, basis=None, columns=frozenset(STATES - {"nodes"}))
    rows, states = torch.tensor([4, 0, 2]), torch.randn(4, 3, 3, 5)
    alive = torch.tensor([True, False, True]) if is_ahead else None
    both = [RowRecord(recording, torch.device("cpu"), torch.float32) for _ in range(2)]
    for record in both:
        record.prepare_resize(5, 8)()
    for number, step in enumerate(states):
        places = torch.full((3,), number)
        passed = SimpleNamespace(
            rows=rows, positions=places, last=torch.arange(3), has_kernels=False, segments=()
        )
        both[0].add_states(passed, step.transpose(0, 1), alive)
        both[1].add_step(rows, step, alive)
    for row in rows.tolist():
        plain, by_step = (record.copy(row, 4, 4).tensors for record in both)
        for name, values in plain.items():
            torch.testing.assert_close(by_step[name], values, msg=name)


def test_some_layers_are_recorded_as_if_they_were_among_all() -> None:
    shape = TraceShape(layers=4, dim=5, heads=2, edges_per_token=2, node_dim=2)
    basis = Basis(mean=torch.randn(4, 5), components=torch.randn(4, 5, 2))
    recording = Recording(shape=shape, basis=basis, columns=STATES)
    states, some = torch.randn(4, 3, 5), [1, 3]
    passed = SimpleNamespace(
        rows=torch.zeros(3, dtype=torch.long),
        positions=torch.arange(3),
        last=torch.tensor([2]),
        has_kernels=False,
        segments=(),
    )
    copies = []
    for part, kept in ((recording, states), (recording.of_layers(some), states[some])):
        record = RowRecord(part, torch.device("cpu"), torch.float32)
        record.prepare_resize(1, 4)()
        record.start(0, 1)
        record.add_states(passed, kept, None)
        copies.append(record.copy(0, 3, 2))
    spread = copies[1].spread(some, 4).tensors
    assert {"last_hidden", "answer_sum", "nodes"} == {*spread}
    for name, values in copies[0].tensors.items():
        torch.testing.assert_close(spread[name][:, some], values[:, some], msg=name)
        assert not spread[name][:, [0, 2]].any()


@pytest.mark.parametrize("setting", ["num_beams", "draws"])
def test_capture_by_vllm_refuses_what_it_does_not_do(setting: str) -> None:
    with pytest.raises(InputError, match="vLLM gives states of greedy answers only"):
        ExtractConfig(engine="vllm", **{setting: 2})


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vllm is installed")
def test_without_vllm_the_error_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="pip install"):
        clew.extract(questions="facts", num_samples=2, out=tmp_path / "traces", engine="vllm")
