"""API keys: where they come from, whom they let in, and that nobody sees them."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

import clew
from clew.base.errors import InputError
from clew.cli import build_app
from clew.hallucination.live.service.service import Metrics
from clew.pages.api import ApiKeys, read_keys
from clew.pages.guard import RefusedError
from clew.pages.service import Address

FIRST, SECOND = "sk-first-key-0001", "sk-second-key-0002"


def enter(keys: ApiKeys, path: str, *values: str) -> str:
    headers = [(b"authorization", value.encode()) for value in values]
    return keys.admit({"path": path, "headers": headers})


def test_keys_come_from_a_file_and_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# for Ada\n{FIRST}\n\n")
    monkeypatch.setenv("SOME_KEYS", f"{SECOND}, sk-third-key-0003")
    keys = read_keys(file, "SOME_KEYS")
    assert keys.knows(FIRST) and keys.knows(SECOND) and keys.knows("sk-third-key-0003")
    assert not keys.knows("sk-other") and not keys.knows("") and not keys.knows("# for Ada")


def test_only_health_and_the_page_need_no_key() -> None:
    keys = ApiKeys([FIRST])
    for path in ("/", "/healthz", "/readyz", "/page/page.css"):
        assert enter(keys, path) == ""
    assert enter(keys, "/v1/models", f"Bearer {FIRST}") == ""
    for values in ((), ("Bearer sk-guess",), (f"Basic {FIRST}",), (FIRST,), ("Bearer ",)):
        for path in ("/v1/models", "/metrics", "/score", "/clew/page", "//", "/healthz/"):
            with pytest.raises(RefusedError) as refused:
                enter(keys, path, *values)
            assert refused.value.status == 401


def test_without_keys_everyone_may_enter() -> None:
    assert enter(read_keys(None, None), "/v1/models", "Bearer anything") == ""


@pytest.mark.parametrize(
    "content", [b"short\n", b"with a space in it\n", b"\xff" * 20, b"# none\n"]
)
def test_unusable_keys_are_named_but_not_shown(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "keys"
    file.write_bytes(content)
    with pytest.raises(InputError) as error:
        read_keys(file, None)
    assert "api_keys_file" in str(error.value)
    assert "space in it" not in str(error.value) and "short" not in str(error.value)
    with pytest.raises(InputError, match="cannot be read"):
        read_keys(tmp_path / "missing", None)


def test_other_machines_are_served_only_with_keys() -> None:
    Address(host="127.0.0.1", keys=ApiKeys())
    Address(host="0.0.0.0", keys=ApiKeys([FIRST]))
    Address(host="0.0.0.0", keys=ApiKeys(), allow_anonymous=True)
    with pytest.raises(InputError, match="api_keys_file"):
        Address(host="0.0.0.0", keys=ApiKeys())


@pytest.mark.parametrize(
    ("name", "is_own"),
    [
        *((name, True) for name in ("localhost", "127.0.0.1", "::1", "10.0.0.7", "api.example")),
        *((name, False) for name in ("evil.example", "localhost.evil.example", "", "10.0.0.7.")),
    ],
)
def test_only_own_names_and_addresses_are_hosts(name: str, is_own: bool) -> None:
    address = Address(host="0.0.0.0", keys=ApiKeys([FIRST]), allowed_hosts=["API.example"])
    assert address.access(Metrics()).is_own_name(name) is is_own


@pytest.mark.parametrize("variables", [{}, {"OTHER_KEYS": " "}])
def test_a_variable_that_should_have_keys_but_has_none_is_refused(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    with pytest.raises(InputError, match="contains no API key"):
        clew.serve("no such detector", api_keys_env="OTHER_KEYS")


def test_only_the_command_reads_the_usual_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEW_API_KEYS", "")
    result = CliRunner().invoke(build_app(), ["serve", "no such detector"])
    assert isinstance(result.exception, InputError) and result.exception.value == "CLEW_API_KEYS"
    with pytest.raises(InputError, match="no such file or folder"):
        clew.serve("no such detector")
