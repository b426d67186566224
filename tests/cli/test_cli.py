"""The commands: what they print, their exit codes, and one clear message for bad input."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import clew
from clew.storage.manifest import read_manifest, write_manifest
from tests.builders import write_questions
from tests.cli.running import Ended
from tests.stores import assert_same_store, flip_byte, offset_of

pytestmark = pytest.mark.slow

COMMANDS = (
    *("extract", "inspect", "label", "preprocess", "plan", "train", "compare", "score"),
    *("show", "verify", "convert"),
)
PATTERNS = (
    *("flow", "create", "import", "list", "info", "train", "evaluate", "identify", "recognize"),
    *("review", "export"),
)
EVERY = (*((command,) for command in COMMANDS), *(("patterns", command) for command in PATTERNS))
SETTINGS = (
    *("--batch-size", "20", "--generation-batch", "8", "--max-new-tokens", "6"),
    *("--node-dim", "4", "--edges-per-token", "4", "--device", "cpu"),
)


@pytest.fixture
def extract(run: Any, model_folder: Path, questions_file: Path) -> Any:
    """Runs `clew extract` with the tiny model and the settings of the shared stores."""

    def call(out: Path, *more: object) -> Ended:
        files = ("--model", model_folder, "--questions", questions_file, "--out", out)
        return run("extract", *files, *SETTINGS, *more)

    return call


@pytest.mark.parametrize(
    "command",
    [[str(Path(sys.executable).with_name("clew"))], [sys.executable, "-m", "clew"]],
    ids=["clew", "python -m clew"],
)
def test_installed_command_prints_its_version(command: list[str]) -> None:
    ended = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert ended.stdout == f"clew {clew.__version__}\n"


def test_help_lists_every_command(run: Any) -> None:
    ended = run("--help")
    assert ended.code == 0
    assert all(command in ended.out for command in (*COMMANDS, "patterns"))
    inside = run("patterns", "--help")
    assert all(command in inside.out for command in PATTERNS)


@pytest.mark.parametrize("command", EVERY, ids=" ".join)
def test_help_of_every_command_has_an_example(run: Any, command: tuple[str, ...]) -> None:
    ended = run(*command, "--help")
    assert ended.code == 0
    assert re.search(rf"Example:\s+`?clew {' '.join(command)}\b", ended.out)


def test_every_option_in_an_example_exists(run: Any) -> None:
    for command in EVERY:
        text = run(*command, "--help").out
        [example] = re.findall(r"Example:\s+`?(clew .*)", text, re.DOTALL)
        for option in re.findall(r"--[\w-]+", example):
            assert text.count(option) > 1, f"{command}: {option}"


@pytest.mark.parametrize(
    "wrong",
    [["nonsense"], ["inspect"], ["extract", "--no-such-option"], ["extract", "--keep", "half"]],
)
def test_invalid_usage_exits_with_2(run: Any, wrong: list[str]) -> None:
    assert run(*wrong).code == 2


def test_extract_reports_its_progress_and_result(extract: Any, tmp_path: Path) -> None:
    ended = extract(tmp_path / "new")
    assert ended.code == 0, ended.err
    assert "70 traces to extract: at most " in ended.out
    assert "check passed: batched capture matches single-prompt passes" in ended.out
    assert f"done: 70 of 70 traces in {tmp_path / 'new'}" in ended.out
    assert f"inspect them with: clew inspect {tmp_path / 'new'}" in ended.out


def test_log_lines_show_speed_size_memory_and_time_left(extract: Any, tmp_path: Path) -> None:
    ended = extract(tmp_path / "new")
    stamp, count = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  ", r"[\d.,]+"
    line = (
        rf"^{stamp}70/70 traces, {count} traces/s, {count} tokens/s, {count} kB written, "
        rf"memory {count} [MG]B, 0 s left$"
    )
    assert re.search(line, ended.out, re.MULTILINE), ended.out


def test_second_extract_has_nothing_to_do(extract: Any, store: Path) -> None:
    ended = extract(store)
    assert ended.code == 0
    assert "done: 70 of 70 traces" in ended.out
    assert "traces to make" not in ended.out


def test_excluded_questions_are_counted_and_named(
    run: Any, model_folder: Path, tmp_path: Path
) -> None:
    """Square brackets are markup to the printing library; they must be printed unchanged."""
    questions = write_questions(tmp_path / "questions.jsonl", 5)
    with questions.open("a") as file:
        file.write('{"id": "[/b]", "question": ""}\nnot json\n')
    out = tmp_path / "new"
    ended = run(
        "extract", "--model", model_folder, "--questions", questions, "--out", out, *SETTINGS
    )
    assert ended.code == 0, ended.err
    assert "excluded: line 6 (id [/b]): " in ended.out
    assert "excluded: line 7: " in ended.out
    assert "(2 questions excluded; see its manifest)" in ended.out
    assert "excluded: 2 questions" in run("inspect", out).out


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--part", "4/3"], '--part is "4/3": write it as I/N'),
        (["--part", "two"], '--part is "two": write it as I/N'),
        (["--prompt", "\udcff {question}"], "it is not UTF-8 text"),
        (["--prompt", "Answer me"], '--prompt is "Answer me": it does not contain {question}'),
        (["--chat"], "tokenizer has no chat template"),
        (["--batch-size", "0"], "--shard-size is 0: it must be 1 or more"),
        (["--model", "no/such-model"], 'the model "no/such-model" could not be loaded'),
        (["--questions", "missing.jsonl"], 'questions "missing.jsonl": no such file or folder'),
        (["--device", "abacus"], '--device is "abacus": unknown device'),
        (["--dtype", "float7"], '--dtype is "float7": choose from: auto, float32'),
    ],
    ids=lambda value: "=".join(value) if isinstance(value, list) else "",
)
def test_unusable_input_gets_one_message_and_exit_code_2(
    extract: Any, tmp_path: Path, options: list[str], sentence: str
) -> None:
    ended = extract(tmp_path / "new", *options)
    assert ended.code == 2
    assert ended.err.startswith("clew: ")
    assert sentence in ended.err
    assert not (tmp_path / "new" / "manifest.json").exists()


def test_changed_settings_exit_with_1_and_show_both_values(extract: Any, store: Path) -> None:
    ended = extract(store, "--max-new-tokens", "9")
    assert ended.code == 1
    assert "generation.max_new_tokens: was 6, is now 9" in ended.err


def test_inspect_shows_totals_shards_lengths_answers_and_settings(
    run: Any, compact_store: Path
) -> None:
    ended = run("inspect", compact_store)
    assert ended.code == 0
    assert re.search(r"store: 70 traces, [\d.]+ kB, [\d.]+ kB each, 4 shards", ended.out)
    assert re.search(r"3\s+batch_0003.arrow\s+10\s+[\d.]+ kB", ended.out)
    assert re.search(r"prompt and answer(\s+[\d.]+){4}", ended.out)
    assert re.search(r"answer(\s+[\d.]+){4}", ended.out)
    assert re.search(r"stop reasons: .*length \d+.*; empty answers: \d+", ended.out)
    assert "Paris" in ended.out
    assert "generation: max_new_tokens 6, num_beams 1, cut sentence" in ended.out


def test_inspect_prints_the_summary_as_json(run: Any, compact_store: Path) -> None:
    summary = json.loads(run("inspect", compact_store, "--json").out)
    assert (summary["rows"], summary["planned_rows"], len(summary["batches"])) == (70, 70, 4)
    assert summary["tokens"]["min"] > summary["answer_tokens"]["max"] - 1
    assert sum(summary["stop_reasons"].values()) == 70
    assert [e["global_example_id"] for e in summary["examples"]] == [0, 17, 34, 52, 69]
    assert summary["columns"]["last_hidden"].startswith("fixed_size_list")


def test_inspect_prints_square_brackets_unchanged(
    run: Any, model_folder: Path, tmp_path: Path
) -> None:
    questions, out = tmp_path / "questions.jsonl", tmp_path / "new[/x]"
    questions.write_text('{"id": "q0", "question": "[INST] who [/INST]", "answer": "[bold]"}\n')
    files = ("--model", model_folder, "--questions", questions, "--out", out)
    ended = run("extract", *files, *SETTINGS)
    assert ended.code == 0, ended.err
    assert f"traces in {out}" in ended.out
    text = run("inspect", out).out
    assert all(piece in text for piece in ("[INST] who [/INST]", "[bold]", "new[/x]: 1 trace, "))


def test_inspect_shows_store_without_finished_shard(run: Any, store: Path) -> None:
    write_manifest(store, replace(read_manifest(store), shards=()))
    ended = run("inspect", store)
    assert ended.code == 0
    assert "0 traces of 70 planned" in ended.out


def test_verify_names_the_store_of_each_problem_in_a_folder_of_several(
    run: Any, store: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "several"
    shutil.copytree(store, folder / "good")
    shutil.copytree(store, folder / "bad")
    damage(folder / "bad", "missing")
    ended = run("verify", folder)
    assert ended.code == 1
    assert "shard bad/batch_0001.arrow is missing" in ended.out
    assert "good is intact" in ended.out


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_missing_store_exits_with_1(run: Any, tmp_path: Path, command: str) -> None:
    ended = run(command, tmp_path / "nowhere")
    assert ended.code == 1
    assert "the folder does not exist. Check the path." in ended.err


def test_verify_exits_with_0_for_intact_store(run: Any, compact_store: Path) -> None:
    ended = run("verify", compact_store)
    assert ended.code == 0
    assert f"{compact_store} is intact: all checksums match" in ended.out


def test_verify_names_the_damage_and_how_to_repair_it(run: Any, store: Path) -> None:
    damage(store, "flipped")
    ended = run("verify", store)
    assert ended.code == 1
    assert re.search(
        r"shard batch_0001.arrow has changed .*; 12 of its 20 rows are intact", ended.out
    )
    assert f"repair it with: clew verify {store} --repair" in ended.out


@pytest.mark.parametrize(
    "how", ["flipped", "cut", "missing", "no manifest", "garbled manifest", "both"]
)
def test_repair_and_extract_again_give_identical_store(
    run: Any, extract: Any, store: Path, compact_store: Path, how: str
) -> None:
    damage(store, how)
    assert run("verify", store).code == 1
    repaired = run("verify", store, "--repair")
    assert repaired.code == 0, repaired.out
    again = extract(store)
    assert again.code == 0, again.err
    assert run("verify", store).code == 0
    assert_same_store(store, compact_store)


def test_damaged_basis_cannot_be_repaired(run: Any, store: Path) -> None:
    flip_byte(store / "basis.arrow", 1000)
    ended = run("verify", store, "--repair")
    assert ended.code == 1
    assert "basis.arrow has changed since it was written: restore it from a backup" in ended.out
    assert "repair it with" not in run("verify", store).out


def damage(store: Path, how: str) -> None:
    shard = store / "batch_0001.arrow"
    if how in ("flipped", "both"):
        flip_byte(shard, offset_of(shard, b"q27"))
    if how == "cut":
        shard.write_bytes(shard.read_bytes()[:-5000])
    if how == "missing":
        shard.unlink()
    if how in ("no manifest", "both"):
        (store / "manifest.json").unlink()
    if how == "garbled manifest":
        (store / "manifest.json").write_text('{"format": "clew')
