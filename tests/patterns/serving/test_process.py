"""`clew patterns serve` as a process: what it prints, whom it lets in, and how it ends."""

import re
import signal
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.hallucination.capture.processes import ClewProcess
from tests.patterns.identification.making import save_color_model
from tests.patterns.serving.serving import photo_of

KEY = "sk-of-this-test-0001"
_ADDRESS = re.compile(r"serving colors \(3 classes\) at (http://[\d.:]+/identify)")


def identify(address: str, key: str) -> int:
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "image/png"}
    request = urllib.request.Request(address, photo_of("red"), headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


@pytest.mark.slow
def test_a_served_model_requires_its_key_and_ends_with_exit_code_0(tmp_path: Path) -> None:
    model = save_color_model(tmp_path / "colors")
    words = ["patterns", "serve", "--model", str(model), "--port", "0"]
    with ClewProcess(words, tmp_path / "log", CLEW_API_KEYS=KEY) as process:
        assert process.wait_until(lambda: _ADDRESS.search(process.output) is not None)
        found = _ADDRESS.search(process.output)
        assert found
        assert identify(found[1], KEY) == 200 and identify(found[1], "another key") == 401
        process.send(signal.SIGTERM)
        assert process.wait() == 0
        assert "Traceback" not in process.output and KEY not in process.output
