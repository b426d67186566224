"""`clew serve` as a process: what it prints, and how it ends."""

import json
import resource
import shutil
import signal
import socket
import urllib.error
import urllib.request
from pathlib import Path

import openai
import psutil
import pytest

import clew
from clew.base.errors import StoreError
from clew.base.progress import ignore_event
from tests.hallucination.capture.processes import ClewProcess
from tests.hallucination.live.service.serving import process_serving

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.mark.slow
def test_a_signal_lets_streams_finish_and_the_exit_code_is_0(
    detector_folder: Path, chat_folder: Path, tmp_path: Path
) -> None:
    key = "sk-of-this-test-0001"
    words = (detector_folder, "--model", chat_folder, "--drain-seconds", 60)
    with (
        process_serving(tmp_path / "log", *words, CLEW_API_KEYS=key) as (process, address),
        openai.OpenAI(base_url=address, api_key="wrong", max_retries=0) as stranger,
        openai.OpenAI(base_url=address, api_key=key, max_retries=0) as client,
    ):
        with pytest.raises(openai.AuthenticationError):
            stranger.models.list()
        assert [one.id for one in client.models.list()] == [chat_folder.name]
        stream = client.chat.completions.create(
            model=chat_folder.name,
            messages=[{"role": "system", "content": "a"}, *QUESTION],  # type: ignore[list-item]
            max_tokens=50,
            stream=True,
        )
        next(stream)
        process.send(signal.SIGTERM)
        assert [chunk.choices[0].finish_reason for chunk in stream][-1] in ("length", "stop")
        assert process.wait() == 0
        assert "Traceback" not in process.output and "capital of France" not in process.output


@pytest.mark.slow
def test_memory_that_runs_out_ends_no_more_than_a_request(
    detector_folder: Path, chat_folder: Path, tmp_path: Path
) -> None:
    """The process really gets no more memory than it has."""
    model = Path(shutil.copytree(chat_folder, tmp_path / "tiny"))
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 100_000}))
    words = (detector_folder, "--model", model)
    with (
        process_serving(tmp_path / "log", *words) as (process, address),
        openai.OpenAI(base_url=address, api_key="none", max_retries=0, timeout=120) as client,
    ):

        def ask(words: str) -> int:
            messages = [{"role": "system", "content": words}, *QUESTION]
            found = client.chat.completions.create(
                model=model.name,
                messages=messages,  # type: ignore[arg-type]
                max_tokens=4,
            )
            return len(found.choices)

        large = "w" * 20_000
        assert ask("Be brief.") == 1
        limits = resource.prlimit(process.pid, resource.RLIMIT_AS)
        used = psutil.Process(process.pid).memory_info().vms
        resource.prlimit(process.pid, resource.RLIMIT_AS, (used + (32 << 20), limits[1]))
        with pytest.raises(openai.InternalServerError) as error:
            ask(large)
        assert (error.value.status_code, error.value.code) == (503, "out_of_memory")
        assert "Memory ran out" in str(error.value)
        assert ask("Be brief.") == 1
        resource.prlimit(process.pid, resource.RLIMIT_AS, limits)
        assert ask("w" * 1000) == 1
        process.send(signal.SIGTERM)
        assert process.wait() == 0


def test_a_damaged_detector_is_refused(detector_folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(detector_folder, tmp_path / "detector"))
    content = bytearray((copy / "detector.safetensors").read_bytes())
    content[-5] ^= 1
    (copy / "detector.safetensors").write_bytes(content)
    with pytest.raises(StoreError, match=r"detector\.safetensors"):
        clew.serve(copy, port=0, reporter=ignore_event)


@pytest.mark.slow
def test_a_signal_while_the_model_loads_ends_the_process_with_exit_code_0(
    embedded_folder: Path, tmp_path: Path
) -> None:
    """That of the ready detector; the server answers before."""
    (tmp_path / "clew/models").mkdir(parents=True)
    (tmp_path / "clew/models" / embedded_folder.name).symlink_to(embedded_folder)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words, cache = ["serve", "--port", str(port)], {"XDG_CACHE_HOME": str(tmp_path)}
    with ClewProcess(words, tmp_path / "log", **cache) as process:
        assert process.wait_until(lambda: is_serving(port))
        process.send(signal.SIGTERM)
        assert process.wait() == 0, process.output


def is_serving(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5).close()
    except urllib.error.HTTPError:  # not ready yet
        return True
    except OSError:
        return False
    return True
