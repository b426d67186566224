"""Tiny real parts for tests: models of several families, a tokenizer, questions, stores."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from clew.hallucination.llm.decoder import MAX_ROWS, Decoder
from clew.hallucination.llm.graphs import GraphPasses
from clew.hallucination.llm.models import LoadedModel
from clew.hallucination.llm.observe import ModelObserver
from clew.hallucination.llm.prompts import Cut
from clew.hallucination.llm.recording import Recording
from clew.hallucination.traces.compact import Basis
from clew.hallucination.traces.schema import TraceShape

CORPUS = [
    "What is the capital of France? The capital of France is Paris.",
    "In which country is the city of Lyon? It is in France.",
    "Answer the question concisely. Q: who wrote it A: nobody knows",
    "Mr. Smith went to St. Louis. He stayed.\nThen he left again.",
]
VOCABULARY = 384


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """A real byte-level tokenizer, trained on four sentences."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(CORPUS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>")


def tiny_model(family: str, context: int = 256, seed: int = 0) -> Any:
    """A random model of a real family; weights large enough for attention to be uneven."""
    torch.manual_seed(seed)
    common = {"vocab_size": VOCABULARY, "attn_implementation": "eager"}
    if family == "gpt2":
        model = GPT2LMHeadModel(
            GPT2Config(
                n_layer=3,
                n_head=4,
                n_embd=32,
                n_positions=context,
                bos_token_id=0,
                eos_token_id=0,
                initializer_range=0.2,
                **common,
            )
        )
    elif family == "opt":
        model = OPTForCausalLM(
            OPTConfig(
                hidden_size=32,
                ffn_dim=64,
                num_hidden_layers=3,
                num_attention_heads=4,
                word_embed_proj_dim=32,
                max_position_embeddings=context,
                bos_token_id=0,
                eos_token_id=0,
                pad_token_id=1,
                init_std=0.2,
                **common,
            )
        )
    else:
        kind, config = {
            "llama": (LlamaForCausalLM, LlamaConfig),
            "qwen2": (Qwen2ForCausalLM, Qwen2Config),
        }[family]
        model = kind(
            config(
                hidden_size=32,
                intermediate_size=64,
                num_hidden_layers=3,
                num_attention_heads=4,
                num_key_value_heads=2,
                max_position_embeddings=context,
                bos_token_id=0,
                eos_token_id=0,
                pad_token_id=None,
                initializer_range=0.2,
                **common,
            )
        )
    return model.eval()


def tiny_loaded(family: str = "llama", **options: Any) -> LoadedModel:
    return LoadedModel(tiny_model(family, **options), tiny_tokenizer())


def save_tiny_model(folder: Path, family: str = "llama", **options: Any) -> Path:
    """A model folder as `--model` takes it."""
    model, tokenizer = tiny_loaded(family, **options)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_decoder(
    loaded: LoadedModel,
    *,
    max_new_tokens: int = 8,
    cut: Cut = "none",
    basis: Basis | None = None,
    edges: int = 4,
) -> Decoder:
    observer = ModelObserver(loaded.model)
    layers, dim = observer.layers, observer.dim
    node_dim = basis.node_dim if basis else 6
    torch.manual_seed(1)
    shape = TraceShape(
        layers=layers,
        dim=dim,
        heads=observer.heads,
        node_dim=node_dim,
        edges_per_token=edges,
        without_attention=observer.without_attention,
    )
    basis = basis or Basis(
        mean=torch.randn(layers, dim), components=torch.randn(layers, dim, node_dim) / dim**0.5
    )
    recording = Recording(shape=shape, basis=basis)
    return Decoder(loaded, recording, cut=cut, max_new_tokens=max_new_tokens)


def pass_as_on_gpu(decoder: Decoder) -> Decoder:
    """Passes of fixed shapes, launched before the one before them is read."""
    batch = decoder.batch
    batch._passes = GraphPasses(decoder.packed, batch._record, MAX_ROWS, is_exact=True)
    return decoder


def ragged_prompts(count: int, prefix: list[int] | None = None, seed: int = 0) -> list[list[int]]:
    """Prompts of 2 to 20 random tokens behind a shared beginning."""
    random = np.random.default_rng(seed)
    return [
        [*(prefix or []), *random.integers(1, VOCABULARY, random.integers(2, 21)).tolist()]
        for _ in range(count)
    ]


def write_questions(path: Path, count: int) -> Path:
    """A question file with ragged, distinct questions."""
    random = np.random.default_rng(5)
    with path.open("w", encoding="utf-8") as file:
        for index in range(count):
            words = " ".join(random.choice(CORPUS[index % 4].split(), random.integers(1, 9)))
            record = {"id": f"q{index}", "question": f"{words} {index}?", "answer": ["Paris"]}
            file.write(json.dumps(record) + "\n")
    return path


def write_lines(path: Path, lines: list[Any]) -> Path:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts) + "\n")
    return path


def ask(count: int, **odd: str) -> list[dict[str, str]]:
    """Questions q0, q1, ...; `q3="..."` replaces the text of one."""
    return [{"id": f"q{i}", "question": odd.get(f"q{i}", f"who is {i}?")} for i in range(count)]
