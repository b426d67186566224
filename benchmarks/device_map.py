"""A model spread over CPU memory and a GPU records what the model wholly on the GPU records.

    python benchmarks/device_map.py --llama-7b     random weights of Llama-2-7B's shape, one GPU
    python benchmarks/device_map.py                a tiny model, half of it on disk

Prints the largest difference of every recorded array, and seconds. On a GPU, layers of a tiny model
also run on the CPU and on the GPU in turn, as on two GPUs, and a capture is predicted and done.
"""

import argparse
import gc
import sys
import tempfile
import time
from dataclasses import fields
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from extract import llama_7b, random_questions

import clew
from clew.hallucination.llm.decoder import Decoder
from clew.hallucination.llm.device_map import explain_spread, is_spread
from clew.hallucination.llm.engine import Engine
from clew.hallucination.llm.models import LoadedModel, describe_model, load_model
from clew.hallucination.llm.observe import ModelObserver
from clew.hallucination.llm.recording import Recording
from clew.hallucination.llm.requests import Request
from clew.hallucination.traces.compact import Basis
from clew.hallucination.traces.schema import TraceShape


def layers_map(model, first_offloaded, place, home):
    """The first layers on `home`, the others in `place`."""
    count = model.config.num_hidden_layers
    layers = {f"model.layers.{i}": home if i < first_offloaded else place for i in range(count)}
    rest = ("model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head")
    return {**dict.fromkeys(rest, home), **layers}


def record(loaded, prompts, graphs=False):
    """The answers, what was recorded of them, and the seconds of the second time."""
    observer = ModelObserver(loaded.model)
    torch.manual_seed(1)
    node_dim = 16
    shape = TraceShape(
        layers=observer.layers,
        dim=observer.dim,
        heads=observer.heads,
        node_dim=node_dim,
        edges_per_token=8,
    )
    basis = Basis(
        mean=torch.zeros(shape.layers, shape.dim),
        components=torch.randn(shape.layers, shape.dim, node_dim) / shape.dim**0.5,
    )
    decoder = Decoder(loaded, Recording(shape=shape, basis=basis), max_new_tokens=16)
    decoder.answer_end.end_tokens = []
    if decoder.uses_graphs and not graphs:
        decoder.simplify()
    for _ in range(2):
        started = time.perf_counter()
        answers, reduced = decoder.answer(prompts)
        if loaded.device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - started
    arrays = {field.name: getattr(reduced, field.name).float().cpu() for field in fields(reduced)}
    arrays["logprobs"] = torch.tensor([p for answer in answers for p in answer.logprobs])
    return [answer.tokens for answer in answers], arrays, seconds


def compare(name, found, expected):
    """Print the largest difference of each array, relative to the largest value."""
    worst = {
        key: float((found[1][key] - value).abs().max() / value.abs().max().clamp(min=1e-9))
        for key, value in expected[1].items()
        if value.numel()
    }
    same = sum(torch.equal(found[1][key], value) for key, value in expected[1].items())
    tokens = "same tokens" if found[0] == expected[0] else "OTHER TOKENS"
    largest = max(worst, key=worst.get)
    print(
        f"{name}: {tokens}; {same} of {len(expected[1])} arrays bit for bit; largest relative "
        f"difference {worst[largest]:.1e} ({largest}); {found[2]:.2f} s instead of "
        f"{expected[2]:.2f} s",
        flush=True,
    )


def live_tokens(loaded, prompts):
    """What the engine of `clew serve` answers, and its seconds."""
    with Engine(loaded, max_rows=8) as engine:
        started = time.perf_counter()
        tickets = [engine.submit(Request(prompt=one, max_new_tokens=8)) for one in prompts[:8]]
        tokens = [[e.id for e in ticket if hasattr(e, "logprob")] for ticket in tickets]
        return tokens, time.perf_counter() - started


def compare_spread(folder, device_map, prompts, **options):
    """Load the model whole and spread, and compare what they record, answer and are."""
    plain = load_model(str(folder), **options)
    expected, live = record(plain, prompts), live_tokens(plain, prompts)
    who = describe_model("m", plain.model, None)
    if plain.device.type == "cuda":
        print(f"with CUDA graphs: {record(plain, prompts, graphs=True)[2]:.2f} s", flush=True)
    del plain
    gc.collect()
    torch.cuda.empty_cache()
    started = time.perf_counter()
    spread = load_model(str(folder), dtype=options["dtype"], device_map=device_map)
    assert is_spread(spread.model)
    print(f"loaded in {time.perf_counter() - started:.1f} s: {explain_spread(spread.model)}")
    compare("spread", record(spread, prompts), expected)
    started = time.perf_counter()
    same = "the same" if describe_model("m", spread.model, None) == who else "ANOTHER"
    print(f"it is {same} model by its fingerprint ({time.perf_counter() - started:.1f} s)")
    found = live_tokens(spread, prompts)
    same = "same" if found[0] == live[0] else "OTHER"
    print(f"live answers: {same} tokens; {found[1]:.2f} s instead of {live[1]:.2f} s", flush=True)


def compare_two_devices():
    """Layers that compute on the CPU and on the GPU in turn, as on two GPUs."""
    from accelerate import dispatch_model
    from tests.builders import tiny_loaded

    plain = tiny_loaded()
    prompts = [[5, 6, 7, 8, i] for i in range(8)]
    expected, live = record(plain, prompts), live_tokens(plain, prompts)
    two = tiny_loaded()
    device_map = {**layers_map(two.model, 1, 0, "cpu"), "model.layers.2": "cpu", "model.norm": 0}
    dispatch_model(
        two.model, device_map, main_device="cpu", skip_keys=two.model._skip_keys_device_placement
    )
    compare("CPU and GPU in turn", record(two, prompts), expected)
    same = "same" if live_tokens(two, prompts)[0] == live[0] else "OTHER"
    print(f"CPU and GPU in turn: live answers have the {same} tokens", flush=True)


def predict(folder, loaded, questions):
    """Predict a capture from 50 questions, and do it."""
    path = random_questions(folder / "questions.jsonl", questions)
    settings = {
        "model": loaded,
        "questions": path,
        "out": folder / "traces",
        "prompt": "{question}",
        "cut": "none",
    }
    plan = clew.extract(**settings, dry_run=True)
    predicted = plan.seconds - plan.startup_seconds
    started = time.perf_counter()
    clew.extract(**settings)
    seconds = time.perf_counter() - started - plan.startup_seconds
    print(
        f"capture of {questions:,} questions: predicted {predicted:.1f} s, measured {seconds:.1f} "
        f"s ({predicted / seconds - 1:+.0%}); {plan.bottleneck}",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--llama-7b", action="store_true")
    parser.add_argument("--questions", type=int, default=3000, help="to predict and to capture")
    args = parser.parse_args()
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch, torch.inference_mode():
        folder = Path(scratch)
        if args.llama_7b:
            loaded = llama_7b()
            home, place, options = 0, "cpu", {"dtype": "float16", "device": "cuda"}
            compare_two_devices()
        else:
            from tests.builders import tiny_loaded

            loaded = tiny_loaded()
            home, place, options = "cpu", "disk", {"dtype": "float32", "device": "cpu"}
        count = loaded.model.config.num_hidden_layers
        device_map = layers_map(loaded.model, count // 2, place, home)
        generator = torch.Generator().manual_seed(0)
        prompts = torch.randint(2, 300, (32, 30), generator=generator).tolist()
        loaded.model.save_pretrained(folder / "model")
        loaded.tokenizer.save_pretrained(folder / "model")
        print(f"model made and saved after {time.perf_counter() - begun:.0f} s", flush=True)
        if args.llama_7b:
            predict(folder, LoadedModel(loaded.model, loaded.tokenizer, name="7b"), args.questions)
        del loaded
        gc.collect()
        torch.cuda.empty_cache()
        compare_spread(folder / "model", device_map, prompts, **options)
    print(f"{time.perf_counter() - begun:.0f} s in all")


if __name__ == "__main__":
    main()
