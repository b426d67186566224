"""Real legacy files, where they are available."""

import gzip
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from clew.hallucination.legacy import convert_folder
from clew.hallucination.traces import TraceBatchLoader
from clew.storage.reader import ShardReader, read_value
from tests.hallucination.legacy.compare import assert_graphs_equal, assert_same_arrays

SHARED = Path(__file__).parents[2].parent / "shared" / "data" / "legacy"


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"{SHARED} with files of the old tools is absent")
def test_real_files_of_the_older_tools_are_converted(tmp_path: Path) -> None:
    result = convert_folder(SHARED, tmp_path)
    assert (result.complete, result.files, result.traces) == (True, 5, 13)
    loader = TraceBatchLoader(tmp_path / "traces_data")
    for batch in (0, 1):
        path = SHARED / "traces_data" / f"trivia_qa_traces_batch_{batch:04d}.pkl.gz"
        records = pickle.loads(gzip.decompress(path.read_bytes()))
        for trace, record in zip(loader.get_batch(batch), records, strict=True):
            assert_same_arrays(trace, record)
            prompt = trace["tokens_decoded"][: trace["prompt_length"]]
            assert "".join(prompt).endswith(f"Q: {trace['question']} A:")
    samples = tmp_path / "preprocessed_data"
    assert_graphs_equal(
        samples / "graphs/batch_0000.arrow", SHARED / "preprocessed_data/gnn/preprocessed_0000.pt"
    )
    sequences = torch.load(SHARED / "preprocessed_data/lstm_solo/preprocessed_0000.pt")["sequences"]
    column = ShardReader(samples / "sequences/batch_0000.arrow").record_batch(0)
    for row, sequence in enumerate(sequences):
        values = read_value(column.column("sequence"), row)
        np.testing.assert_array_equal(values, sequence.numpy().reshape(-1), strict=True)
