"""Every benchmark runs at its smallest size: figures that nobody can measure again are worth
nothing. The embedded model is replaced by a tiny one."""

import os
import re
import runpy
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import clew
from tests.forking import HANGS_SECONDS, fork
from tests.hallucination.grounded.answers import write_answers
from tests.patterns.networks.making import write_random_lite0
from tests.workspace import inside

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
_PHOTOS = "--size 32 --photos 16 --tuned-size 64 --tuned-photos 8 --many 16 --batch 8 --epochs 2"
_DETECTOR = "--detector comparison/detector"
# The arguments of each, in a folder as the documentation assumes it.
RUNS = {
    "adapt": "--work few --model my-model --sets my_questions.csv --questions more_questions.csv "
    "--method perplexity --labels 20 --draws 2 --next --figures adapt.json",
    "calibration": "--samples preprocessed_data --methods perplexity",
    "cloud": "--quick --rounds 1 --only clew",
    "cluster": "--workers 2 --questions 2000",
    "compact": "--traces 12 --layers 1 --columns",
    "detection": "--work facts --model my-model --questions my_questions.csv --epochs 1 "
    "--methods perplexity,linear_probe --out detection.json",
    "detector": "preprocessed_data --quick --methods robust",
    "device_map": "",
    "dry_run": "--model my-model --set my_questions.csv --questions 60 --threads 1",
    "examples": "--out examples.json",
    "extract": "--quick --llama-7b",
    "families": "--only llama qwen3_next",
    "flags": "--quick --network standard --network gnn_det",
    "grounded": "--data grounded_sets --sets qa news --left-out qa --test qa --model my-model "
    "--epochs 1 --answers 8 --out my-reader --reader my-reader "
    "--part train --part leave-one-out --part test --part speed --figures grounded.json",
    "loader": "--quick --part graphs --only clew PyG --repeats 1 --epochs 1 --seconds 0.1",
    "memory": "--traces 260",
    "patterns": f"{_PHOTOS} --network tiny --repeats 1 --workers 2 --part speed --part decode",
    "patterns_clean": "--data my_photos --seeds 1 --copies 2",
    "patterns_stages": "--data three_photos --set network=tiny --set epochs=1 "
    "--figures photos.json",
    "patterns_unknown": "--data three_photos --hold-out red --network tiny --epochs 1",
    "probes": "--quick",
    "promise": "--work promise --model my-model --sets my_questions.csv "
    "--train-on more_questions.csv my_questions.csv --method linear_probe --draws 20",
    "ray_overhead": "--questions 8 --turns 1 --variants 1 --model my-model",
    "ready": "--work ready_work --out my_ready --model my-model --sets my_questions.csv "
    "more_questions.csv",
    "score": f"{_DETECTOR} --answers 8 --repeats 1 --read-back traces_data",
    "serve": f"{_DETECTOR} --rows 2 --requests 4 --max-new-tokens 4 --repeats 1",
    "sets": "--work sets --model my-model --sets my_questions.csv --questions more_questions.csv "
    "--methods perplexity --seeds 1 --on-cpu 1",
    "tokens": "preprocessed_data",
    "train": "--quick --network gnn_det",
    "unlike": f"{_DETECTOR} --samples preprocessed_data",
}
# Imported or started by others of them.
PARTS = {"fine_tuning_rivals", "range_server", "serve_rivals", "soak"}


def test_every_benchmark_has_a_smallest_size() -> None:
    assert {path.stem for path in BENCHMARKS.glob("*.py")} == {*RUNS, *PARTS}


@pytest.fixture(scope="module")
def folder(workspace: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with what some of them need besides: a detector, three classes of photos, a second
    file of questions, two sets of answers with sources, and weights of the network for photos,
    which are random."""
    folder = Path(shutil.copytree(workspace, tmp_path_factory.mktemp("benchmarks") / "folder"))
    random = np.random.default_rng(0)
    for name in ("blue", "green", "red"):  # enough of them to hold some out
        (folder / "three_photos" / name).mkdir(parents=True)
        for number in range(60):
            photo = Image.fromarray(random.integers(0, 256, (16, 16, 3), np.uint8))
            photo.save(folder / "three_photos" / name / f"{number}.png")
    shutil.copy(folder / "my_questions.csv", folder / "more_questions.csv")
    (folder / "grounded_sets").mkdir()
    for name in ("qa", "news"):
        write_answers(folder / "grounded_sets" / f"{name}.jsonl", 400)
    write_random_lite0(folder / "cache" / "clew")
    with inside(folder):
        clew.compare(preprocessed_dir="preprocessed_data", methods="linear_probe", seeds=1)
    return folder


@pytest.mark.slow
@pytest.mark.benchmark
@pytest.mark.parametrize("name", RUNS)
def test_benchmark_runs(
    name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    output = tmp_path / "output"
    process = fork(_run, name, RUNS[name].split(), folder, output)
    process.start()
    process.join(HANGS_SECONDS)
    text = output.read_text(encoding="utf-8")
    assert process.exitcode == 0, text
    assert re.search(r"\d", text), text


def _run(name: str, words: list[str], folder: Path, output: Path) -> None:
    with output.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    script = BENCHMARKS / f"{name}.py"
    sys.argv, sys.path[0] = [str(script), *words], str(BENCHMARKS)
    with inside(folder):
        runpy.run_path(str(script), run_name="__main__")
