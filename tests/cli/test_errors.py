"""The library names settings and ways out; the command line shows flags and commands."""

from pathlib import Path

import pytest

from clew.cli.errors import error_text, with_flags
from clew.errors import Call, InputError, StoreError


def test_setting_at_fault_is_shown_as_its_flag() -> None:
    error = InputError("give 1 or more.", setting="batch_size", value=0)
    assert str(error) == "batch_size is 0: give 1 or more."
    assert error_text(error) == "--batch-size is 0: give 1 or more."


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


def test_way_out_is_a_call_in_python_and_a_command_at_the_terminal() -> None:
    error = StoreError("it was cut", action="repair", store=Path("my traces"))
    assert str(error) == 'it was cut: repair the store with repair_store("my traces").'
    assert error_text(error) == "it was cut: run \"clew verify --repair 'my traces'\"."


def test_call_in_a_text_is_shown_as_the_command_that_does_the_same() -> None:
    opened = Call("PatternSet.open", ("my cats",), {"library": Path("elsewhere")})
    call = Call("import_photos", (opened, "DIR"), {"label": "cat", "move": True})
    error = InputError("add some with ", call, ".")
    python = 'import_photos(PatternSet.open("my cats", library="elsewhere"), "DIR", label="cat"'
    assert str(error) == f"add some with {python}, move=True)."
    command = "clew patterns import 'my cats' DIR --label cat --move --library elsewhere"
    assert error_text(error) == f'add some with "{command}".'
