"""POST /identify and its neighbors, over real HTTP."""

import base64
import io
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from PIL import Image

from clew.patterns.trained.model import PatternModel
from tests.patterns.photos.hostile import BOMBS
from tests.patterns.serving.serving import (
    LIMIT_BYTES,
    ServedPhotos,
    photo_of,
    photo_of_noise,
    serving,
)

pytestmark = pytest.mark.slow

KEY = "sk-a-key-of-a-test"


def test_a_photo_gets_the_classes_that_identify_gives(
    served: ServedPhotos, color_model: PatternModel, tmp_path: Path
) -> None:
    (tmp_path / "a.jpg").write_bytes(photo_of("red", "JPEG"))
    [expected] = color_model.predict(tmp_path / "a.jpg")
    status, found = served.send("identify", photo_of("red", "JPEG"), name="a.jpg", top_k=2)
    assert status == 200 and found["photo"] == "a.jpg" and found["model"] == "colors"
    assert found["label"] == "red" and found["doubtful"] is False
    assert (found["width"], found["height"]) == (60, 40)
    best = [(one["class"], one["probability"]) for one in found["best"]]
    assert best == [(label, pytest.approx(p, abs=1e-6)) for label, p in expected.top_k(2)]
    assert found["confidence"] == best[0][1] and "heat_map" not in found


def test_idle_uploads_lock_nobody_out(served: ServedPhotos) -> None:
    place, photo, statuses = urlsplit(served.address), photo_of("red"), []
    idle = b"POST /identify HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 900\r\n\r\nx"
    with ExitStack() as opened:
        for _ in range(100):
            client = socket.create_connection((str(place.hostname), int(place.port or 0)), 60)
            opened.enter_context(client).sendall(idle)
            statuses.append(served.send("identify", photo)[0])
    assert statuses == [200] * 100


def test_json_with_base64_gets_the_same_answer(served: ServedPhotos) -> None:
    photo = photo_of("green")
    text = base64.b64encode(photo).decode()
    plain = served.send("identify", photo, name="a.png", heat_map=True)
    for image in (text, f"data:image/png;base64,{text}"):
        body = {"image": image, "name": "a.png", "heat_map": True}
        assert served.send("identify", body) == plain


def test_a_heat_map_has_the_shape_of_the_photo(served: ServedPhotos) -> None:
    _, found = served.send(
        "identify", photo_of("red", sides=(300, 100)), heat_map="true", preview=1
    )
    for part in ("heat_map", "preview"):
        head, _, content = found[part].partition("base64,")
        assert head == "data:image/jpeg;"
        with Image.open(io.BytesIO(base64.b64decode(content))) as drawn:
            assert drawn.size == (480, 160)


def test_a_photo_unlike_every_class_is_unknown(served: ServedPhotos) -> None:
    _, known = served.send("identify", photo_of("red"))
    _, other = served.send("identify", photo_of_noise())
    assert known["unknown"] is False and known["typicality"] > 0.05
    assert other["unknown"] and other["doubtful"] and other["typicality"] < 0.05


def test_the_model_is_described_for_clients(
    served: ServedPhotos, color_model: PatternModel
) -> None:
    status, told = served.send("model")
    assert status == 200 and told["classes"] == list(color_model.classes)
    assert told["heat_maps"] and told["max_bytes"] == LIMIT_BYTES
    assert str(color_model.folder.parent) not in str(told), "clients learn no path"


@pytest.mark.parametrize(
    ("status", "code", "body", "query"),
    [
        (400, "invalid_value", b"", {}),
        (422, "not_an_image", b"no photo at all", {}),
        (422, "not_an_image", b"<svg onload=alert(1)>", {}),
        (422, "truncated", photo_of("red")[:80], {}),
        (422, "tiny", photo_of("red", sides=(2, 2)), {}),
        (413, "request_too_large", bytes(LIMIT_BYTES + 1), {}),
        (400, "invalid_value", photo_of("red"), {"top_k": "0"}),
        (400, "invalid_value", photo_of("red"), {"top_k": "9" * 5000}),
        (400, "invalid_value", photo_of("red"), {"top_k": "\N{SUPERSCRIPT TWO}"}),
        (400, "invalid_value", photo_of("red"), {"heat_map": "perhaps"}),
        (400, "invalid_value", photo_of("red"), {"name": "x" * 300}),
        (400, "invalid_value", photo_of("red"), {"<script>": "1"}),
        (400, "invalid_value", {"image": 7}, {}),
        (400, "invalid_value", {"image": "not Base64!"}, {}),
        (400, "invalid_value", {"image": "", "top_k": 1}, {}),
        (400, "invalid_value", {"top_k": "3", "image": "aGk="}, {}),
        (400, "invalid_value", ["aGk="], {}),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_reason(
    served: ServedPhotos, status: int, code: str, body: Any, query: dict[str, str]
) -> None:
    found, told = served.send("identify", body, **query)
    assert (found, told["error"]["code"]) == (status, code)
    assert told["error"]["message"].endswith(".") and len(str(told)) < 1000
    assert served.send("identify", photo_of("red"))[0] == 200


def test_a_wrong_option_is_refused_with_its_value_and_what_to_give(served: ServedPhotos) -> None:
    for name, value, wanted in (
        ("top_k", "abc", "a whole number from 1 to 1000"),
        ("heat_map", "perhaps", "true or false"),
    ):
        _, told = served.send("identify", photo_of("red"), **{name: value})
        assert told["error"]["message"] == f'{name} is "{value}": give {wanted}.'


def test_bombs_are_refused_by_their_header(served: ServedPhotos) -> None:
    for make in BOMBS.values():
        status, told = served.send("identify", make()[:LIMIT_BYTES], heat_map=True)
        assert status == 422, told


def test_forms_are_refused_with_what_to_send(served: ServedPhotos) -> None:
    status, told = served.send("identify", b"--x", "multipart/form-data; boundary=x")
    assert status == 415 and "as the body of the request" in told["error"]["message"]


def test_too_many_photos_at_once_are_refused(color_model: PatternModel, tmp_path: Path) -> None:
    with (
        serving(color_model, tmp_path, max_waiting=1) as served,
        ThreadPoolExecutor(1) as other,
    ):
        is_held, may_go_on = threading.Event(), threading.Event()

        def hold() -> None:
            is_held.set()
            may_go_on.wait(60)

        held = [served.service._pool.submit(hold) for _ in range(2)]
        assert is_held.wait(60)
        first = other.submit(served.send, "identify", photo_of("red"))
        while not served.service.waiting:
            threading.Event().wait(0.01)
        status, told = served.send("identify", photo_of("red"))
        may_go_on.set()
        assert (status, told["error"]["code"]) == (429, "queue_full")
        assert first.result()[0] == 200 and [one.result(60) for one in held] == [None, None]


def test_keys_are_required_where_there_are_some(color_model: PatternModel, tmp_path: Path) -> None:
    with serving(color_model, tmp_path, keys=[KEY]) as served:
        for path in ("identify", "corrections"):
            assert served.send(path, photo_of("red"), label="red")[0] == 401
        assert served.send("model")[0] == 401
        assert served.send("corrections/00", method="DELETE")[0] == 401
        assert served.send("healthz") == (200, {"status": "ok"})
    assert not (tmp_path / "identified").exists()


def test_photos_are_counted_without_their_names(served: ServedPhotos) -> None:
    served.send("identify", photo_of("red"), name="my secret.png")
    text = served.service.metrics.render({})
    assert 'clew_photos_total{label="red",state="confident"} 1' in text and "secret" not in text
