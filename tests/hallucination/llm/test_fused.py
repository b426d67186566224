"""Kernels for the small parts of a model, which only a GPU has."""

import pytest
import torch

from clew.hallucination.llm.fused import fused_parts
from tests.builders import tiny_loaded

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_parts_give_what_the_model_gives(family: str, dtype: torch.dtype) -> None:
    model = tiny_loaded(family).model.to(device="cuda", dtype=dtype)
    tokens = torch.arange(2, 40, device="cuda")[None]
    with torch.inference_mode():
        plain = model(input_ids=tokens).logits.float()
        with fused_parts(model).used():
            fused = model(input_ids=tokens).logits.float()
        again = model(input_ids=tokens).logits.float()
    assert torch.equal(plain, again)
    limit = 1e-5 if dtype == torch.float32 else 3e-2
    assert (plain - fused).norm() <= limit * plain.norm()


def test_norms_gates_and_rotations_of_a_llama_are_fused() -> None:
    model = tiny_loaded("llama").model.to("cuda")
    # Of each layer two norms and the gate, the last norm, and the rotation that all layers share.
    assert fused_parts(model).count == 3 * model.config.num_hidden_layers + 2
