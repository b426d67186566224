"""clew patterns train: existing command lines, output, exit codes."""

import json
import os
import re
import shlex
import signal
import socket
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from clew.cli import build_app
from clew.patterns.augment import AugmentConfig
from clew.patterns.library.pattern_set import PatternSet
from clew.patterns.networks import CPU_NETWORK, GPU_NETWORK, LITE0
from clew.patterns.photos import USUAL_SHARES
from clew.patterns.training import LossSettings, PatternsConfig
from clew.patterns.training.config import fine_tuning_epochs, usual_epochs, usual_train
from clew.storage.reading import read_json
from tests.cli.test_train import call, read, torchrun
from tests.engine.children import start, wait, wait_until
from tests.patterns.training.making import COLORS, write_photo, write_photos

pytestmark = pytest.mark.slow

FAST = (
    *("--no-augment", "--lr", 0.02, "--device", "cpu", "--batch-size", 16, "--num-workers", 0),
    *("--no-amp", "--no-compile", "--no-channels-last"),
)
QUICK = ("--network", "tiny", "--image-size", 16, *FAST)
TRAIN = ("patterns", "train")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of a user, with photos in it."""
    write_photos(tmp_path / "mis fotos", dict.fromkeys(COLORS, 7))
    monkeypatch.chdir(tmp_path)
    return tmp_path


# Command lines of the older script, with `clew patterns train` in its place.
LINES = {
    "--epochs 30": {"epochs": 30},
    "--epochs 30 --no-amp": {"epochs": 30, "amp": False},
    "--epochs 30 --no-compile": {"compile": False},
    "": {"epochs": None, "smoothing": 0.1},
    "--num-workers 4": {"workers": 4},
    "--no-channels-last": {"channels_last": False},
    "--use-gradient-checkpointing": {"checkpointing": True},
    "--epochs 30 --batch-size 8 --use-gradient-checkpointing": {"batch": 8, "checkpointing": True},
    "--epochs 30 --batch-size 32 --use-amp --use-compile --num-workers 2": {
        "amp": True,
        "compile": True,
        "workers": 2,
    },
    "--epochs 30 --no-amp --batch-size 16": {"batch": 16},
    "--epochs 30 --num-workers 0": {"workers": 0},
    "--epochs 50 --batch-size 32 --use-amp --use-compile": {"epochs": 50, "batch": 32},
    "--epochs 50 --batch-size 8 --use-gradient-checkpointing --grad-accum 2": {"accum": 2},
    "--epochs 50 --batch-size 32 --use-amp --use-compile --num-workers 4 --focal-loss "
    "--label-smoothing 0.1": {"focal": True, "smoothing": 0.1},
    "--epochs 50 --batch-size 16 --num-workers 4 --no-amp": {"amp": False, "workers": 4},
    "--lr 0.01 --patience 5 --weight-decay 0.05 --warmup 0.2 --seed 3": {
        "train": (0.01, 5, 0.05, 0.2, 3)
    },
    "--rand-augment 3,12 --mixup 0 --flip": {"augment": (3, 12.0, 0.0, True)},
    "--no-augment": {"augment": (0, 9.0, 0.0, False)},
    "--no-augment --flip": {"augment": (0, 9.0, 0.0, True)},
    "--split 80/10/10 --cache disk --class-weights": {"split": "80/10/10", "cache": "disk"},
    "--image-size 64 --network small": {"size": 64, "network": "small"},
}


@pytest.mark.parametrize("line", LINES)
def test_existing_command_lines_are_understood(
    run: Any, line: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without --data, the only set is trained."""
    colores = PatternSet.create("colores", folder / "patterns")
    write_photo(colores.photos / "azul" / "a.png", "azul", 1)
    caught: list[PatternsConfig] = []

    def catch(config: PatternsConfig, *_: Any, **__: Any) -> None:
        caught.append(config)
        raise typer.Exit

    monkeypatch.setattr("clew.patterns.flow.run_training", catch)
    ended = run(*TRAIN, *shlex.split(line))
    assert ended.code == 0, ended.err
    [config] = caught
    train, augment = config.train_for(100), config.augment
    understood = {
        "epochs": config.epochs,
        "batch": config.request.batch_size,
        "amp": config.request.amp,
        "compile": config.request.compile,
        "channels_last": config.request.channels_last,
        "workers": config.request.num_workers,
        "accum": config.request.grad_accum,
        "checkpointing": config.request.gradient_checkpointing,
        "focal": config.loss.focal,
        "smoothing": config.loss.label_smoothing,
        "train": (train.lr, train.patience, train.weight_decay, train.warmup_fraction, train.seed),
        "augment": (augment.ops, augment.magnitude, augment.mixup, augment.flip),
        "split": str(config.shares),
        "cache": config.cache,
        "size": config.image_size,
        "network": config.network,
    }
    assert understood | LINES[line] == understood
    assert config.data == Path("patterns/colores/photos")
    assert config.out == Path("patterns/colores/runs/001")
    assert config.images_dir == Path("patterns/colores/cache")


def test_run_prints_photos_plan_metrics_and_next_commands(run: Any, folder: Path) -> None:
    (folder / "mis fotos" / "azul" / "empty.jpg").touch()
    (folder / "mis fotos" / "azul" / "notes.txt").write_text("mine")
    ended = run(*TRAIN, "--data", "mis fotos", "--output-dir", "el modelo", "--epochs", 2, *QUICK)
    assert ended.code == 0, ended.err
    for line in (
        r"photos       21 in 3 classes: azul \(7\), maçã ñ \(7\), red 🍎 \(7\)",
        r"excluded     1 file \(1 empty\): see el modelo/excluded.csv for the reasons",
        r"ignored      1 file without an image extension",
        r"splits       15 for train, 3 for validation, 3 for test",
        r"images       16 x 16 pixels, requested with --image-size",
        r"cache        in memory: .*",
        r"flip         no: as requested",
        r"network      tiny, as requested",
        r"plan         cpu, fp32, batch 16 \(.*plan.json\)",
        r".*epoch 2/2, loss \d.\d+, validation loss \d.\d+, accuracy \d.\d+, \d+ photos/s.*",
        r".*best epoch [12] of 2, \d+ s, [\d,]+ photos/s",
        r"test accuracy \d+\.\d% \(95% confidence interval \d+\.\d% to \d+\.\d%\): "
        r"\d of 3 photos correct",
        r"report: el modelo/report.html",
        r"  identify photos:  clew patterns identify FOLDER --model 'el modelo'",
        r"  evaluate it:      clew patterns evaluate --model 'el modelo' --data DIR",
        r"  open its page:    clew patterns serve --model 'el modelo'",
        r"  export it:        clew patterns export --model 'el modelo' --out model.onnx",
    ):
        assert re.search(f"^{line}$", ended.out, re.M), f"{line}\n{ended.out}"
    assert (folder / "el modelo" / "report.html").stat().st_size > 1000
    results = read_json(folder / "el modelo" / "results.json")
    assert results["test_photos"] == 3
    run_file = tomllib.loads((folder / "el modelo" / "run.toml").read_text(encoding="utf-8"))
    assert run_file["command"] == "patterns train" and run_file["data"] == "mis fotos"
    repeated = run(*TRAIN, "--config", "el modelo/run.toml", "--json")
    assert json.loads(repeated.out) == results


def test_set_is_trained_again_from_its_last_weights(run: Any, folder: Path) -> None:
    pattern_set = PatternSet.create("mis colores", folder / "patterns")
    write_photos(pattern_set.photos, dict.fromkeys(COLORS, 6))
    ended = run(*TRAIN, "mis colores", "--epochs", 1, *QUICK)
    assert ended.code == 0, ended.err
    assert "clew patterns identify FOLDER --name 'mis colores'\n" in ended.out
    unchanged = run(*TRAIN)
    assert unchanged.code == 0
    nothing = (
        "nothing to do: no photos have been added or removed and no new settings passed since "
        "patterns/mis colores/runs/001 was trained."
    )
    assert nothing in unchanged.out
    same = run(*TRAIN, "--epochs", 1, *QUICK)
    assert same.code == 0 and nothing in same.out
    write_photo(pattern_set.photos / "azul" / "new.png", "azul", 99)
    again = run(*TRAIN, "--epochs", 1, *FAST)
    assert again.code == 0, again.err
    assert "\nstarts from  the weights in 'patterns/mis colores/runs/001'\n" in again.out
    results = json.loads((folder / "patterns/mis colores/runs/002/results.json").read_text())
    assert results["started_from"] == "patterns/mis colores/runs/001"
    assert not (folder / "patterns/mis colores/runs/001/images").exists()  # the cache is the set's


def test_finished_run_prints_its_result_again(run: Any, folder: Path) -> None:
    line = (*TRAIN, "--data", "mis fotos", "--epochs", 1, *QUICK)
    first, second = run(*line), run(*line)
    assert first.code == second.code == 0
    assert "already trained: best epoch 1 of 1" in second.out and "epoch 1/1" not in second.out
    assert (folder / "trained" / "results.json").exists()


def test_set_without_photos_prints_import_command(run: Any, folder: Path) -> None:
    animals = PatternSet.create("animals", folder / "patterns")
    ended = run(*TRAIN, "animals")
    assert ended.code == 2
    assert 'has no photos yet: add some with "clew patterns import animals DIR".' in ended.err
    assert animals.all_runs() == []


def test_folder_of_another_run_is_refused_with_what_to_do(run: Any, folder: Path) -> None:
    line = (*TRAIN, "--data", "mis fotos", *QUICK)
    assert run(*line, "--epochs", 1).code == 0
    other = run(*line, "--epochs", 2)
    assert other.code == 1
    assert "config.epochs: was 1, is now 2" in other.err
    assert "Use --overwrite to start over in this folder." in other.err
    write_photo(folder / "mis fotos" / "azul" / "new.png", "azul", 99)
    more = run(*line, "--epochs", 1)
    assert more.code == 1
    assert 'differ from those that "trained" was started with: 1 new' in more.err
    assert run(*line, "--epochs", 2, "--overwrite").code == 0


@pytest.mark.usefixtures("random_lite0")
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--data", "nowhere"], '"nowhere"'),
        (["--data", "mis fotos/azul"], "are not in class folders"),
        (["--data", "one"], "contains only one class"),
        (["--data", "few"], 'too few .*"azul" (1), "red 🍎" (1)'),
        (
            ["name", "--data", "mis fotos"],
            'the set "name" and --data "mis fotos" cannot be combined',
        ),
        ([], 'the library "patterns" does not exist: .* Or give a folder of photos with --data.'),
        (["--output-dir", "x"], '--out is "x": it requires --data'),
        (["mis fotos", "--out", "x"], "\"mis fotos\" is a folder: give it as --data 'mis fotos'."),
        (
            ["--data", "mis fotos", "--rand-augment", "9"],
            '--rand-augment is "9": use N,M: the number',
        ),
        (["--data", "mis fotos", "--split", "90/10/0"], "--split is 90/10/0"),
        (["--data", "mis fotos", "--mixup", "-1"], "--mixup is -1.0"),
        (
            ["--data", "mis fotos", "--rand-augment", "99,9"],
            "--rand-augment (N) is 99: it must be from 0 to",
        ),
        (
            ["--data", "mis fotos", "--rand-augment", "2,99"],
            "--rand-augment (M) is 99.0: it must be from 0",
        ),
        (["--data", "mis fotos", "--warmup", "3"], "--warmup is 3.0: it must be at least 0"),
        (["--data", "mis fotos", "--output-dir", "mis fotos/out"], "it is inside the photo folder"),
    ],
)
def test_invalid_usage_prints_one_message_and_exits_with_2(
    run: Any, folder: Path, words: list[str], sentence: str
) -> None:
    write_photos(folder / "one", {"azul": 5})
    write_photos(folder / "few", {"azul": 1, "red 🍎": 1})
    ended = run(*TRAIN, *words)
    assert ended.code == 2
    pattern = ".*".join(re.escape(part) for part in sentence.split(".*"))
    assert re.search(pattern, ended.err), ended.err
    assert len(ended.err.splitlines()) == 1
    assert not list(folder.glob("*/results.json"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_stops_training_cleanly(run: Any, folder: Path, number: signal.Signals) -> None:
    line = (*TRAIN, "--data", "mis fotos", "--epochs", 2000, "--patience", 0, *QUICK)
    child = start(call, line, folder / "out.txt")
    log = folder / "trained" / "log.csv"
    wait_until(lambda: log.exists() and len(log.read_text().splitlines()) > 2, child)
    os.kill(child.pid, number)
    assert wait(child) == 128 + number
    told = read(folder / "out.txt")
    assert "To resume: clew patterns train --data 'mis fotos' --epochs 2000" in told
    assert "Traceback" not in told
    shown = run("patterns", "evaluate", "--model", "trained", "--data", "mis fotos")
    assert shown.code == 2 and "is not finished" in shown.err


def test_help_states_the_defaults() -> None:
    environment = {"COLUMNS": "300", "TERM": "dumb"}
    text = CliRunner().invoke(build_app(), [*TRAIN, "--help"], env=environment).output
    train, augment = usual_train(), AugmentConfig()
    text = " ".join(text.split())
    for name, value in {
        "split": USUAL_SHARES,
        "network": f"{LITE0}; from scratch {GPU_NETWORK}, or {CPU_NETWORK} without a GPU",
        "epochs": f"{fine_tuning_epochs(1_000_000)} for a pretrained network, "
        f"{usual_epochs(1_000_000)} from scratch, or more for few photos",
        "patience": "a third of the epochs, at least 20",
        "weight-decay": train.weight_decay,
        "warmup": train.warmup_fraction,
        "label-smoothing": LossSettings().label_smoothing,
        "rand-augment": f"{augment.ops},{augment.magnitude:g}",
        "mixup": augment.mixup,
    }.items():
        assert re.search(rf"--{name} (?:(?! --).)*\[default: {re.escape(str(value))}\]", text), name


def test_two_processes_train_together_and_only_the_first_prints(folder: Path) -> None:
    line = (*TRAIN, "--data", "mis fotos", "--epochs", 2, *QUICK)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = [start(call, line, folder / f"{rank}.txt", torchrun(rank, port)) for rank in (0, 1)]
    assert [wait(child) for child in children] == [0, 0], read(folder / "0.txt")
    assert "epoch 2/2, " in read(folder / "0.txt") and read(folder / "1.txt") == ""
    results = json.loads((folder / "trained" / "results.json").read_text(encoding="utf-8"))
    assert results["plan"]["processes"] == 2
