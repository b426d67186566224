"""Tiny random models of every family of transformers, by sizes in families.toml."""

import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForImageTextToText

import clew
from clew.hallucination.llm.decoder import batching_error, tolerance
from clew.hallucination.llm.engine import Engine
from clew.hallucination.llm.models import LoadedModel, load_model
from clew.hallucination.llm.requests import Request
from tests.builders import VOCABULARY, make_decoder, tiny_tokenizer

_NEW_TOKENS = 5
# Longer than what a sliding window or a chunk of the tiny models has; two are of the same length.
_PROMPTS = [[*range(3, 23)], [*range(4, 9)], [*range(5, 17)], [*range(9, 29)]]
_SETTINGS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
_SIZES = _SETTINGS.pop("sizes")


_VOCABULARY = ("vocab_size", "vocab_size_per_layer_input", "decoder_vocab_size")
# Filled in by some families only if they are given.
_OPTIONAL = {
    *("head_dim", "num_key_value_heads"),
    *("n_routed_experts", "num_experts_per_tok", "moe_intermediate_size"),
}


def tiny_family(family: str, *, vocabulary: int, images: bool = False, seed: int = 0) -> Any:
    """A random model; with `images`, of the class that reads images as well."""
    kind = CONFIG_MAPPING[family]
    config = kind(**_shrink(kind().to_dict(), {**_SIZES, **dict.fromkeys(_VOCABULARY, vocabulary)}))
    torch.manual_seed(seed)
    load: Any = AutoModelForImageTextToText if images else AutoModelForCausalLM
    return load.from_config(config, attn_implementation="eager").eval()


def _shrink(config: dict[str, Any], sizes: dict[str, Any]) -> dict[str, Any]:
    """The fields of a configuration and of its parts that have other values when tiny."""
    family = config["model_type"]
    names = ("num_hidden_layers", "n_layer", "num_layers")
    layers, small = next((config[n] for n in names if config.get(n)), None), {}
    for name, value in config.items():
        if name in sizes and (value is not None or name in _OPTIONAL):
            small[name] = sizes[name]
        elif isinstance(value, dict) and "model_type" in value:
            small[name] = _shrink(value, sizes) | {"model_type": value["model_type"]}
        elif isinstance(value, list) and layers and len(value) == layers:
            small[name] = _cut(value, sizes["num_hidden_layers"])
        elif name.endswith("_token_id"):
            small[name] = 0
    if config.get("num_key_value_heads") == config.get("num_attention_heads"):
        small.pop("num_key_value_heads", None)  # all heads have keys of their own
        if config.get("num_key_value_heads"):
            small["num_key_value_heads"] = sizes["num_attention_heads"]
    return small | _SETTINGS.get(family, {})


def _cut(values: list[Any], count: int) -> list[Any]:
    """The first of a list with an entry for each layer, and one of each kind, if they fit."""
    first = [next(v for v in values if v == kind) for kind in dict.fromkeys(values)]
    late = [value for value in first if value not in values[: count - 1]]
    return [*values[: count - len(late)], *late][:count]


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What clew does with a family; `difference` is that of batched from single passes, by norm and
    layer. `reason` says why not."""

    family: str
    layers: int = 0
    attention_layers: int = 0
    difference: float | None = None
    captures: bool = False
    serves: bool = False
    reason: str = ""

    @property
    def works(self) -> bool:
        return self.captures and self.serves


def check_family(family: str, folder: Path, *, images: bool = False) -> Checked:
    """Save a tiny model, load it by its folder as users do, capture four answers, and serve four
    requests at once, which get the same answers as plain passes give."""
    try:
        tokenizer = tiny_tokenizer()
        model = tiny_family(family, vocabulary=VOCABULARY, images=images)
        for part in (model, tokenizer):
            part.save_pretrained(folder)
        loaded = load_model(str(folder), device="cpu")
        decoder = make_decoder(loaded, max_new_tokens=_NEW_TOKENS)
        found = {"layers": decoder.shape.layers, "attention_layers": decoder.shape.attention_layers}
        while (difference := batching_error(decoder, _PROMPTS)) > tolerance(decoder):
            if not decoder.packed.packs:
                return Checked(family=family, reason=f"differs by {difference:.0e}", **found)
            decoder.simplify()
        captures = _captures(folder)
        serves = _serves(loaded)
    except Exception as error:  # whatever a family raises is its reason
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return Checked(family=family, reason=lines[0].strip())
    return Checked(family=family, difference=difference, captures=captures, serves=serves, **found)


def _captures(folder: Path) -> bool:
    questions, out = folder / "questions.csv", folder / "traces"
    questions.write_text("question,answer\n" + "".join(f"Who is {n}?,me\n" for n in "abcd"))
    clew.extract(
        model=str(folder), questions=str(questions), out=str(out), max_new_tokens=_NEW_TOKENS
    )
    traces = clew.TraceBatchLoader(out)
    return (
        all(np.isfinite(trace["last_hidden"]).all() for trace in traces) and len(list(traces)) == 4
    )


def _serves(loaded: LoadedModel) -> bool:
    with Engine(loaded, max_rows=4) as engine:
        asked = [Request(prompt=prompt, max_new_tokens=_NEW_TOKENS) for prompt in _PROMPTS]
        tickets = [engine.submit(replace(one, ignores_end=True)) for one in asked]
        return [[*one.finished().tokens] for one in tickets] == [
            _answer_plainly(loaded.model, prompt) for prompt in _PROMPTS
        ]


@torch.inference_mode()
def _answer_plainly(model: Any, prompt: list[int]) -> list[int]:
    """The most probable tokens, by passes over all tokens without a cache."""
    tokens = list(prompt)
    for _ in range(_NEW_TOKENS):
        logits = model(input_ids=torch.tensor([tokens]), use_cache=False).logits
        tokens.append(int(logits[0, -1].argmax()))
    return tokens[len(prompt) :]
