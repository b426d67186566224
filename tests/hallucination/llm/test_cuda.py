"""Kernels for the small parts of a model and for its attention, which only a GPU has."""

import pytest
import torch

from clew.hallucination.llm.fused import fused_parts
from clew.hallucination.llm.packing import Segment
from clew.hallucination.llm.passes import PackedModel
from tests.builders import VOCABULARY, tiny_loaded
from tests.families import tiny_family

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


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma2", "mistral"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_whole", [True, False])
def test_prompts_attend_as_without_kernels(
    family: str, dtype: torch.dtype, *, is_whole: bool
) -> None:
    model = tiny_family(family, vocabulary=VOCABULARY).to(device="cuda", dtype=dtype)
    packed = PackedModel(model)
    assert packed.has_kernels
    parts = [(0, 0, 70), (1, 0, 5), (2, 0, 130), (3, 0, 64)]
    if not is_whole:  # the next tokens of rows, and one that has got a single one
        parts = [*parts, (1, 5, 90), (3, 64, 2), (2, 130, 1)]
    passes = [parts[:4], parts[4:]] if parts[4:] else [parts]
    found = []
    for has_kernels in (True, False):
        packed.fits_kernels = has_kernels
        packed.cache = packed.with_own_cache().cache
        packed.cache.prepare_resize(4, 256)()
        outputs = []
        for some in passes:
            segments = [
                Segment(row=row, tokens=range(2, 2 + size), start=start)
                for row, start, size in some
            ]
            planned = packed.plan(packed.in_order(segments), keeps_weights=True, is_whole=is_whole)
            with torch.inference_mode():
                keep = torch.arange(len(planned.tokens), device="cuda")
                outputs.append(packed.run(planned, keep).float())
            for group in planned.groups:
                assert group.weights is not None
                # Of each token, whatever stands for its padding.
                weights = group.weights.float().permute(0, 3, 1, 2, 4)
                outputs.append(group.unpack(weights) if group.packed is not None else weights)
        found.append(outputs)
    limit = 1e-5 if dtype == torch.float32 else 3e-2
    for kernels, plain in zip(*found, strict=True):
        assert kernels.isfinite().all()
        assert (kernels - plain).norm() <= limit * plain.norm()
