"""Answers a second that clew score gets through, beside the pass through the model alone.

    python benchmarks/score.py --detector comparison/detector   the embedded model on this CPU
    python benchmarks/score.py --llama-7b                       random weights of its shape, GPU

Prompt and answer have 60 tokens together; each prompt is its own (nothing is shared).
"""

import argparse
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

import torch
from extract import llama_7b, synchronize
from serve import make_detector

import clew
from clew.hallucination.capture import load_model
from clew.hallucination.live.features import Answer
from clew.hallucination.live.session import Session


def make_answers(count, prompt_tokens, answer_tokens, vocabulary):
    random = torch.Generator().manual_seed(3)
    size = (count, prompt_tokens + answer_tokens)
    whole = torch.randint(2, vocabulary, size, generator=random).tolist()
    return [
        Answer(prompt=row[:prompt_tokens], tokens=row[prompt_tokens:], text="generated")
        for row in whole
    ]


def seconds_of(work):
    synchronize()
    started = time.perf_counter()
    work()
    synchronize()
    return time.perf_counter() - started


@torch.inference_mode()
def pass_plainly(model, answers, rows):
    """The model alone: the same tokens in the same batches, nothing recorded."""
    for start in range(0, len(answers), rows):
        some = answers[start : start + rows]
        ids = torch.tensor([[*a.prompt, *a.tokens] for a in some], device=model.device)
        keep = len(some[0].tokens) + 1
        model(input_ids=ids, use_cache=False, logits_to_keep=keep).logits.float().sum().item()


def measure(session, answers, args):
    scorer = session.scorer(rows=args.rows)
    score = partial(scorer.score_window, answers)
    plain = partial(pass_plainly, session.loaded.model, answers, scorer.window // 8)
    scores, plains = [], []
    for number in range(args.repeats + 1):
        took, alone = seconds_of(score), seconds_of(plain)
        if number:  # the first warms up
            scores.append(len(answers) / took)
            plains.append(len(answers) / alone)
            print(
                f"  {scores[-1]:,.1f} answers/s scored, {plains[-1]:,.1f} passed alone", flush=True
            )
    found = scorer.score_window(answers[: scorer.window])
    states = [one.risk.state for one in found]
    print(
        f"clew score: {statistics.median(scores):,.1f} answers/s "
        f"({statistics.median(scores) * 60:,.0f} tokens/s); the pass alone: "
        f"{statistics.median(plains):,.1f} answers/s. States: "
        f"{ {state: states.count(state) for state in sorted(set(states))} }"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--llama-7b", action="store_true")
    parser.add_argument("--detector", type=Path)
    parser.add_argument("--answers", type=int)
    parser.add_argument("--answer-tokens", type=int, default=16)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    if args.llama_7b:
        loaded = llama_7b()
        with tempfile.TemporaryDirectory() as scratch:
            detector = make_detector(loaded, Path(scratch))
    else:
        loaded, detector = load_model(device="cpu"), clew.load_detector(args.detector)
    count = args.answers or (1024 if args.llama_7b else 64)
    vocabulary = loaded.model.config.vocab_size
    answers = make_answers(count, 60 - args.answer_tokens, args.answer_tokens, vocabulary)
    with Session(loaded, detector) as session:
        measure(session, answers, args)


if __name__ == "__main__":
    main()
