"""clew train: the command lines of the older scripts, what it prints, its exit codes."""

import json
import os
import re
import shlex
import signal
import socket
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from clew.cli import build_app, main
from clew.hallucination.detectors.registry import NETWORKS, USUAL_NETWORKS
from clew.hallucination.detectors.training.settings import TrainRunConfig
from tests.engine.children import start, wait, wait_until
from tests.hallucination.detectors.training.making import write_learnable
from tests.hallucination.samples.trace_stores import write_scores

QUICK = ("--lstm-hidden", 4, "--num-lstm-layers", 1, "--device", "cpu", "--num-workers", 0)


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_learnable(tmp_path_factory.mktemp("samples") / "preprocessed_data", rows=40)


@pytest.fixture
def folder(samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of a user, with samples where `clew preprocess` puts them."""
    (tmp_path / "preprocessed_data").symlink_to(samples)
    monkeypatch.chdir(tmp_path)
    return tmp_path


# The lines that users of the older scripts have, with `clew train` in place of the script.
LINES = {
    "--preprocessed-dir preprocessed_data --epochs 1 --batch-size 32": {"epochs": 1, "batch": 32},
    "--preprocessed-dir preprocessed_data --epochs 50 --batch-size 16": {"epochs": 50, "batch": 16},
    "--preprocessed-dir preprocessed_data --max-cache-batches 1 --epochs 50": {"cache": 1},
    "--preprocessed-dir preprocessed_data --max-cache-batches 4 --epochs 50": {"cache": 4},
    "--preprocessed-dir preprocessed_data --max-cache-batches 2": {"cache": 2},
    "--preprocessed-dir preprocessed_data --max-cache-batches 1 --batch-size 8": {
        "cache": 1,
        "batch": 8,
    },
    "--preprocessed-dir preprocessed_data --max-cache-batches 2 --run-lstm --no-run-gnn-det "
    "--no-run-gvae --epochs 50": {"networks": ("lstm",)},
    "--preprocessed-dir preprocessed_data --max-cache-batches 2 --no-run-lstm --run-gnn-det "
    "--run-gvae --epochs 50": {"networks": ("gnn_det", "gvae")},
    "--preprocessed-dir preprocessed_data --max-cache-batches 2 --no-run-lstm --no-run-gnn-det "
    "--run-gvae --epochs 50 --output-dir results_gvae": {"networks": ("gvae",)},
    '--data-pattern "traces_data/*.pkl*" --scores-file ground_truth_scores.csv --epochs 50': {
        "pattern": "traces_data/*.pkl*"
    },
    "--epochs 30 --no-amp": {"amp": False},
    "--epochs 30 --no-compile": {"compile": False},
    "--num-workers 4": {"workers": 4},
    "--no-channels-last": {"channels_last": False},
    "--epochs 30 --batch-size 8 --use-gradient-checkpointing": {"checkpointing": True},
    "--epochs 30 --batch-size 32 --use-amp --use-compile --num-workers 2": {
        "amp": True,
        "compile": True,
        "workers": 2,
    },
    "--epochs 50 --batch-size 8 --use-gradient-checkpointing --grad-accum 2": {"accum": 2},
    "--epochs 50 --batch-size 32 --use-amp --use-compile --num-workers 4 --focal-loss "
    "--label-smoothing 0.1": {"focal": True, "smoothing": 0.1},
    "--epochs 30 --num-workers 0": {"workers": 0},
}


@pytest.mark.parametrize("line", LINES)
def test_command_lines_of_the_older_scripts_work(
    run: Any, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("preprocessed_data", "traces_data"):
        (tmp_path / name).mkdir()
    for name in ("traces_data/batch_0000.pkl", "ground_truth_scores.csv"):
        (tmp_path / name).touch()
    caught: list[TrainRunConfig] = []
    monkeypatch.setattr(
        "clew.hallucination.detectors.training.train.train_detectors",
        lambda config, *_: caught.append(config) or [],
    )
    ended = run("train", *shlex.split(line))
    assert ended.code == 0, ended.err
    [config] = caught
    understood = {
        "epochs": config.train.epochs,
        "networks": config.networks,
        "pattern": config.data_pattern,
        "batch": config.request.batch_size,
        "cache": config.request.max_cache_batches,
        "amp": config.request.amp,
        "compile": config.request.compile,
        "channels_last": config.request.channels_last,
        "workers": config.request.num_workers,
        "accum": config.request.grad_accum,
        "checkpointing": config.request.gradient_checkpointing,
        "focal": config.loss.focal,
        "smoothing": config.loss.label_smoothing,
    }
    assert understood | LINES[line] == understood


@pytest.mark.slow
def test_train_reports_its_progress_and_result(run: Any, folder: Path) -> None:
    line = (
        "train --preprocessed-dir preprocessed_data --epochs 2 --batch-size 16 "
        "--max-cache-batches 2 --run-lstm --no-run-gnn-det --no-run-gvae --output-dir results_lstm"
    )
    ended = run(*line.split(), *QUICK)
    assert ended.code == 0, ended.err
    assert re.match(r"LSTM \(1 of 1\)\n.* finding the fastest settings\nchoice ", ended.out)
    assert re.search(
        r"^max_cache_batches +2 +requested with --max-cache-batches 2 *$", ended.out, re.M
    )
    stamp, figure, count = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  ", r"\d\.\d{3}", r"[\d.,]+"
    epoch = (
        rf"^{stamp}epoch [12]/2, loss {figure}, validation loss {figure}, AUROC {figure}, "
        rf"{count} samples/s, \d+ s left, \d+% waiting for data, {count} [MG]B$"
    )
    assert len(re.findall(epoch, ended.out, re.M)) == 2, ended.out
    assert re.search(rf"^LSTM +{figure} +{figure} +{figure} +[12] of 2 ", ended.out, re.M)
    assert ended.out.endswith(
        "all metrics: results_lstm/results.json\n"
        "weights, log.csv, curves.png, TensorBoard logs: results_lstm/NETWORK (lstm)\n"
    )
    results = json.loads((folder / "results_lstm" / "results.json").read_text())
    assert [entry["model"] for entry in results["runs"]] == ["lstm"]
    again = run(*line.split(), *QUICK)
    assert again.code == 0
    assert "already trained: best epoch " in again.out and "epoch 1/2" not in again.out
    quiet = run(*line.split(), *QUICK, "--quiet")
    assert quiet.out.startswith("network ")
    assert quiet.out.endswith("all metrics: results_lstm/results.json\n")


@pytest.mark.slow
def test_three_networks_are_trained_by_default(run: Any, folder: Path) -> None:
    flags = (
        "--epochs 1 --batch-size 16 --grad-accum 2 --no-amp --no-compile --no-channels-last "
        "--use-gradient-checkpointing --focal-loss --label-smoothing 0.1 --class-weights "
        "--gnn-hidden 6 --latent-dim 3 --dropout 0.1 --kl-weight 0.01 "
        "--reconstruction-weight 0.2 --lr 0.002 --patience 0 --seed 7"
    )
    ended = run("train", *flags.split(), *QUICK)
    assert ended.code == 0, ended.err
    runs = json.loads((folder / "results" / "results.json").read_text())["runs"]
    assert [entry["model"] for entry in runs] == list(USUAL_NETWORKS)
    for entry in runs:
        assert entry["plan"]["grad_accum"] == 2 and entry["plan"]["gradient_checkpointing"]
        assert entry["loss"]["focal_gamma"] == 2 and entry["loss"]["label_smoothing"] == 0.1
        assert entry["loss"]["positive_weight"] == pytest.approx(2, abs=0.2)
        assert entry["config"]["dropout"] == 0.1 and entry["config"]["lstm_hidden"] == 4
        assert (entry["seed"], entry["train"]["lr"], entry["train"]["patience"]) == (7, 0.002, None)
    gvae = runs[2]["config"]
    assert (gvae["gnn_hidden"], gvae["latent_dim"], gvae["kl_weight"]) == (6, 3, 0.01)


@pytest.mark.slow
def test_training_accepts_traces_and_scores_instead_of_samples(
    run: Any, compact_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    scores = write_scores(tmp_path / "ground_truth_scores.csv", 70)
    scores.write_text(scores.read_text().replace("score", "hallucination", 1))
    ended = run(
        *("train", "--data-pattern", compact_store, "--scores-file", scores),
        *("--score-threshold", 0.6, "--epochs", 1, "--no-run-lstm", "--no-run-gvae", *QUICK),
    )
    assert ended.code == 0, ended.err
    data = json.loads((tmp_path / "results" / "results.json").read_text())["data"]
    assert sum(split["hallucinated"] for split in data.values() if isinstance(split, dict)) == 42
    # Once, not once per split.
    assert ended.out.count("is taken to mean more likely hallucinated") == 1


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
def test_terminal_shows_a_bar(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("clew.engine.loop._REPORT_EVERY_SECONDS", 0)
    text = run("train", "--epochs", 2, "--no-run-gnn-det", "--no-run-gvae", *QUICK).out
    line = r"epoch 2/2, AUROC \d\.\d+, [\d,]+ samples/s, [^,]+ left, \d+% waiting for data, "
    assert re.search(line, text)
    assert "finding the fastest settings" in text and "best epoch " in text


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--preprocessed-dir", "nowhere"], 'there is no folder "nowhere"'),
        (["--no-run-lstm", "--no-run-gnn-det", "--no-run-gvae"], "no network to train"),
        (["--latent-dim", "4", "--no-run-gvae"], "--latent-dim is 4: this is a setting of gvae"),
        (["--scores-file", "s.csv"], '--scores-file is "s.csv": it only applies to --data-pattern'),
        (["--data-pattern", "traces"], "Give their scores as well, with --scores-file"),
        (["--label-smoothing", "2"], "--label-smoothing is 2.0"),
        (["--dropout", "1"], "dropout is 1.0"),
        (["--lr", "0"], "lr is 0.0"),
        (["--epochs", "0"], "epochs is 0"),
        (["--patience", "-1"], "patience is -1"),
        (["--seed", "-1"], "seed is -1"),
        (["--batch-size", "0"], "--batch-size is 0"),
        (["--lstm-hidden", "0"], "--lstm-hidden is 0"),
        (["--device", "abacus"], "abacus"),
        (["--output-dir", "/dev/null/results"], "cannot be created"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_wrong_input_gets_one_message(
    run: Any, folder: Path, options: list[str], sentence: str
) -> None:
    ended = run("train", *options)
    assert ended.code == 2, ended.err
    assert ended.err.startswith("clew: ") and sentence in ended.err
    assert not (folder / "results").exists()


@pytest.mark.slow
def test_changed_settings_require_overwrite(run: Any, folder: Path) -> None:
    line = ("train", "--epochs", 1, "--no-run-gnn-det", "--no-run-gvae", *QUICK)
    assert run(*line).code == 0
    ended = run(*line, "--seed", 3)
    assert ended.code == 1
    assert "config.seed: was 0, is now 3" in ended.err
    assert "--overwrite to start over" in ended.err
    assert run(*line, "--seed", 3, "--overwrite").code == 0
    assert json.loads((folder / "results/results.json").read_text())["runs"][0]["seed"] == 3


LONG = ("train", "--epochs", 2000, "--patience", 0, "--no-run-gnn-det", "--no-run-gvae", *QUICK)


def call(
    words: tuple[object, ...], output: Path, environment: dict[str, str] | None = None
) -> None:
    """In a child: the command as the shell starts it, what it prints in a file."""
    os.environ.update(environment or {}, COLUMNS="300")
    descriptor = os.open(output, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdout = sys.stderr = os.fdopen(descriptor, "w", buffering=1)
    sys.argv = ["clew", *map(str, words)]
    main()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_stops_the_run_safely(folder: Path, number: signal.Signals) -> None:
    child = start(call, (*LONG, "--overwrite"), folder / "said.txt")
    log = folder / "results" / "lstm" / "log.csv"
    wait_until(lambda: log.exists() and len(log.read_text().splitlines()) > 2, child)
    os.kill(child.pid, number)
    assert wait(child) == 128 + number
    said = (folder / "said.txt").read_text()
    assert "stopping: everything is saved after this step" in said
    told = re.search(r"^stopped in epoch \d+, after step .* To resume: (.*)$", said, re.M)
    assert told and shlex.split(told[1]) == ["clew", *map(str, LONG)]
    assert "Traceback" not in said
    again = start(call, LONG, folder / "again.txt")
    wait_until(lambda: "resuming after step " in read(folder / "again.txt"), again)
    os.kill(again.pid, signal.SIGKILL)
    assert wait(again) == -signal.SIGKILL


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


@pytest.mark.slow
def test_two_processes_match_results_of_one_and_only_the_first_prints(
    run: Any, folder: Path
) -> None:
    line = ("train", "--epochs", 2, "--batch-size", 16, "--dropout", 0, "--no-run-gvae", *QUICK)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = [
        start(call, (*line, "--output-dir", "two"), folder / f"{rank}.txt", torchrun(rank, port))
        for rank in (0, 1)
    ]
    assert [wait(child) for child in children] == [0, 0], read(folder / "0.txt")
    assert "epoch 2/2, " in read(folder / "0.txt") and read(folder / "1.txt") == ""
    assert run(*line, "--output-dir", "one").code == 0
    two, one = (
        json.loads((folder / name / "results.json").read_text())["runs"] for name in ("two", "one")
    )
    for ours, single in zip(two, one, strict=True):
        assert ours["plan"]["processes"] == 2
        for figure in ("test_auroc", "test_loss", "test_f1", "best_val_auroc"):
            assert ours[figure] == pytest.approx(single[figure], abs=1e-4), ours["model"]


@pytest.mark.slow
def test_error_of_several_processes_is_printed_once(folder: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    line = ("train", "--preprocessed-dir", "nowhere")
    children = [start(call, line, folder / f"{rank}.txt", torchrun(rank, port)) for rank in (0, 1)]
    assert [wait(child) for child in children] == [2, 2]
    assert 'there is no folder "nowhere"' in read(folder / "0.txt")
    assert read(folder / "1.txt") == ""


def torchrun(rank: int, port: int) -> dict[str, str]:
    """What torchrun tells a process of two."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "test",
    }


def test_help_shows_the_defaults_of_the_networks() -> None:
    environment = {"COLUMNS": "300", "TERM": "dumb"}
    text = CliRunner().invoke(build_app(), ["train", "--help"], env=environment).output
    text = re.sub(r"\n {9,}", " ", text)
    own = {field.name: field.default for field in fields(NETWORKS["gvae"].config)}
    for name in ("lstm_hidden", "num_lstm_layers", "dropout", "gnn_hidden", "latent_dim"):
        assert re.search(rf"--{name.replace('_', '-')} .*\[default: {own[name]}\]", text), name
    for name in ("kl_weight", "reconstruction_weight"):
        assert re.search(rf"--{name.replace('_', '-')} .*\[default: {own[name]}\]", text), name
