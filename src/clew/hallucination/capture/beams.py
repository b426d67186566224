"""Answers by beam search: transformers searches, then the chosen answers are recorded."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import GenerationConfig

from clew.hallucination.capture.decode import Decoder, GeneratedAnswer
from clew.hallucination.traces.compact import Reduced


@torch.inference_mode()
def answer_with_beams(
    decoder: Decoder, prompts: Sequence[Sequence[int]], num_beams: int
) -> tuple[list[GeneratedAnswer], Reduced]:
    """The best beam's answer to each prompt, cut like greedy answers, with its record."""
    width, device = max(len(prompt) for prompt in prompts), decoder.device
    rows = [[0] * (width - len(p)) + list(p) for p in prompts]
    mask = [[0] * (width - len(p)) + [1] * len(p) for p in prompts]
    ends = decoder.answer_end.end_tokens
    found = _search(
        decoder.model,
        input_ids=torch.tensor(rows, device=device),
        attention_mask=torch.tensor(mask, device=device),
        max_new_tokens=decoder.max_new_tokens,
        num_beams=num_beams,
        do_sample=False,
        eos_token_id=ends or None,
        pad_token_id=ends[0] if ends else 0,
    )
    cuts = [decoder.answer_end.cut(row) for row in found[:, width:].tolist()]
    scores, reduced = decoder.record(prompts, [tokens for tokens, _ in cuts])
    answers = [
        GeneratedAnswer(tokens=tokens, stop_reason=reason, logprobs=logprobs, entropies=entropies)
        for (tokens, reason), (logprobs, entropies) in zip(cuts, scores, strict=True)
    ]
    return answers, reduced


def _search(model: Any, **options: Any) -> torch.Tensor:
    """Generate without the penalties and limits of the model's own generation config: they would
    change the answers without being recorded in the manifest."""
    own, model.generation_config = model.generation_config, GenerationConfig()
    try:
        return model.generate(**options)
    finally:
        model.generation_config = own
