"""clew plan."""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from clew.cli.plan import plan_table
from clew.cli.renderer import Renderer
from clew.engine import HardwarePlan, PlanRequest, TrainingStarted, plan_hardware
from clew.engine.plan import Timing
from tests.samples import write_samples


def rows(text: str) -> dict[str, list[str]]:
    """The table's lines by their choice."""
    return {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.strip()}


def test_plan_shows_the_machine_and_every_choice(run: Any) -> None:
    ended = run("plan", "--device", "cpu")
    assert ended.code == 0, ended.err
    assert ended.out.startswith("CPU: ")
    assert "\ntorch.compile: " in ended.out
    assert "\nall networks: nothing measured\n" in ended.out
    table = rows(ended.out)
    assert table["device"][0] == "cpu" and table["batch_size"][0] == "32"
    assert set(HardwarePlan().choices) < table.keys()


@pytest.mark.parametrize(
    ("flags", "choice", "value", "reason"),
    [
        (["--no-amp"], "precision", "fp32", "requested with --no-amp"),
        (["--use-amp"], "precision", "bf16", "requested with --use-amp"),
        (["--no-compile"], "compile", "no", "requested with --no-compile"),
        (["--no-cuda-graph"], "cuda_graph", "no", "requested with --no-cuda-graph"),
        (["--no-channels-last"], "channels_last", "no", "requested with --no-channels-last"),
        (["--num-workers", 3], "num_workers", "3", "requested with --num-workers 3"),
        (["--batch-size", 2048], "batch_size", "2,048", "requested with --batch-size 2048"),
        (["--grad-accum", 4], "grad_accum", "4", "requested with --grad-accum 4"),
        (
            ["--max-cache-batches", 2],
            "max_cache_batches",
            "2",
            "requested with --max-cache-batches 2",
        ),
        (
            ["--use-gradient-checkpointing"],
            "gradient_checkpointing",
            "yes",
            "requested with --use-gradient-checkpointing",
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_every_flag_takes_effect(
    run: Any, flags: list[object], choice: str, value: str, reason: str
) -> None:
    ended = run("plan", "--device", "cpu", *flags)
    assert ended.code == 0, ended.err
    shown, *why = rows(ended.out)[choice]
    assert shown == value
    assert " ".join(why).startswith(reason)


def test_compile_is_obeyed_or_refused(run: Any) -> None:
    ended = run("plan", "--device", "cpu", "--use-compile")
    if "torch.compile: yes" in run("plan").out:
        assert rows(ended.out)["compile"][0] == "yes"
    else:
        assert ended.code == 2
        assert "clew: --use-compile was given, but " in ended.err


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--device", "tpu"], 'clew: --device is "tpu": choose from: cpu, cuda, or cuda:N'),
        (["--device", "cuda:99"], 'clew: --device is "cuda:99": PyTorch sees '),
        (["--device", "cpu", "--use-cuda-graph"], "clew: --use-cuda-graph was given, but it is"),
        (["--batch-size", "0"], "clew: --batch-size is 0: it must be 1 or more."),
        (["--num-workers", "-1"], "clew: --num-workers is -1: it must be 0 or more."),
        (["--epochs", "0"], "clew: --epochs is 0: it must be 1 or more."),
        (["--grad-accum", "x"], '--grad-accum is "x": it must be an integer.'),
    ],
)
def test_wrong_input_gets_one_message(run: Any, flags: list[str], sentence: str) -> None:
    ended = run("plan", *flags)
    assert ended.code == 2
    assert sentence in ended.err


def test_plan_prints_json(run: Any) -> None:
    shown = json.loads(run("plan", "--device", "cpu", "--batch-size", 16, "--json").out)
    assert shown["machine"]["cores"] >= 1
    [(name, saved)] = shown["plans"].items()
    assert name == "all networks"
    assert HardwarePlan.from_dict(saved).batch_size == 16


@pytest.mark.slow
def test_networks_are_measured_on_samples(run: Any, tmp_path: Path) -> None:
    samples = write_samples(tmp_path / "samples")
    flags = ("--preprocessed-dir", samples, "--epochs", 1, "--device", "cpu")
    shown = run("plan", *flags, "--use-gradient-checkpointing")
    assert shown.code == 0, shown.err
    assert [line.split(":")[0] for line in shown.out.splitlines() if ": measured in " in line] == [
        *("lstm", "gnn_det", "gvae")
    ]
    assert shown.out.count(" with it, ") == 3
    saved = json.loads(run("plan", *flags, "--no-amp", "--json").out)["plans"]
    for name in ("lstm", "gnn_det", "gvae"):
        [timing] = HardwarePlan.from_dict(saved[name]).timings
        assert (timing.way, timing.dropped) == ("fp32", "")


def test_missing_folder_is_refused(run: Any, tmp_path: Path) -> None:
    ended = run("plan", "--preprocessed-dir", tmp_path / "nothing")
    assert ended.code in (1, 2)
    assert "nothing" in ended.err


def test_second_network_shows_only_what_differs() -> None:
    plan = plan_hardware(PlanRequest(device="cpu"))
    other = plan.change("precision", "bf16", "faster")
    shown = io.StringIO()
    reporter = Renderer(Console(file=shown, width=100))

    def begin(made: HardwarePlan) -> list[str]:
        before = len(shown.getvalue())
        reporter(TrainingStarted(plan=made, epochs=1, steps=1, done_steps=0))
        return shown.getvalue()[before:].splitlines()

    assert len(begin(plan)) > len(plan.choices)
    [same] = begin(plan)
    assert same.endswith("same plan as the previous network")
    first, *table = begin(other)
    assert first.endswith("same plan as the previous network, except:")
    assert [line.split()[0] for line in table] == ["choice", "precision"]


def test_second_network_shows_what_was_measured_for_it() -> None:
    plan = plan_hardware(PlanRequest(device="cpu", batch_size=16))
    timings = [Timing(way=way, batch_size=16, seconds=1.0) for way in ("fp32", "bf16")]
    first, second = (
        replace(plan, timings=timings).change("precision", "fp32", f"{ms} ms per step vs. 9 ms")
        for ms in (2, 3)
    )
    short = plan.change("precision", "fp32", "not measured: the run takes only about 3 s")
    assert list(plan_table(second, first).columns[0].cells) == ["precision"]
    assert not plan_table(short, first).rows
