"""Traces a second: the plain way with beams, the plain way greedy, and clew, in one run.

    python benchmarks/extract.py                       the embedded model on this CPU
    python benchmarks/extract.py --llama-7b            random weights of Llama-2-7B's shape, GPU
    python benchmarks/extract.py --quick               a tiny random model, to see that it runs

The plain way is what the older system did: one question at a time, eager attention,
`output_hidden_states` and `output_attentions`, batches pickled through gzip.
"""

import argparse
import gzip
import json
import pickle
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import torch

from clew.base.progress import Note, WorkAdvanced, WorkEnded, WorkStarted
from clew.hallucination.capture import (
    ExtractConfig,
    LoadedModel,
    extract,
    load_model,
    load_questions,
)
from clew.hallucination.llm.prompts import Encoder, choose_prompt
from clew.storage.manifest import read_manifest


def run_plain(loaded, prompts, max_new_tokens, num_beams, folder):
    """Seconds a trace of the plain way, saving included."""
    model, tokenizer = loaded
    traces = []
    synchronize()
    started = time.perf_counter()
    for index, prompt in enumerate(prompts):
        ids = torch.tensor([prompt], device=model.device)
        with torch.no_grad():
            found = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=max_new_tokens,
                num_beams=num_beams,
                do_sample=False,
                pad_token_id=0,
            )
            out = model(found, output_hidden_states=True, output_attentions=True)
        traces.append(
            {
                "hidden_states": [h[0].half().cpu().numpy() for h in out.hidden_states[1:]],
                "attentions": [a[0].half().cpu().numpy() for a in out.attentions],
                "tokens": found[0].cpu().numpy(),
                "generated_answer_clean": tokenizer.decode(found[0, len(prompt) :]),
                "question_id": str(index),
            }
        )
    path = folder / f"plain_{num_beams}.pkl.gz"
    with gzip.open(path, "wb") as file:
        pickle.dump(traces, file)
    synchronize()
    return (time.perf_counter() - started) / len(prompts), path.stat().st_size / len(prompts)


class Stopwatch:
    """A reporter that times the capture proper, from its beginning to the last byte: what is done
    before it (fitting the basis, timing a batch) reports its own progress, which does not count."""

    def __init__(self):
        self.traces = self.tokens = 0
        self.started = None

    def __call__(self, event):
        if isinstance(event, Note):
            print(f"  clew: {event}")
        elif isinstance(event, WorkStarted):
            self.started = time.perf_counter()
        elif self.started is None:
            return
        elif isinstance(event, WorkAdvanced):
            self.traces += event.count
            self.tokens += event.tokens
        elif isinstance(event, WorkEnded):
            self.seconds = time.perf_counter() - self.started


def run_clew(loaded, questions, args, folder):
    """Seconds a trace of clew, written to disk and synced."""
    out = folder / "store"
    shutil.rmtree(out, ignore_errors=True)
    watch = Stopwatch()
    config = ExtractConfig(
        model=args.name,
        questions=str(questions),
        out=out,
        num_samples=args.clew_samples,
        max_new_tokens=args.max_new_tokens,
        generation_batch=args.generation_batch,
        cut="none" if args.is_random else "sentence",
        prompt=args.prompt,
    )
    extract(config, watch, loaded=loaded)
    manifest = read_manifest(out)
    return watch.seconds / watch.traces, manifest.bytes / manifest.rows, watch.tokens / watch.traces


def synchronize():
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def llama_7b(*, quick=False):
    """A model of Llama-2-7B's shape with random weights, and a tokenizer of random words. A `quick`
    one is tiny and runs on any machine; the other ends the program where there is no GPU."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = {"<unk>": 0, "</s>": 1} | {f"w{i}": i for i in range(2, 32_000)}
    inner = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="</s>")
    config = LlamaConfig(
        hidden_size=64 if quick else 4096,
        intermediate_size=128 if quick else 11_008,
        num_hidden_layers=4 if quick else 32,
        num_attention_heads=4 if quick else 32,
        vocab_size=32_000,
        eos_token_id=None,
        attn_implementation="eager",
    )
    torch.manual_seed(0)
    if not quick:
        require_gpu()
        torch.set_default_dtype(torch.float16)
    with torch.device("cpu" if quick else "cuda"):
        model = LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    return LoadedModel(model.eval(), tokenizer, name="llama-7b-random")


def require_gpu():
    if not torch.cuda.is_available():
        raise SystemExit("this part needs an NVIDIA GPU, and PyTorch finds none")


def random_questions(path, count):
    """Questions of 20 to 40 random words, about 30 tokens a prompt."""
    generator = torch.Generator().manual_seed(0)
    with path.open("w") as file:
        for index in range(count):
            length = int(torch.randint(20, 41, (1,), generator=generator))
            words = torch.randint(2, 32_000, (length,), generator=generator).tolist()
            question = " ".join(f"w{word}" for word in words)
            file.write(json.dumps({"id": f"q{index}", "question": question}) + "\n")
    return path


def measure_limit(model, prompt_tokens, new_tokens, rows):
    """Traces a second if every weight were multiplied at the card's own matrix rate."""
    size = 8192
    a = torch.randn(size, size, device="cuda", dtype=torch.float16)
    b = torch.randn(size, size, device="cuda", dtype=torch.float16)
    copy = torch.empty(1 << 31, device="cuda", dtype=torch.uint8)
    rate = 2 * size**3 / timed(lambda: a @ b)
    bandwidth = 2 * copy.numel() / timed(copy.clone)
    weights = sum(p.numel() for p in model.parameters()) - model.config.vocab_size * 4096
    flops = 2 * weights
    read = weights * 2 / bandwidth
    step = max(read, rows * flops / rate)
    batch = rows * prompt_tokens * flops / rate + new_tokens * step
    print(
        f"card: {rate / 1e12:.0f} TFLOP/s, {bandwidth / 1e12:.2f} TB/s; "
        f"limit at {rows} rows, one pass a token: {rows / batch:.0f} traces/s"
    )
    return rows / batch


def timed(function, repeats=10):
    function()
    times = []
    for _ in range(repeats):
        synchronize()
        started = time.perf_counter()
        function()
        synchronize()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--llama-7b", action="store_true")
    parser.add_argument("--quick", action="store_true", help="figures mean nothing")
    parser.add_argument("--questions", default="facts")
    parser.add_argument("--prompt")
    parser.add_argument("--max-new-tokens", type=int)
    parser.add_argument("--plain-samples", type=int, default=12)
    parser.add_argument("--clew-samples", type=int)
    parser.add_argument("--generation-batch", type=int)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    args.is_random = args.llama_7b or args.quick
    if args.quick:
        args.plain_samples, args.clew_samples, args.max_new_tokens = 2, 8, 4
    args.max_new_tokens = args.max_new_tokens or (32 if args.llama_7b else 20)
    args.clew_samples = args.clew_samples or (2000 if args.llama_7b else 384)
    args.name = "llama-7b-random" if args.is_random else "smollm2"
    if args.is_random:
        args.prompt = args.prompt or "{question}"
    with tempfile.TemporaryDirectory(dir=args.folder) as scratch:
        folder = Path(scratch)
        questions = args.questions
        if args.is_random:
            questions = random_questions(folder / "questions.jsonl", args.clew_samples)
        compare(args, questions, folder)


def compare(args, questions, folder):
    loaded = llama_7b(quick=args.quick) if args.is_random else load_model(args.name)
    loaded_questions = load_questions(str(questions), args.plain_samples).questions
    prompt = choose_prompt(loaded.tokenizer, args.prompt, None)
    tokenizer = Encoder(loaded.tokenizer, prompt, 1 << 16)
    prompts = list(tokenizer.tokenize([question.question for question in loaded_questions]))
    run_plain(loaded, prompts[:1], args.max_new_tokens, 1, folder)
    rows = []
    for _ in range(args.repeats):
        beams, beam_bytes = run_plain(loaded, prompts, args.max_new_tokens, 5, folder)
        greedy, greedy_bytes = run_plain(loaded, prompts, args.max_new_tokens, 1, folder)
        mine, my_bytes, tokens = run_clew(loaded, questions, args, folder)
        rows.append((beams, greedy, mine))
        print(f"  run: {1 / beams:.2f}, {1 / greedy:.2f}, {1 / mine:.2f} traces/s")
    beams, greedy, mine = (statistics.median(column) for column in zip(*rows, strict=True))
    print(f"{'':28}{'traces/s':>10}{'x plain':>9}{'bytes a trace':>16}")
    for name, seconds, size in (
        ("(a) plain, 5 beams", beams, beam_bytes),
        ("(b) plain, greedy", greedy, greedy_bytes),
        ("(c) clew", mine, my_bytes),
    ):
        print(f"{name:28}{1 / seconds:10.2f}{beams / seconds:9.1f}{size:16,.0f}")
    print(f"clew: {tokens:.1f} tokens a trace, each trace hashed, written and synced")
    if args.llama_7b and not args.quick:
        limit = measure_limit(loaded.model, tokens - args.max_new_tokens, args.max_new_tokens, 500)
        print(f"clew reaches {1 / mine / limit:.0%} of that limit")


if __name__ == "__main__":
    main()
