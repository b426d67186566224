"""Capture answers of your own language model, loaded or fine-tuned in this process.

Usage: python examples/own_model.py ./my-model traces_own
"""

import sys

from transformers import AutoModelForCausalLM, AutoTokenizer

import clew
from clew.hallucination.capture import LoadedModel

folder, out = sys.argv[1:] or ("./my-model", "traces_own")
# Eager attention: the other implementations do not return attention weights.
model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
tokenizer = AutoTokenizer.from_pretrained(folder)

traces = clew.extract(
    model=LoadedModel(model, tokenizer, name=folder), questions="facts", num_samples=20, out=out
)
for trace in traces:
    print(trace["question"], "->", trace["answer"], trace["last_hidden"].shape)
