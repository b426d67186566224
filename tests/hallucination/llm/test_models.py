"""Models are loaded from every kind of source that `--model` accepts."""

from pathlib import Path

import pytest
import torch

from clew.base.errors import InputError
from clew.hallucination.capture import load_model
from clew.hallucination.llm.embedded import read_gguf_once
from tests.builders import save_tiny_model


def test_model_folder_loads_model_and_tokenizer(tmp_path: Path) -> None:
    model, tokenizer = load_model(str(save_tiny_model(tmp_path)), dtype="float16", device="cpu")
    assert model.dtype == torch.float16
    assert not model.training
    assert tokenizer.decode(tokenizer.encode("in Paris")) == "in Paris"


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("/no/such/folder", 'there is no folder "/no/such/folder"'),
        ("nothing.gguf", 'there is no file "nothing.gguf"'),
        ("models/my/model", 'there is no folder "models/my/model"'),
        ("smolm2", r'unknown model "smolm2" \(did you mean "smollm2"\?\)'),
        ("SmolLM2", r'unknown model "SmolLM2" \(did you mean "smollm2"\?\)'),
    ],
)
def test_missing_model_is_named(name: str, match: str) -> None:
    with pytest.raises(InputError, match=match):
        load_model(name)


def test_built_in_model_can_be_converted_while_it_is_loaded() -> None:
    """As on its first use: transformers' reader of GGUF files is replaced twice."""
    import gguf

    reader = gguf.GGUFReader
    with read_gguf_once():
        outer = gguf.GGUFReader
        with read_gguf_once():
            assert gguf.GGUFReader is outer
        assert gguf.GGUFReader is outer
    assert gguf.GGUFReader is reader


def test_folder_without_a_model_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="without config.json"):
        load_model(str(tmp_path))


def test_model_with_missing_weights_is_rejected(tmp_path: Path) -> None:
    """transformers would fill the gap with random numbers."""
    from safetensors.torch import load_file, save_file

    path = save_tiny_model(tmp_path) / "model.safetensors"
    weights = load_file(path)
    del weights["model.layers.1.mlp.down_proj.weight"]
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(InputError, match="is missing 1 of its weights"):
        load_model(str(tmp_path))


def test_truncated_model_is_rejected(tmp_path: Path) -> None:
    path = save_tiny_model(tmp_path) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(InputError, match="could not be loaded"):
        load_model(str(tmp_path))


@pytest.mark.parametrize(("option", "value"), [("dtype", "float8"), ("device", "toaster")])
def test_unknown_options_are_rejected(option: str, value: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f'^{option} is "{value}": '):
        load_model(str(tmp_path), **{option: value})


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_missing_gpu_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="PyTorch sees no CUDA GPU"):
        load_model(str(tmp_path), device="cuda")
