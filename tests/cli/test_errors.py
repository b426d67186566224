"""The library's errors name settings and remedies; the command line shows flags and commands."""

from pathlib import Path

import pytest

from clew import cli
from clew.base.errors import Call, InputError, StoreError, without_settings
from clew.cli.errors import error_text, naming_arguments, with_flags
from clew.hallucination.detectors import NETWORKS
from clew.hallucination.detectors.training.samples import PreprocessedData
from clew.hallucination.labels import read_scores


def test_wrong_setting_is_shown_as_its_flag() -> None:
    error = InputError("it must be 1 or more.", setting="batch_size", value=0)
    assert str(error) == "batch_size is 0: it must be 1 or more."
    assert error_text(error) == "--batch-size is 0: it must be 1 or more."


def test_text_values_are_quoted() -> None:
    error = InputError("give three shares.", setting="split", value="70/20")
    assert error_text(error) == '--split is "70/20": give three shares.'


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("choose another `out`", "choose another --out"),
        ("`overwrite=True` starts over", "--overwrite starts over"),
        ("leave out `graphs=False`", "leave out --no-graphs"),
        ('give `keep="full"`', "give --keep full"),
        ("use `amp=False` or `cuda_graph=False`", "use --no-amp or --no-cuda-graph"),
        ("a path with a ` in it", "a path with a ` in it"),
    ],
)
def test_settings_in_a_text_become_flags(text: str, shown: str) -> None:
    assert with_flags(text) == shown


def test_positional_argument_is_named_as_in_the_help() -> None:
    with (
        pytest.raises(InputError) as caught,
        naming_arguments({"photos": "FOLDER", "data": "DATA"}),
    ):
        raise InputError("give `data` or `model`.", setting="photos", value="nope")
    assert error_text(caught.value) == 'FOLDER is "nope": give DATA or --model.'


def test_action_is_a_call_in_python_and_a_command_on_a_terminal() -> None:
    error = StoreError("it was truncated", action="repair", store=Path("my traces"))
    assert (
        str(error)
        == 'it was truncated: repair the store with clew.verify("my traces", repair=True).'
    )
    assert error_text(error) == "it was truncated: run \"clew verify --repair 'my traces'\"."


def test_command_for_a_folder_named_like_an_option_names_the_folder() -> None:
    error = StoreError("it was truncated", action="repair", store=Path("-rf\n$(touch x)"))
    command = r"clew verify --repair $'./-rf\n$(touch x)'"
    assert error_text(error) == f'it was truncated: run "{command}".'


def test_call_in_a_text_is_shown_as_the_equivalent_command() -> None:
    settings = {"label": "cat", "library": "elsewhere", "move": True}
    call = Call("clew.patterns.import_photos", ("my cats", "DIR"), settings)
    error = InputError("add some with ", call, ".")
    told = '"my cats", "DIR", label="cat", library="elsewhere", move=True'
    assert str(error) == f"add some with clew.patterns.import_photos({told})."
    command = "clew patterns import 'my cats' DIR --label cat --move --library elsewhere"
    assert error_text(error) == f'add some with "{command}".'


def test_missing_scores_file_says_how_to_create_it(tmp_path: Path) -> None:
    missing = tmp_path / "scores.csv"
    with pytest.raises(InputError, match=r'create one with clew.label\("STORE", out=') as caught:
        read_scores(missing)
    assert f'create one with "clew label STORE --out {missing}".' in error_text(caught.value)


def test_folder_of_old_files_gets_the_convert_command(tmp_path: Path) -> None:
    (tmp_path / "preprocessed_0000.pt").touch()
    with pytest.raises(InputError) as caught:
        PreprocessedData(folder=tmp_path).refuse_missing([NETWORKS["lstm"]])
    told = error_text(caught.value)
    assert "not a clew store. --preprocessed-dir is the folder" in told
    assert told.endswith(f'with "clew convert {tmp_path} --out {tmp_path}".')


def test_message_about_a_name_of_any_length_stays_short() -> None:
    error = InputError(f'no column "a" (found: {"b" * 10_000_000}): name it.')
    assert len(error_text(error)) < 5000
    assert error_text(error).endswith("b): name it.")


def test_backticks_of_other_programs_are_not_flags() -> None:
    error = InputError(f"it answered ({without_settings('pass `trust_remote_code=True`')}).")
    assert error_text(error) == "it answered (pass 'trust_remote_code=True')."


def test_out_of_memory_is_one_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_out() -> None:
        raise MemoryError

    monkeypatch.setattr(cli, "build_app", lambda _: run_out)
    with pytest.raises(SystemExit, match="1"):
        cli.main()
    assert capsys.readouterr().err.startswith("clew: out of memory. Everything written so far")
