"""Every command that takes the folder of a store takes its URL, with the same result."""

import json
from pathlib import Path
from typing import Any

import pytest

from clew.storage.places import open_place
from tests.object_server import ObjectServer, upload
from tests.workspace import QUESTIONS, inside

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def urls(workspace: Path, object_server: ObjectServer) -> dict[str, str]:
    """The stores of the workspace, by the name of their folder."""
    base = object_server.new_url()
    names = ("traces_data", "preprocessed_data")
    return {name: upload(workspace / name, f"{base}/{name}") for name in names}


@pytest.fixture
def both(
    workspace: Path, urls: dict[str, str], tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> Any:
    """Runs a command twice, with the folder and with its URL; returns what both printed as JSON."""
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda _: str(tmp_path / "cache"))

    def call(command: str, store: str, *more: object, out: str = "") -> tuple[Any, Any]:
        printed = []
        for where, given in (("here", store), ("there", urls[store])):
            words = [*command.split(), given, *more]
            words += ["--out", tmp_path / where / out] if out else []
            with inside(workspace):
                ended = run(*words, "--json")
            assert ended.code == 0, ended.err
            printed.append(json.loads(ended.out))
        return tuple(printed)

    return call


@pytest.mark.parametrize("store", ["traces_data", "preprocessed_data"])
def test_inspect_and_verify(both: Any, urls: dict[str, str], store: str) -> None:
    for command in ("inspect", "verify"):
        here, there = both(command, store)
        assert str(there).replace(urls[store], store) == str(here)


def test_a_damaged_store_is_repaired(
    run: Any, workspace: Path, object_server: ObjectServer
) -> None:
    url = upload(workspace / "traces_data", object_server.new_url())
    place = open_place(url)
    content = bytearray(place.read("batch_0000.arrow", 1 << 24).data)
    content[len(content) // 2] ^= 1
    place.replace("batch_0000.arrow", bytes(content), None)
    found = run("verify", url)
    assert found.code == 1 and "batch_0000.arrow" in found.out + found.err
    assert f"clew verify {url} --repair" in found.out + found.err
    run("verify", url, "--repair")
    with inside(workspace):
        again = run("extract", "--questions", "my_questions.csv", "--out", url)
    assert again.code == 0, again.err
    assert run("verify", url).code == 0


def test_label_and_preprocess(both: Any, tmp_path: Path) -> None:
    both("label", "traces_data", out="scores.csv")
    scores = [(tmp_path / where / "scores.csv").read_text() for where in ("here", "there")]
    assert scores[0] == scores[1]
    here, there = both("preprocess", "traces_data", out="samples")
    assert there["splits"] == here["splits"] and there["samples"] == here["samples"] == QUESTIONS


def test_compare_train_and_score(both: Any, tmp_path: Path) -> None:
    methods = ("--methods", "perplexity,linear_probe,lookback", "--seeds", 1)
    tables = both("compare --preprocessed-dir", "preprocessed_data", *methods, out="table")
    networks = ("--no-run-gnn-det", "--no-run-gvae", "--epochs", 1, "--batch-size", 16)
    plain = ("--no-amp", "--no-compile", "--device", "cpu", "--num-workers", 0)
    trained = both(
        "train --preprocessed-dir", "preprocessed_data", *networks, *plain, out="trained"
    )
    for rows in ([one["methods"] for one in tables], [one["networks"] for one in trained]):
        here, there = ([row["test_auroc"] for row in one] for one in rows)
        assert there == here != []
    detector = ("--detector", tmp_path / "here/table/detector", "--model", "my-model")
    both("score --questions", "traces_data", *detector, out="risks.jsonl")
    risks = [
        [json.loads(line)["risk"] for line in path.read_text().splitlines()]
        for path in (tmp_path / "here/risks.jsonl", tmp_path / "there/risks.jsonl")
    ]
    assert risks[0] == risks[1] and len(risks[0]) == QUESTIONS
