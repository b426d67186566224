import pickle
import sys
import threading
from pathlib import Path

import pytest

import clew.storage
from clew.base.errors import InputError, StoreError
from clew.base.urls import as_path, is_url, local_path
from clew.storage import object_store
from clew.storage.place import AccessDeniedError, ChangedError, Entry, Place, UnreachableError
from clew.storage.places import FolderPlace, open_place
from tests.object_server import ObjectServer

pytestmark = pytest.mark.slow


@pytest.fixture(params=["folder", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "folder":
        return open_place(tmp_path / "place")
    return open_place(request.getfixturevalue("s3_url"))


def test_a_name_is_created_only_once(place: Place, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"from a file")
    assert place.create("a", source)
    assert not place.create("a", b"again")
    assert place.read("a", 100).data == b"from a file"
    assert place.stat("a") == Entry(size=11, version=place.read("a", 100).version)


def test_one_of_many_creators_wins(place: Place) -> None:
    wins: list[int] = []

    def create(number: int) -> None:
        if place.create("lease", b"%d" % number):
            wins.append(number)

    threads = [threading.Thread(target=create, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [place.read("lease", 9).data] == [b"%d" % n for n in wins]


def test_a_folder_that_is_removed_meanwhile_is_made_again_for_its_next_file(tmp_path: Path) -> None:
    """As when one process of a capture has finished and another claims its last shard."""
    place, failures = FolderPlace(tmp_path / "place"), list[Exception]()

    def write_and_delete(name: str) -> None:
        try:
            for _ in range(300):
                assert place.create(name, b"content")
                assert place.read(name, 9).data == b"content"
                place.delete(name)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=write_and_delete, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        place.remove_if_empty()
    assert failures == []
    place.remove_if_empty()
    assert not place.path.exists()


def test_a_file_is_replaced_only_at_the_version_that_was_read(place: Place) -> None:
    first = place.replace("manifest", b"1", None)
    second = place.replace("manifest", b"2", first)
    with pytest.raises(ChangedError):
        place.replace("manifest", b"3", first)
    with pytest.raises(ChangedError):
        place.replace("other", b"3", first)
    assert place.read("manifest", 9) == place.read("manifest", 9)
    assert place.read("manifest", 9).version == second


def test_ranges_of_a_file_are_read(place: Place) -> None:
    place.create("shard", bytes(range(100)))
    pieces = place.read_ranges("shard", [(10, 3), (0, 1), (90, 10)])
    assert [bytes(piece) for piece in pieces] == [
        bytes([10, 11, 12]),
        b"\0",
        bytes(range(90, 100)),
    ]
    assert place.read_ranges("shard", []) == []
    with pytest.raises(EOFError, match="ends before byte 101"):
        place.read_ranges("shard", [(95, 6)])


def test_names_are_those_of_the_folder_itself(place: Place) -> None:
    assert place.names() == []
    for name in ("b", "a1", "a0"):
        place.create(name, b"")
    place.child("a9").create("deeper", b"")
    assert place.names() == ["a0", "a1", "b"]
    assert place.names("a") == ["a0", "a1"]
    assert place.child("a9").names() == ["deeper"]
    assert place.child("a9").url == f"{place.url}/a9"


def test_what_is_missing_or_too_large_is_not_read(place: Place) -> None:
    place.create("large", b"12345")
    assert place.stat("missing") is None
    place.delete("missing")
    with pytest.raises(FileNotFoundError):
        place.read("missing", 9)
    with pytest.raises(FileNotFoundError):
        place.read_ranges("missing", [(0, 1)])
    with pytest.raises(ValueError, match="larger than"):
        place.read("large", 4)
    place.delete("large")
    assert place.names() == []


def test_a_place_travels_to_another_process(place: Place) -> None:
    place.create("a", b"1")
    assert pickle.loads(pickle.dumps(place)).read("a", 9).data == b"1"


def test_paths_and_file_urls_are_local(tmp_path: Path) -> None:
    assert not is_url(tmp_path)
    assert not is_url("file:///a/b")
    assert not is_url("C:/odd:name")
    assert is_url("s3://bucket")
    assert is_url(Path("s3://bucket/x"))
    assert local_path("file:///a%20b/c") == Path("/a b/c")
    assert open_place(f"file://{tmp_path}/x").url == f"{tmp_path}/x"
    with pytest.raises(InputError, match='on this machine, not "s3://bucket/x"'):
        local_path(Path("s3://bucket/x"))
    with pytest.raises(InputError, match="three slashes"):
        local_path("file://folder/x")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ftp://host/x", "starts with s3://"),
        ("s3:///x", "names no bucket"),
        ("s3://key:hunter2@bucket/x", "without a user name"),
        ("https://a.blob.core.windows.net/c?sig=hunter2", "starts with s3://"),
        ("az://container/x?sig=hunter2", "credentials come"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_without_its_secret(url: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        open_place(url)
    assert "hunter2" not in str(caught.value)


@pytest.mark.usefixtures("object_server")
def test_a_missing_bucket_is_named() -> None:
    place = open_place("s3://no-such-bucket/x")
    for attempt in (
        lambda: place.create("a", b"1"),
        lambda: place.names(),
        lambda: place.read("a", 9),
        lambda: place.delete("a"),
    ):
        with pytest.raises(StoreError, match='"s3://no-such-bucket/x" .* does not exist'):
            attempt()


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        ("403 Forbidden", "AccessDenied", "access is denied \\(403 AccessDenied"),
        ("400 Bad Request", "ExpiredToken", "credentials have expired"),
        ("403 Forbidden", "RequestTimeTooSkewed", "clock differs"),
        ("403 Forbidden", "InvalidAccessKeyId", "does not accept these credentials"),
        ("403 Forbidden", "AuthenticationFailed", "does not accept these credentials"),
    ],
)
def test_a_refused_request_is_explained_in_a_sentence(
    status: str, code: str, message: str, object_server: ObjectServer, s3_url: str
) -> None:
    place = open_place(s3_url)
    for attempt in (lambda: place.read("a", 9), lambda: place.names()):
        with (
            object_server.refusing("GET", status, code),
            pytest.raises(AccessDeniedError, match=message) as caught,
        ):
            attempt()
        assert "AKIATEST" not in str(caught.value)
        assert "http:" not in str(caught.value)


@pytest.mark.parametrize("status", ["500 Internal Server Error", "503 Slow Down"])
@pytest.mark.parametrize("method", ["PUT", "GET", "DELETE"])
def test_transient_errors_are_tried_again(
    status: str, method: str, object_server: ObjectServer, s3_url: str
) -> None:
    place = open_place(s3_url)
    with object_server.refusing(method, status, "SlowDown", times=2):
        assert place.create("a", b"1")
        assert place.read("a", 9).data == b"1"
        place.delete("a")
    assert place.stat("a") is None


def test_a_create_whose_answer_was_lost_is_not_taken_for_anothers(
    object_server: ObjectServer, s3_url: str
) -> None:
    place = open_place(s3_url)
    with object_server.losing_an_answer("PUT"):
        assert place.create("a", b"1")
    version = place.read("a", 9).version
    with object_server.losing_an_answer("PUT"):
        assert place.replace("a", b"2", version) == place.read("a", 9).version
    with object_server.losing_an_answer("PUT"):
        assert not place.create("a", b"2")


def test_a_server_that_is_gone_is_reported(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(object_store, "_MAX_RETRIES", 0)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(UnreachableError, match="does not answer"):
        open_place(s3_url).read("a", 9)


def test_credentials_come_from_a_profile(
    object_server: ObjectServer, s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "credentials").write_text(
        "[work]\naws_access_key_id = AKIAPROFILE\naws_secret_access_key = s\n"
    )
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_PROFILE", "work")
    assert open_place(s3_url).create("a", b"1")
    assert object_server.last_key == "AKIAPROFILE"
    monkeypatch.setenv("AWS_PROFILE", "other")
    object_store.open_bucket.cache_clear()
    with pytest.raises(AccessDeniedError, match="AWS_PROFILE"):
        open_place(s3_url)


def test_a_url_travels_as_a_path() -> None:
    path = as_path("s3://bucket//a/b/")
    assert str(path) == "s3://bucket/a/b"
    assert f"{path / 'c'}" == "s3://bucket/a/b/c"
    assert str(path.parent.with_name("d")) == "s3://bucket/d"
    assert str(as_path(Path("s3://bucket/a"))) == "s3://bucket/a"
    assert pickle.loads(pickle.dumps(path)) == path
    assert not path.exists()
    assert open_place(path).url == "s3://bucket/a/b"


@pytest.mark.parametrize("package", ["obstore", "botocore"])
def test_a_missing_package_is_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "clew.storage.object_store")
    monkeypatch.delattr(clew.storage, "object_store")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=rf'need the package {package}.*"clew\[cloud\]"'):
        open_place("s3://bucket/x")


def test_a_file_url_that_became_a_path_is_still_one() -> None:
    assert as_path(Path("file:///tmp/a b")) == as_path("file:///tmp/a b") == Path("/tmp/a b")
