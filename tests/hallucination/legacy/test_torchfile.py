"""Files written by torch.save yield arrays and the contents of graphs, and run no code."""

import io
import types
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from clew.base.errors import InputError, UnsafePickleError
from tests.hallucination.legacy.old_files import RunsCommand, load_torch_file

_DTYPES = [torch.float16, torch.float32, torch.float64, torch.int64, torch.int32, torch.bool]


def save(path: Path, content: Any, **options: Any) -> Path:
    torch.save(content, path, **options)
    return path


@pytest.mark.parametrize("dtype", [*_DTYPES, torch.uint8], ids=str)
def test_tensors_come_back_equal(tmp_path: Path, dtype: torch.dtype) -> None:
    tensor = torch.arange(-6, 6).to(dtype).reshape(3, 4)
    views = {"whole": tensor, "turned": tensor.T, "part": tensor[1:, ::2], "one": tensor[2, 1]}
    loaded = load_torch_file(save(tmp_path / "a.pt", views))
    for name, expected in views.items():
        np.testing.assert_array_equal(loaded[name], expected.numpy(), strict=True)


def test_bfloat16_becomes_float32(tmp_path: Path) -> None:
    tensor = torch.tensor([1.5, -3e38, float("nan"), 0.1], dtype=torch.bfloat16)
    loaded = load_torch_file(save(tmp_path / "a.pt", tensor))
    np.testing.assert_array_equal(loaded, tensor.float().numpy(), strict=True)


def test_empty_tensors_are_read(tmp_path: Path) -> None:
    loaded = load_torch_file(save(tmp_path / "a.pt", torch.zeros(2, 0, dtype=torch.long)))
    np.testing.assert_array_equal(loaded, np.zeros((2, 0), np.int64), strict=True)


def test_repeated_rows_of_a_large_tensor_are_read(tmp_path: Path) -> None:
    large = torch.arange(2 * 70_000.0).reshape(2, 70_000)
    repeated = large[:, :1].expand(2, 3)  # steps of 70,000 and 0
    loaded = load_torch_file(save(tmp_path / "a.pt", repeated))
    np.testing.assert_array_equal(loaded, repeated.numpy(), strict=True)


def test_graphs_are_inert(tmp_path: Path, graph_classes: types.ModuleType) -> None:
    graph = graph_classes.Data(x=torch.ones(2, 3), edge_index=torch.tensor([[0], [1]]))
    loaded = load_torch_file(save(tmp_path / "a.pt", [graph]))
    mapping = loaded[0].state["_store"].state["_mapping"]
    np.testing.assert_array_equal(mapping["x"], np.ones((2, 3)))
    assert type(loaded[0]).__name__ == "Inert"


def test_commands_in_a_file_are_not_executed(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    path = save(tmp_path / "a.pt", {"sequences": [RunsCommand(f'touch "{trap}"')]})
    with pytest.raises(UnsafePickleError, match=r"a\.pt.*\w+\.system"):
        load_torch_file(path)
    assert not trap.exists()


def test_models_are_rejected(tmp_path: Path) -> None:
    path = save(tmp_path / "a.pt", torch.nn.Linear(1, 1))
    with pytest.raises(UnsafePickleError, match="torch.nn.modules.linear.Linear"):
        load_torch_file(path)


def _rewrite(path: Path, change: dict[str, bytes], **options: Any) -> Path:
    """The same zip with the contents of some entries replaced."""
    content = io.BytesIO(path.read_bytes())
    with zipfile.ZipFile(content) as old, zipfile.ZipFile(path, "w", **options) as new:
        for name in old.namelist():
            new.writestr(name, change.get(name.split("/", 1)[1], old.read(name)))
    return path


def test_tensor_beyond_its_storage_is_rejected(tmp_path: Path) -> None:
    path = save(tmp_path / "a.pt", torch.arange(7, dtype=torch.uint8))
    with zipfile.ZipFile(path) as archive:
        pickled = archive.read("a/data.pkl")
    # K\x07\x85: the shape (7,), of which the first K\x07 is the storage's own count.
    grown = pickled.replace(b"K\x07\x85", b"K\x09\x85")
    assert grown != pickled
    with pytest.raises(InputError, match="exceeds its storage of 7 values"):
        load_torch_file(_rewrite(path, {"data.pkl": grown}))


def test_storage_of_the_wrong_size_is_rejected(tmp_path: Path) -> None:
    path = _rewrite(save(tmp_path / "a.pt", torch.zeros(4)), {"data/0": b"\0" * 12})
    with pytest.raises(InputError, match="exceeds its storage of 3 values"):
        load_torch_file(path)


def test_an_array_cannot_pass_for_a_storage(tmp_path: Path) -> None:
    class Sneaky:
        def __reduce__(self) -> tuple[Any, ...]:
            arguments = (np.zeros((1000, 0)), 0, (1000,), (1,), False, None)
            return torch._utils._rebuild_tensor_v2, arguments

    with pytest.raises(UnsafePickleError, match="a tensor has no storage"):
        load_torch_file(save(tmp_path / "a.pt", Sneaky()))


def test_compressed_tensors_are_read(tmp_path: Path) -> None:
    path = save(tmp_path / "a.pt", torch.ones(1000))
    loaded = load_torch_file(_rewrite(path, {}, compression=zipfile.ZIP_DEFLATED))
    np.testing.assert_array_equal(loaded, np.ones(1000))


def test_old_torch_format_is_rejected_with_a_way_to_convert_it(tmp_path: Path) -> None:
    path = save(tmp_path / "a.pt", torch.zeros(1), _use_new_zipfile_serialization=False)
    with pytest.raises(InputError, match=r"before PyTorch 1\.6.*weights_only=True"):
        load_torch_file(path)


def test_truncated_and_foreign_files_are_rejected(tmp_path: Path) -> None:
    whole = save(tmp_path / "a.pt", torch.zeros(100)).read_bytes()
    path = tmp_path / "b.pt"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="damaged or truncated"):
        load_torch_file(path)
    path.write_bytes(b"hello")
    with pytest.raises(InputError, match="was not written by torch.save"):
        load_torch_file(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.txt", "x")
    with pytest.raises(InputError, match="no data.pkl"):
        load_torch_file(path)
