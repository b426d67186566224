"""Hostile clients of `clew serve`: each gets a clear error, the others are answered, and nothing of
them stays behind."""

import operator
import signal
from pathlib import Path

import psutil
import pytest

from tests.hallucination.live.service.hostile import (
    ATTACKS,
    SECRET,
    Target,
    assert_alive,
    read_all,
)
from tests.hallucination.live.service.serving import MODEL, Served, process_serving


@pytest.mark.parametrize("attack", ATTACKS)
def test_hostile_clients_get_an_error_and_others_an_answer(served: Served, attack: str) -> None:
    target = Target(address=served.address, model=MODEL)
    ATTACKS[attack](target)
    assert_alive(target)
    served.wait_until_idle()


@pytest.mark.slow
def test_nothing_stays_of_hostile_clients_of_a_process(
    detector_folder: Path, chat_folder: Path, tmp_path: Path
) -> None:
    options = ("--model", chat_folder, "--drain-seconds", 1, "--model-name", MODEL)
    key, words = "sk-of-this-test-0002", (detector_folder, *options)
    with process_serving(tmp_path / "log", *words, CLEW_API_KEYS=key) as (process, address):
        target = Target(address=address.removesuffix("v1"), model=MODEL, key=key)
        watched = psutil.Process(process.pid)
        sizes = [_attack_all(target, watched) for _ in range(2)]
        memory, threads, files = map(operator.sub, *reversed(sizes))
        assert memory < 32 << 20
        # A pool of threads may have grown; of every client that was kept, there would be hundreds.
        assert threads < 20 and files < 20
        streams = [target.open_stream(f"tell {SECRET}", 900) for _ in range(4)]
        process.send(signal.SIGTERM)
        for stream in streams:
            with stream:
                assert read_all(stream).rstrip().endswith((b"data: [DONE]", b"0"))
        assert process.wait() == 0
        assert not any(word in process.output for word in (SECRET, "Traceback", key))


def _attack_all(target: Target, process: psutil.Process) -> tuple[int, int, int]:
    """The server's memory, threads and open files after every attack."""
    for attack in ATTACKS.values():
        attack(target)
    while len(process.net_connections()) > 1:  # those that were left a moment ago
        assert_alive(target)
    return process.memory_info().rss, process.num_threads(), process.num_fds()
