"""Model files round-trip, and damaged ones give one clear error."""

import resource
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from clew.base.errors import StoreError
from clew.engine.model_files import Wanted, check_about, read_about, read_model, write_model


def written(folder: Path, network: nn.Module, **about: Any) -> Path:
    path = folder / "model.safetensors"
    tensors = {f"network.{name}": value for name, value in network.state_dict().items()}
    write_model(path, tensors, about)
    return path


def test_network_round_trips(tmp_path: Path) -> None:
    network, other = nn.Linear(3, 2), nn.Linear(3, 2)
    path = written(tmp_path, network, settings={"size": 3})
    saved = read_model(path)
    saved.load_into(other, name="linear", prefix="network.")
    assert torch.equal(other.weight, network.weight) and torch.equal(other.bias, network.bias)
    assert saved.about == read_about(path) == {"settings": {"size": 3}}


class Tables(nn.Linear):
    """Has a buffer that is not stored, a tensor as an attribute, and others in a list."""

    def __init__(self, *, buffer: bool = False, attribute: bool = False, many: bool = False):
        super().__init__(2, 3)
        self.attribute = torch.ones(2) if attribute else None
        self.many = [torch.ones(2) if many else None]
        if buffer:
            self.register_buffer("table", torch.ones(2), persistent=False)


@pytest.mark.parametrize("kept", ["", "buffer", "attribute", "many"])
def test_built_network_has_the_weights_of_the_file_and_its_own_tensors(
    tmp_path: Path, kept: str
) -> None:
    before = Tables()
    write_model(tmp_path / "a", before.state_dict(), {})
    options = {kept: True} if kept else {}
    network = read_model(tmp_path / "a").build(lambda: Tables(**options), name="tables")
    assert isinstance(network, Tables)
    torch.testing.assert_close(network.weight, before.weight)
    assert network.weight.requires_grad and network.bias.tolist() == before.bias.tolist()
    own = {"buffer": getattr(network, "table", None), "many": network.many[0]}
    own["attribute"] = network.attribute
    assert {name: None if value is None else value.tolist() for name, value in own.items()} == {
        name: [1, 1] if name == kept else None for name in own
    }


def test_tied_weights_are_written_twice(tmp_path: Path) -> None:
    shared = torch.arange(6.0)
    write_model(tmp_path / "a", {"a": shared, "b": shared[:3], "c": shared}, {})
    read = read_model(tmp_path / "a").read(["a", "b", "c"])
    assert torch.equal(read["a"], shared) and torch.equal(read["b"], shared[:3])
    assert torch.equal(read["c"], shared)


@pytest.mark.parametrize("other", [nn.Linear(4, 2), nn.Linear(3, 2, bias=False), nn.LSTM(3, 2)])
def test_weights_of_another_network_are_refused(tmp_path: Path, other: nn.Module) -> None:
    path = written(tmp_path, nn.Linear(3, 2))
    with pytest.raises(
        StoreError, match='do not match the network "mine" in this version .*again'
    ) as e:
        read_model(path).load_into(other, name="mine", prefix="network.")
    assert "\n" not in str(e.value)


def test_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"there is no .*a\.safetensors.*: train first"):
        read_model(tmp_path / "a.safetensors")


@pytest.mark.parametrize("kept", [0, 4, 30, -1])
def test_truncated_file_is_reported(tmp_path: Path, kept: int) -> None:
    path = written(tmp_path, nn.Linear(3, 2), settings={})
    path.write_bytes(path.read_bytes()[:kept])
    for read in (read_model, read_about):
        with pytest.raises(StoreError, match="cannot be read .* damaged"):
            read(path)


def test_file_larger_than_the_memory_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, nn.Linear(3, 2), settings={})
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=100))
    with pytest.raises(StoreError, match=r"of memory: use a machine with more") as caught:
        read_model(path)
    assert "damaged" not in str(caught.value)


def test_negative_variance_is_reported(tmp_path: Path) -> None:
    network = nn.BatchNorm1d(2)
    network.running_var[:] = torch.tensor([1.0, -1.0])
    path = written(tmp_path, network)
    with pytest.raises(StoreError, match=r"damaged \(running_var contains"):
        read_model(path).load_into(nn.BatchNorm1d(2), name="mine", prefix="network.")


@pytest.mark.slow
def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    path = written(tmp_path, nn.Linear(3, 2), settings={"epochs": 7})
    whole = path.read_bytes()

    def read() -> None:
        saved = read_model(path)
        saved.read(saved.kinds)
        saved.check(nn.Linear(3, 2), name="mine", prefix="network.")

    read()
    for place in range(len(whole)):
        if whole[place] == ord(" "):  # after the header, to align what follows
            continue
        path.write_bytes(
            whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :]
        )
        with pytest.raises(StoreError):
            read()


@pytest.mark.parametrize("header", [None, {"other": "{}"}, {"clew": "{no"}, {"clew": "[1]"}])
def test_file_not_written_by_clew_is_reported(
    tmp_path: Path, header: dict[str, str] | None
) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "a", metadata=header)
    with pytest.raises(StoreError, match="cannot be read .* not written by clew"):
        read_model(tmp_path / "a")


def test_folder_is_refused_as_a_model(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be read"):
        read_model(tmp_path)


@pytest.mark.parametrize(
    ("about", "wrong"),
    [
        ({}, "settings.network is missing"),
        ({"settings": 3}, "settings.network is missing"),
        ({"settings": {"network": "new"}}, "settings.network is 'new'"),
        ({"settings": {"network": ["lstm"]}}, "settings.network is"),
        ({"settings": {"network": "lstm", "size": "3"}}, "settings.size is '3'"),
        ({"settings": {"network": "lstm"}}, "settings.size is missing"),
    ],
)
def test_incomplete_description_is_reported(about: dict[str, Any], wrong: str) -> None:
    wanted: Wanted = {"settings.network": {"lstm"}, "settings.size": int | None}
    with pytest.raises(StoreError, match=f'"a" is not a model .its {wrong}.*: train one.'):
        check_about(Path("a"), about, wanted, what="a model", advice="train one")
    right = {"settings": {"network": "lstm", "size": None}}
    check_about(Path("a"), right, wanted, what="a model", advice="train one")


def test_full_disk_is_reported_and_the_old_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "last.safetensors"
    write_model(path, {"a": torch.zeros(10)}, {})
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(StoreError, match="cannot be written .* Free some space"):
            write_model(path, {"a": torch.zeros(10_000)}, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]
