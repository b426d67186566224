"""A capture on a machine that is too small: device memory and disks that do not suffice."""

import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import torch

from clew.base.errors import ClewError, DiskFullError
from clew.base.progress import Event
from clew.hallucination.llm.decoder import Decoder
from clew.storage.manifest import read_manifest
from clew.storage.writer import ShardWriter
from tests.builders import ask, tiny_tokenizer, write_lines
from tests.events import notes
from tests.stores import assert_nearly_same_store, assert_same_store


@pytest.mark.slow
def test_out_of_device_memory_halves_the_batch_with_a_note(
    capture: Any, compact_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_device_memory(monkeypatch, prompts=4)
    events: list[Event] = []
    assert capture(reporter=events.append).finished
    sentence = "out of device memory: continuing with 4 prompts at a time"
    assert sentence in notes(events)
    assert f"shard 0: {sentence}" in read_manifest(tmp_path / "new").notes
    assert_nearly_same_store(tmp_path / "new", compact_store)


@pytest.mark.slow
def test_prompt_that_does_not_fit_even_alone_is_named(
    capture: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_device_memory(monkeypatch, prompts=4, but_never="Lyon")
    lines = ask(9, q7="who was it that went there?", q8="who is in Lyon?")
    with pytest.raises(ClewError, match="question q8 with .* does not fit in the memory of cpu"):
        capture(questions=write_lines(tmp_path / "big.jsonl", lines))


@pytest.mark.slow
def test_out_of_memory_during_estimate_halves_the_batch(
    capture: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    time_batch = Decoder.time_batch

    def limited(decoder: Decoder, given: list[list[int]]) -> Any:
        if len(given) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return time_batch(decoder, given)

    monkeypatch.setattr(Decoder, "time_batch", limited)
    assert capture().finished


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("clew.hallucination.llm.decoder.batching_error", "a batch of three prompts"),
        ("clew.hallucination.llm.decoder.Decoder.time_batch", "a single prompt"),
        ("clew.hallucination.llm.observe.listen_to_whole", "the full trace of [0-9]+ tokens"),
    ],
)
def test_out_of_memory_with_the_smallest_batch_is_an_error(
    capture: Any, monkeypatch: pytest.MonkeyPatch, name: str, what: str
) -> None:
    def too_little(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(name, too_little)
    with pytest.raises(ClewError, match=f"{what} does not fit in the memory of cpu. Use"):
        capture(num_samples=3, keep="full")


@pytest.mark.slow
def test_disk_that_is_too_small_is_rejected_before_the_work(
    capture: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = SimpleNamespace(free=10_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
    with pytest.raises(DiskFullError, match=r"may write up to .*, but .* has 10 kB free"):
        capture()
    assert not list((tmp_path / "new").glob("batch_*"))
    free.free = 10**12
    assert capture().finished


@pytest.mark.slow
def test_failed_write_never_leaves_a_shard_marked_as_finished(
    capture: Any, compact_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last of a shard's three writes fails late, when closing it may already be queued."""
    write, calls = ShardWriter.write, []

    def failing(writer: ShardWriter, batch: pa.RecordBatch) -> None:
        calls.append(batch.num_rows)
        if len(calls) == 3:
            time.sleep(0.2)
            raise DiskFullError("the disk is full")
        write(writer, batch)

    with monkeypatch.context() as patch:
        patch.setattr(ShardWriter, "write", failing)
        with pytest.raises(DiskFullError):
            capture()
    assert read_manifest(tmp_path / "new").shards == ()
    assert not (tmp_path / "new" / "batch_0000.arrow").exists()
    assert capture().traces_made == 54
    assert_same_store(tmp_path / "new", compact_store)


def limit_device_memory(
    monkeypatch: pytest.MonkeyPatch, prompts: int, but_never: str | None = None
) -> None:
    """Answering more prompts at a time raises what CUDA raises; so does one particular text."""
    answer = Decoder.answer
    tokenizer = tiny_tokenizer()

    def limited(decoder: Decoder, given: list[list[int]]) -> Any:
        texts = [tokenizer.decode(prompt) for prompt in given]
        if len(given) > prompts or (but_never and any(but_never in text for text in texts)):
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return answer(decoder, given)

    monkeypatch.setattr(Decoder, "answer", limited)
