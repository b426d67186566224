"""Commands are built from Python functions: same names, same defaults, help from the docstring."""

import inspect
import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from clew import patterns
from clew.cli import (
    adapt,
    ask,
    build_app,
    calibrate,
    compare,
    convert,
    extract,
    label,
    main,
    plan,
    preprocess,
    push,
    score,
    serve,
    show,
    train,
    verify,
)
from clew.cli import inspect as inspect_command
from clew.cli.commands import Command, read_command
from clew.cli.options import read_docstring
from clew.hallucination import workflow
from clew.storage.run_file import WATCHING
from tests.builders import write_questions
from tests.stores import assert_same_store

MODULES = (
    *(
        adapt,
        ask,
        calibrate,
        compare,
        convert,
        extract,
        inspect_command,
        label,
        plan,
        preprocess,
        push,
        score,
    ),
    *(serve, show, train, verify),
)
OF_PATTERNS = [
    import_module(f"clew.cli.patterns.{name}") for name in ("photos", "review", "sets", "training")
]
COMMANDS: dict[str, Command] = {
    **{module.COMMAND.words: module.COMMAND for module in MODULES},
    **{
        f"patterns {name}": read_command(function, f"patterns {name}")
        for module in OF_PATTERNS
        for name, (function, _) in module.COMMANDS.items()
    },
}
FUNCTIONS = [
    getattr(steps, name)
    for steps in (workflow, patterns)
    for name in steps.__all__
    if name != "PatternSet"
]
# Columns that are left for a help text.
NARROWEST_TEXT = 40


def parser_of(name: str) -> Any:
    command: Any = get_command(build_app())
    for word in name.split():
        command = command.commands[word]
    return command


def help_of(*words: str, width: int = 80) -> str:
    environment = {"COLUMNS": str(width), "TERM": "dumb", "NO_COLOR": "1"}
    result = CliRunner().invoke(build_app(), [*words, "-h"], env=environment, prog_name="clew")
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_argument_is_documented(function: Any) -> None:
    names = [*inspect.signature(function).parameters]
    documented = read_docstring(function).arguments
    assert [*documented] == names
    assert all(text.endswith((".", "]")) for text in documented.values())
    sections = inspect.getdoc(function) or ""
    assert all(f"\n{name}:\n" in sections for name in ("Returns", "Raises", "Examples"))


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_command_has_the_arguments_and_defaults_of_its_function(name: str) -> None:
    command = COMMANDS[name]
    parameters = inspect.signature(command.function).parameters
    options = {one.name: one for one in parser_of(name).params}
    for setting in command.read_settings():
        default = parameters[setting.name].default
        if setting.switches is not None:
            on = {c for c in setting.switches if options[f"run_{c}"].default}
            assert on == {*default}
        elif default not in (inspect.Parameter.empty, ()):
            assert options[setting.name].default == default
    assert {one.name for one in command.read_settings()} == {*parameters} - {*WATCHING}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_command_has_the_common_flags(name: str) -> None:
    text = help_of(*name.split())
    for flags in ("-h, --help", "-q, --quiet", "-v, --verbose", "--config PATH"):
        assert f"\n  {flags} " in text


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_long_lists_of_options_are_grouped(name: str) -> None:
    command = COMMANDS[name]
    options = [one.name for one in command.read_settings() if not one.is_positional]
    grouped = {name for names in command.groups.values() for name in names}
    if len(options) > 8 or grouped:
        assert not {*options} - grouped
    text = help_of(*name.split())
    assert all(f"\n{heading}:\n" in text for heading in command.groups)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_is_readable_at_80_columns(name: str) -> None:
    lines = help_of(*name.split()).splitlines()
    assert max(map(len, lines)) <= 80
    for first, second in zip(lines, lines[1:], strict=False):
        column = len(second) - len(second.lstrip())
        if column >= 12 and first[:column].strip() == "":
            # A text that continues on the next line fills its own line.
            word = second.split()[0]
            is_default = second.lstrip().startswith("[default:")
            assert is_default or len(first) + len(word) >= 79
        assert column <= 80 - NARROWEST_TEXT


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("extract", "--output-dir o --batch-size 20 --num-samples 5"),
        ("extract", "--out o --shard-size 20 --draws 2"),
        ("label", "store --output-dir scores.csv"),
        ("preprocess", "store --output-dir o --no-graphs --threads 2"),
        ("train", "--out o --no-run-lstm --use-amp --no-compile --max-cache-batches 2"),
        ("train", "--preprocessed-dir p --use-gradient-checkpointing --no-channels-last"),
        ("compare", "--out o --preprocessed-dir p --threads 2"),
        ("convert", "old --output-dir o"),
    ],
)
def test_flag_aliases_are_accepted(name: str, words: str) -> None:
    parser_of(name).make_context(name, words.split())


@pytest.fixture
def traces(run: Any, model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs `clew extract` on five questions in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    write_questions(tmp_path / "q.jsonl", 5)
    files = ("--model", model_folder, "--questions", "q.jsonl", "--device", "cpu")
    return lambda *more: run("extract", *files, "--max-new-tokens", 3, "--node-dim", 4, *more)


@pytest.mark.slow
def test_run_file_repeats_the_run(run: Any, traces: Any, tmp_path: Path) -> None:
    assert traces("--out", 'my "traces"', "--part", "1/1").code == 0
    file = tmp_path / 'my "traces"' / "run.toml"
    text = file.read_text()
    assert 'command = "extract"' in text and 'out = "my \\"traces\\""' in text
    assert "max_new_tokens = 3" in text and "num_beams" not in text and "part" not in text
    again = run("extract", "--config", file, "--out", "other", "--quiet")
    assert again.code == 0, again.err
    assert again.out == "done: 5 of 5 traces in other\n"
    assert_same_store(Path('my "traces"'), Path("other"))
    assert run("verify", 'my "traces"').code == 0


@pytest.mark.slow
def test_json_is_the_only_output_on_stdout(traces: Any) -> None:
    ended = traces("--out", "new", "--json")
    assert json.loads(ended.out)["traces"] == 5
    assert "5/5 traces, " in ended.err


@pytest.mark.parametrize(
    ("command", "text", "message"),
    [
        (
            "extract",
            "num_sampels = 3",
            'has no setting named "num_sampels". Did you mean "num_samples"?',
        ),
        (
            "extract",
            'num_samples = "three"',
            "its num_samples is 'three', but it must be an integer",
        ),
        ("extract", "num_samples = true", "its num_samples is True, but it must be an integer"),
        ("extract", 'keep = "half"', 'its keep is "half". Choose from: compact, full'),
        ("extract", "num_samples = [1]", "its num_samples is [1], but it must be an integer"),
        ("train", 'networks = ["lstn"]', 'its networks is "lstn". Choose from: lstm'),
        ("train", 'command = "extract"', 'it was written by "clew extract"'),
        ("extract", "num_samples = ", "it is not valid TOML"),
        ("extract", 'not_recorded = ["questions"]', "Give --questions as well"),
    ],
)
def test_invalid_config_file_prints_one_message(
    run: Any, tmp_path: Path, command: str, text: str, message: str
) -> None:
    file = tmp_path / "run.toml"
    file.write_text(text)
    ended = run(command, "--config", file)
    assert ended.code == 2
    assert ended.err.startswith(f'clew: --config is "{file}": ') and message in ended.err


@pytest.mark.parametrize(
    ("command", "text", "flags"),
    [
        ("serve", 'host = "0.0.0.0"\nallow_anonymous = true', "--host and --allow-anonymous"),
        ("serve", 'allowed-hosts = ["evil.example"]', "--allowed-hosts"),
        ("serve", 'api_keys_file = "keys"\napi_keys_env = "K"', "--api-keys-file and"),
        ("serve", "log_requests = true", "--log-requests"),
        ("patterns serve", 'host = "0.0.0.0"\nallow_anonymous = true', "--host and --allow-anony"),
        ("extract", 'cluster = "ray://evil.example:10001"', "--cluster"),
        ("extract", 'output-dir = "s3://evil/traces"', "--out"),
        ("show", 'store = "s"\nid = "1"\nout = ["a.html", "s3:/evil/a.png"]', "--out"),
        ("patterns identify", 'photos = "p"\ncopy_to = "s3://evil"', "--copy-to"),
        ("verify", 'store = "gs://mine/traces"\nrepair = true', "STORE"),
    ],
)
def test_config_file_does_not_decide_who_gets_data_or_may_connect(
    run: Any, tmp_path: Path, command: str, text: str, flags: str
) -> None:
    file = tmp_path / "run.toml"
    file.write_text(text)
    ended = run(*command.split(), "--config", file)
    assert ended.code == 2 and "never read from a file. If you want it" in ended.err
    assert f"give {flags}" in ended.err


def test_settings_that_only_flags_give_are_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "formats.md").read_text()
    listed = re.search(r"never read from a file:\n\n(.+?)\n\n", page, re.DOTALL)
    assert listed is not None
    marked = {
        one.title for command in COMMANDS.values() for one in command.read_settings() if one.marks
    }
    assert {*re.findall(r"`(--[a-z-]+|STORE)`", listed[1])} == marked


def test_flags_win_over_the_config_file(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "run.toml"
    file.write_text('epochs = 3\nbatch-size = 8\nnetworks = ["lstm", "charm"]\noverwrite = true\n')
    caught: list[Any] = []
    monkeypatch.setattr(
        "clew.hallucination.detectors.training.train.train_detectors",
        lambda config, *_: caught.append(config) or [],
    )
    words = ("--epochs", 5, "--no-run-lstm", "--run-gvae", "--no-overwrite")
    words += ("--preprocessed-dir", tmp_path)
    assert run("train", "--config", file, *words).code == 0
    [config] = caught
    assert (config.train.epochs, config.request.batch_size) == (5, 8)
    assert (config.networks, config.overwrite) == (("gvae", "charm"), False)


def test_missing_argument_exits_with_2(run: Any) -> None:
    ended = run("label")
    assert ended.code == 2 and "Missing argument 'STORE'" in ended.err


def test_verbose_shows_the_traceback(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["clew", "inspect", str(tmp_path / "nowhere"), "--verbose"])
    with pytest.raises(SystemExit):
        main()
    told = capfd.readouterr().err
    assert "Traceback" in told and "the folder does not exist" in told.splitlines()[-1]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("clew extr", "extract"),
        ("clew extract --keep ", "compact"),
        ("clew train --ep", "--epochs"),
    ],
)
def test_shell_completes_commands_flags_and_choices(line: str, expected: str) -> None:
    words = line.split(" ")
    environment = {
        "_CLEW_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }
    result = CliRunner().invoke(build_app(), [], env=environment, prog_name="clew")
    assert expected in re.split(r"\s+", result.output)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("extract --num-samples sixty", '--num-samples is "sixty": it must be an integer.'),
        ("extract --draw-temperature=hot", '--draw-temperature is "hot": it must be a number.'),
        ("extract --keep all", '--keep is "all": choose from: compact, full.'),
        ("extract --threads 0", "--threads is 0: it must be 1 or more."),
        ("extract --qestions x", "there is no option --qestions. Did you mean --questions? Run"),
        ("extract --magic", 'there is no option --magic. Run "'),
        ("--verison", "there is no option --verison. Did you mean --version? Run"),
    ],
)
def test_mistyped_option_gets_one_message(run: Any, words: str, message: str) -> None:
    ended = run(*words.split())
    assert ended.code == 2 and ended.err.startswith(f"clew: {message}")
    assert ended.err.count("\n") == 1


def test_help_is_also_a_command(run: Any) -> None:
    assert run("help").out == run("--help").out
    assert run("help", "extract").out == run("extract", "--help").out
    assert run("help", "patterns", "train").out == run("patterns", "train", "-h").out


def test_version_has_a_short_flag(run: Any) -> None:
    assert run("-V").out == run("--version").out


@pytest.mark.parametrize(
    ("words", "option"),
    [(("show",), "--id"), (("convert",), "--out"), (("patterns", "evaluate"), "--data")],
)
def test_required_option_is_marked_in_the_help(words: tuple[str, ...], option: str) -> None:
    help_text = CliRunner().invoke(build_app(), [*words, "--help"]).output
    row = help_text.split(f"\n  {option}", 1)[1].split("\n  -", 1)[0]
    assert row.rstrip().endswith("[required]")


@pytest.mark.parametrize("words", ["ask hi --threads", "train --epochs", "patterns train --epochs"])
def test_integer_that_no_library_takes_is_refused(run: Any, words: str) -> None:
    ended = run(*words.split(), "9" * 30)
    assert ended.code == 2 and ended.err.endswith(f" is {'9' * 30}: it is too large.\n")
