"""`clew serve` as a process: what it prints, and how it ends."""

import signal
import subprocess
import sys
from pathlib import Path

import openai
import pytest

from tests.hallucination.live.service.serving import process_serving

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.mark.slow
def test_a_signal_lets_streams_finish_and_the_exit_code_is_0(
    detector_folder: Path, chat_folder: Path
) -> None:
    key = "sk-of-this-test-0001"
    options = ("--model", chat_folder, "--drain-seconds", "60")
    with process_serving(detector_folder, *options, CLEW_API_KEYS=key) as (process, address):
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=address, api_key="wrong", max_retries=0).models.list()
        client = openai.OpenAI(base_url=address, api_key=key, max_retries=0)
        assert [one.id for one in client.models.list()] == [chat_folder.name]
        stream = client.chat.completions.create(
            model=chat_folder.name,
            messages=[{"role": "system", "content": "a"}, *QUESTION],  # type: ignore[list-item]
            max_tokens=50,
            stream=True,
        )
        next(stream)
        process.send_signal(signal.SIGTERM)
        assert [chunk.choices[0].finish_reason for chunk in stream][-1] in ("length", "stop")
        assert process.wait(timeout=60) == 0
        assert process.stdout is not None
        printed = process.stdout.read()
        assert "Traceback" not in printed and "capital of France" not in printed


@pytest.mark.slow
def test_a_damaged_detector_is_one_message(detector_folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "detector"
    copy.mkdir()
    for path in detector_folder.iterdir():
        content = bytearray(path.read_bytes())
        content[-5] ^= 1
        (copy / path.name).write_bytes(content)
    command = [sys.executable, "-m", "clew", "serve", str(copy), "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode not in (0, -signal.SIGKILL)
    assert "Traceback" not in done.stderr and done.stderr.startswith("clew: ")
