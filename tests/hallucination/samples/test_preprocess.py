"""The contents of samples: the values of the traces, and graphs equal to a slow reference."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from clew.base.errors import InputError
from clew.hallucination.samples.attention_graphs import Edges, strongest_edges
from clew.hallucination.samples.preprocess import preprocess_store
from clew.hallucination.samples.splits import read_splits
from clew.storage.reader import ShardReader, StoreReader
from clew.storage.verify import verify_store
from tests.hallucination.samples.trace_stores import (
    KINDS,
    read_samples,
    read_traces,
    reference_graph,
    rewrite_rows,
    score_of,
    stored_edges,
    tiny_preprocess,
)

LAYERS, DIM, NODE_DIM = 3, 32, 4


@pytest.mark.parametrize("kind", KINDS)
def test_every_trace_becomes_a_sample_at_the_same_position(
    preprocessed: Path, compact_store: Path, kind: str
) -> None:
    traces, rows = read_traces(compact_store), read_samples(preprocessed / kind)
    names = ("global_example_id", "example_id", "batch_number", "question_id")
    assert [[t[n] for n in names] for t in traces] == [[r[n] for n in names] for r in rows]
    scores = [score_of(row["global_example_id"]) for row in rows]
    assert [row["score"] for row in rows] == scores
    assert [row["label"] for row in rows] == [float(score < 0.5) for score in scores]
    listed = read_splits(preprocessed / "splits.csv")
    assert listed.global_example_id.tolist() == [row["global_example_id"] for row in rows]
    assert listed.score.tolist() == scores
    found = [(s.batch_number, s.rows) for s in StoreReader(preprocessed / kind).shards]
    assert found == [(s.batch_number, s.rows) for s in StoreReader(compact_store).shards]
    assert not verify_store(preprocessed / kind)


def test_sequences_are_the_last_states(preprocessed: Path, compact_store: Path) -> None:
    for row, trace in zip(
        read_samples(preprocessed / "sequences"), read_traces(compact_store), strict=True
    ):
        sequence = row["sequence"].reshape(LAYERS, DIM)
        np.testing.assert_array_equal(sequence, trace["last_hidden"], strict=True)


@pytest.mark.slow
def test_graphs_are_the_stored_edges(preprocessed: Path, compact_store: Path) -> None:
    for row, trace in zip(
        read_samples(preprocessed / "graphs"), read_traces(compact_store), strict=True
    ):
        expected = reference_graph(
            trace["edge_source"], trace["edge_weight"], top_k=4, threshold=0.0
        )
        assert stored_edges(row) == expected
        tokens = len(trace["tokens"])
        assert row["node_counts"].tolist() == [tokens] * LAYERS
        layer_of = np.array([target // tokens for _, target, _ in expected])
        assert row["edge_counts"].tolist() == np.bincount(layer_of, minlength=LAYERS).tolist()
        nodes = row["nodes"].reshape(LAYERS, tokens, NODE_DIM)
        np.testing.assert_array_equal(nodes, trace["nodes"], strict=True)


@pytest.mark.slow
def test_edges_never_point_to_later_tokens_or_other_layers(preprocessed: Path) -> None:
    for row in read_samples(preprocessed / "graphs"):
        source, target, tokens = row["edge_source"], row["edge_target"], row["node_counts"][0]
        assert (source <= target).all()
        assert (source // tokens == target // tokens).all()
        assert (row["edge_attr"] > 0).all()
        assert (np.diff(target) >= 0).all()


@pytest.mark.slow
def test_fewer_edges_and_features_can_be_requested(
    compact_store: Path, scores_file: Path, tmp_path: Path
) -> None:
    config = tiny_preprocess(
        compact_store, scores_file, tmp_path, top_k=2, node_dim=3, attn_threshold=0.3
    )
    preprocess_store(config)
    for row, trace in zip(
        read_samples(tmp_path / "graphs"), read_traces(compact_store), strict=True
    ):
        assert stored_edges(row) == reference_graph(
            trace["edge_source"], trace["edge_weight"], top_k=2, threshold=0.3
        )
        nodes = row["nodes"].reshape(LAYERS, -1, 3)
        np.testing.assert_array_equal(nodes, trace["nodes"][:, :, :3], strict=True)


def test_edges_in_any_order_are_cut_to_the_strongest() -> None:
    weight = np.array([[0.1, 0.5, 0.2, 0.5]], np.float16)
    cut = strongest_edges(Edges(source=np.array([[7, 1, 2, 3]]), weight=weight), 3)
    assert cut.source.tolist() == [[1, 3, 2]]
    np.testing.assert_array_equal(cut.weight, weight[:, [1, 3, 2]])


@pytest.mark.slow
def test_more_edges_than_stored_come_from_the_attention_maps(
    full_store: Path, scores_file: Path, tmp_path: Path
) -> None:
    preprocess_store(tiny_preprocess(full_store, scores_file, tmp_path, top_k=6))
    for row, trace in zip(read_samples(tmp_path / "graphs"), read_traces(full_store), strict=True):
        maps = trace["attentions"].astype(np.float32).mean(1).astype(np.float16)
        source = np.broadcast_to(np.arange(maps.shape[2]), maps.shape)
        expected = reference_graph(source, maps, top_k=6, threshold=0.0)
        edges = stored_edges(row)
        # Where two weights round to the same float16, either may be the stronger.
        assert [(t, w) for _, t, w in edges] == [(t, w) for _, t, w in expected]
        weights = {
            (s, t): maps.reshape(-1, maps.shape[2])[t, s % maps.shape[2]] for s, t, _ in edges
        }
        assert [weights[s, t] for s, t, _ in edges] == [w for _, _, w in edges]
        assert max(np.bincount(row["edge_target"])) == 6


def test_request_for_more_than_is_stored_is_rejected(
    compact_store: Path, scores_file: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="top_k is 5: .* has only 4 edges per token"):
        preprocess_store(tiny_preprocess(compact_store, scores_file, tmp_path / "a", top_k=5))
    with pytest.raises(InputError, match="node_dim is 9: .* has only 4 values per node"):
        preprocess_store(tiny_preprocess(compact_store, scores_file, tmp_path / "a", node_dim=9))
    assert not (tmp_path / "a").exists()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_record_batches_are_regrouped(
    compact_store: Path,
    scores_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    """Whatever the record batches of the traces, those of the samples have a good size."""
    store = rewrite_rows(compact_store, tmp_path / "traces", 70)
    monkeypatch.setattr("clew.hallucination.samples.shard_jobs.RECORD_BATCH_BYTES", 20_000)
    monkeypatch.setattr("clew.hallucination.samples.shard_jobs._REMAP_BYTES", 10_000)
    preprocess_store(tiny_preprocess(store, scores_file, tmp_path / "out"))
    reader = ShardReader(tmp_path / "out" / kind / "batch_0000.arrow")
    sizes = [reader.record_batch(index).num_rows for index in range(reader.num_record_batches)]
    assert sum(sizes) == 70 and 5 < len(sizes) < 35
    assert reader.schema.field("label").type == pa.float32()
    ids = reader.read_column("global_example_id").to_pylist()
    assert ids == [trace["global_example_id"] for trace in read_traces(store)]


def test_small_record_batches_become_one(preprocessed: Path, compact_store: Path) -> None:
    before = ShardReader(compact_store / "batch_0000.arrow").num_record_batches
    assert before > 1
    assert ShardReader(preprocessed / "graphs" / "batch_0000.arrow").num_record_batches == 1


def test_manifest_records_the_settings(preprocessed: Path) -> None:
    settings = StoreReader(preprocessed / "graphs").manifest.settings
    assert settings["shape"] == {"layers": 3, "dim": 32, "features": 4, "edge_features": 1}
    assert settings["source"]["store"] == "store"
    assert (settings["score_threshold"], settings["top_k"], settings["split"]) == (
        0.5,
        4,
        "70/15/15",
    )
    assert [source["records"] for source in settings["sources"]] == [20, 20, 20, 10]


@pytest.mark.slow
def test_single_kind_can_be_requested(
    compact_store: Path, scores_file: Path, tmp_path: Path
) -> None:
    preprocess_store(tiny_preprocess(compact_store, scores_file, tmp_path, kinds=("sequences",)))
    assert not (tmp_path / "graphs").exists()
    result = preprocess_store(tiny_preprocess(compact_store, scores_file, tmp_path))
    assert result.made == 70
    ids = [[row["global_example_id"] for row in read_samples(tmp_path / kind)] for kind in KINDS]
    assert ids[0] == ids[1]
    with pytest.raises(InputError, match="leave nothing to create"):
        tiny_preprocess(compact_store, scores_file, tmp_path, kinds=())
