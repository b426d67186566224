"""The calls documented for legacy scripts work as written, on a store written by clew."""

import gzip
import io
import os
import pickle
import pickletools
import shutil
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from clew import Trace, TraceBatchLoader, extract_batch_subset, merge_batches
from clew.base.errors import InputError, StoreError
from tests.stores import write_store

LAYERS, DIM, HEADS, NODE_DIM, EDGES = 3, 32, 4, 4, 4


@pytest.fixture
def loader(compact_store: Path) -> TraceBatchLoader:
    return TraceBatchLoader(compact_store)


@pytest.fixture
def workplace(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a store under its default name, as old scripts expect it."""
    monkeypatch.chdir(tmp_path)
    return store.rename(tmp_path / "traces_data")


def test_len_counts_batches_and_total_traces_counts_traces(loader: TraceBatchLoader) -> None:
    assert len(loader) == 4
    assert loader.total_traces == loader.get_total_traces() == 70


def test_batch_info_needs_no_data(workplace: Path) -> None:
    sizes = [path.stat().st_size for path in sorted(workplace.glob("batch_*"))]
    for path in workplace.glob("batch_*"):
        path.unlink()
    info = TraceBatchLoader().get_batch_info()
    assert [i["num_traces"] for i in info] == [20, 20, 20, 10]
    assert [i["bytes"] for i in info] == sizes
    assert info[3] == {
        "batch_idx": 3,
        "batch_number": 3,
        "filename": "batch_0003.arrow",
        "num_traces": 10,
        "size_mb": sizes[3] / 2**20,
        "bytes": sizes[3],
        "first_global_example_id": 60,
    }


def test_iter_batches_yields_batches_in_order(loader: TraceBatchLoader) -> None:
    batches = list(loader.iter_batches())
    assert [len(batch) for batch in batches] == [20, 20, 20, 10]
    assert [trace["example_id"] for trace in batches[1]] == list(range(20))
    assert {trace["batch_number"] for trace in batches[3]} == {3}


def test_iter_traces_follows_the_order_of_the_questions(loader: TraceBatchLoader) -> None:
    traces = list(loader.iter_traces())
    assert [trace["global_example_id"] for trace in traces] == list(range(70))
    assert [trace["question_id"] for trace in traces] == [f"q{i}" for i in range(70)]


def test_one_batch_is_a_list_of_its_traces(loader: TraceBatchLoader) -> None:
    batch = loader.get_batch(2)
    assert [trace["global_example_id"] for trace in batch] == list(range(40, 60))


@pytest.mark.parametrize("index", [4, -1])
def test_missing_batch_is_an_error(loader: TraceBatchLoader, index: int) -> None:
    with pytest.raises(IndexError, match=f"there is no batch {index} in .*: it has 4"):
        loader.get_batch(index)


def test_a_trace_is_found_by_its_global_id(loader: TraceBatchLoader) -> None:
    for global_id in (0, 19, 20, 47, 69):
        trace = loader.get_trace_by_global_id(global_id)
        assert trace is not None
        assert trace["global_example_id"] == global_id
    assert loader.get_trace_by_global_id(70) is None
    assert loader.get_trace_by_global_id(-1) is None


def test_compact_trace_has_documented_fields_and_shapes(loader: TraceBatchLoader) -> None:
    trace = loader.get_batch(1)[3]
    tokens = len(trace["tokens"])
    answer = tokens - trace["prompt_length"]
    assert tokens > trace["prompt_length"] > 0
    shapes = {name: trace[name].shape for name in trace if isinstance(trace[name], np.ndarray)}
    assert shapes == {
        "tokens": (tokens,),
        "token_logprobs": (answer,),
        "token_entropies": (answer,),
        "last_hidden": (LAYERS, DIM),
        "answer_hidden": (LAYERS, DIM),
        "nodes": (LAYERS, tokens, NODE_DIM),
        "edge_source": (LAYERS, tokens, EDGES),
        "edge_weight": (LAYERS, tokens, EDGES),
        "log_diagonal_all": (LAYERS, HEADS),
        "log_diagonal_answer": (LAYERS, HEADS),
        "laplacian_top": (LAYERS, HEADS, 25),
        "laplacian_answer": (LAYERS, HEADS),
        "lookback": (LAYERS, HEADS),
    }
    assert trace["accepted_answers"] == ["Paris"]
    assert trace["generated_answer_clean"] == trace["answer"]


@pytest.mark.slow
def test_full_trace_has_states_and_attention_as_the_older_tools_stored_them(
    full_store: Path,
) -> None:
    loader = TraceBatchLoader(full_store)
    for trace in loader.iter_traces():
        tokens = len(trace["tokens"])
        assert len(trace["hidden_states"]) == len(trace["attentions"]) == LAYERS
        assert trace["hidden_states"][1].shape == (tokens, DIM)
        assert trace["attentions"][2].shape == (HEADS, tokens, tokens)
        assert np.allclose(trace["attentions"].astype(np.float32).sum(-1), 1, atol=1e-2)
        last = trace["hidden_states"][:, -1]
        assert np.allclose(last, trace["last_hidden"], rtol=2e-3, atol=2e-3)
        answer = trace["hidden_states"][:, trace["prompt_length"] :].astype(np.float32)
        assert np.allclose(answer.mean(1), trace["answer_hidden"], rtol=4e-3, atol=4e-3)


def test_arrays_are_views_that_cannot_be_written(loader: TraceBatchLoader) -> None:
    nodes = loader.get_batch(0)[0]["nodes"]
    with pytest.raises(ValueError, match="read-only"):
        nodes[0, 0, 0] = 1


def test_error_for_a_field_missing_in_compact_stores_says_how_to_get_it(
    loader: TraceBatchLoader,
) -> None:
    trace = loader.get_batch(0)[0]
    assert "hidden_states" not in trace
    with pytest.raises(
        KeyError, match='no field "hidden_states" .*requires a store extracted with keep="full"'
    ):
        trace["hidden_states"]
    with pytest.raises(KeyError, match='no field "color"; it has: global_example_id, '):
        trace["color"]


def test_repr_of_a_trace_shows_question_and_answer(loader: TraceBatchLoader) -> None:
    trace = loader.get_trace_by_global_id(5)
    assert repr(trace).startswith("Trace(5, question=")


def test_batch_subset_can_be_pickled_and_loaded_without_clew(
    compact_store: Path, tmp_path: Path
) -> None:
    path = extract_batch_subset([1, 3], tmp_path / "some.pkl", compact_store)
    traces = pickle.loads(path.read_bytes())
    assert type(traces) is list
    assert {type(trace) for trace in traces} == {dict}
    assert [t["global_example_id"] for t in traces] == [*range(20, 40), *range(60, 70)]
    assert_same_trace(traces[20], TraceBatchLoader(compact_store).get_batch(3)[0])
    assert modules_named_in(path.read_bytes()) <= {"numpy", "builtins"}


def test_full_traces_are_pickled_as_lists_of_layers(full_store: Path, tmp_path: Path) -> None:
    merge_batches(tmp_path / "all.pkl", full_store)
    traces = pickle.loads((tmp_path / "all.pkl").read_bytes())
    assert len(traces) == 12
    for name in ("hidden_states", "attentions"):
        assert type(traces[4][name]) is list
        assert len(traces[4][name]) == LAYERS
    texts = traces[4]["tokens_decoded"]
    assert len(texts) == len(traces[4]["tokens"]) and traces[4]["question"] in "".join(texts)
    assert_same_trace(traces[4], TraceBatchLoader(full_store).get_batch(0)[4])


def test_a_pickle_can_be_compressed(compact_store: Path, tmp_path: Path) -> None:
    path = extract_batch_subset([3], tmp_path / "some.pkl.gz", compact_store)
    with gzip.open(path) as file:
        assert len(pickle.load(file)) == 10


def test_batch_subset_can_be_written_as_one_arrow_file(compact_store: Path, tmp_path: Path) -> None:
    path = extract_batch_subset([0, 3], tmp_path / "some.arrow", compact_store)
    with pa.memory_map(str(path)) as file:
        table = pa.ipc.open_file(file).read_all()
    assert sorted(table["global_example_id"].to_pylist()) == [*range(20), *range(60, 70)]


def test_merge_uses_all_batches_and_default_paths(workplace: Path) -> None:
    assert merge_batches() == Path("traces_data/all_traces_merged.pkl")
    assert len(pickle.loads((workplace / "all_traces_merged.pkl").read_bytes())) == 70


def test_missing_batch_is_rejected_before_anything_is_written(
    compact_store: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="there is no batch 4 in .*: it has 4, numbered from 0"):
        extract_batch_subset([0, 4], tmp_path / "new" / "some.pkl", compact_store)
    assert list(tmp_path.iterdir()) == []


def test_unknown_file_extension_is_rejected(compact_store: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r'"some.json" must end in .arrow, .pkl or .pkl.gz'):
        extract_batch_subset([0], tmp_path / "some.json", compact_store)
    assert list(tmp_path.iterdir()) == []


def test_missing_store_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreError, match='there is no store at "traces_data"'):
        TraceBatchLoader()
    with pytest.raises(StoreError, match="contains samples, not traces"):
        TraceBatchLoader(write_store(tmp_path / "samples"))


def test_store_can_be_read_while_it_is_being_written(store: Path) -> None:
    """Partially written files do not count as batches."""
    shutil.copy(store / "batch_0003.arrow", store / "batch_0004.arrow.part")
    assert len(TraceBatchLoader(store)) == 4


EXAMPLE_1 = """
from clew import TraceBatchLoader

loader = TraceBatchLoader()

# Calcular estadística global
total_tokens = 0
count = 0

for trace in loader.iter_traces():
    num_tokens = len(trace['tokens']) - trace['prompt_length']
    total_tokens += num_tokens
    count += 1

print(f"Promedio de tokens: {total_tokens / count:.2f}")
"""

EXAMPLE_3 = """
from clew import TraceBatchLoader, extract_batch_subset

loader = TraceBatchLoader()
total_batches = len(loader)

# 80% train, 10% val, 10% test
train_batches = list(range(0, int(0.8 * total_batches)))
val_batches = list(range(int(0.8 * total_batches), int(0.9 * total_batches)))
test_batches = list(range(int(0.9 * total_batches), total_batches))

# Extraer splits
extract_batch_subset(train_batches, "./traces_data/train_set.pkl")
extract_batch_subset(val_batches, "./traces_data/val_set.pkl")
extract_batch_subset(test_batches, "./traces_data/test_set.pkl")
"""


def test_example_1_of_the_page_runs_as_written(workplace: Path) -> None:
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(EXAMPLE_1, {})
    counts = [len(t["token_logprobs"]) for t in TraceBatchLoader(workplace).iter_traces()]
    assert printed.getvalue() == f"Promedio de tokens: {sum(counts) / 70:.2f}\n"


def test_example_3_of_the_page_runs_as_written(workplace: Path) -> None:
    exec(EXAMPLE_3, {})
    sizes = {}
    for name in ("train", "val", "test"):
        with open(workplace / f"{name}_set.pkl", "rb") as file:
            sizes[name] = len(pickle.load(file))
    assert sizes == {"train": 60, "val": 0, "test": 10}
    assert len(TraceBatchLoader()) == 4
    assert not [name for name in os.listdir(workplace) if name.endswith(".part")]


def assert_same_trace(plain: dict, trace: Trace) -> None:
    assert plain.keys() == {*trace, "generated_answer_clean", "tokens_decoded"}
    for name in (*trace, "generated_answer_clean"):
        assert np.array_equal(np.asarray(plain[name]), np.asarray(trace[name])), name


def modules_named_in(content: bytes) -> set[str]:
    """The packages whose functions a pickle calls when it is loaded."""
    strings, modules = [], set()
    for operation, argument, _ in pickletools.genops(content):
        if operation.name == "GLOBAL":
            modules.add(argument.split()[0])
        if operation.name == "STACK_GLOBAL":
            modules.add(strings[-2])
        if isinstance(argument, str):
            strings.append(argument)
    return {module.split(".")[0] for module in modules}
