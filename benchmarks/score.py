"""Answers a second that clew score gets through, beside the pass through the model alone.

    python benchmarks/score.py --detector comparison/detector   the embedded model on this CPU
    python benchmarks/score.py --llama-7b                       random weights of its shape, GPU
    python benchmarks/score.py --detector D --read-back traces  the answers of a store, read again

Prompt and answer have 60 tokens together; each prompt is its own (nothing is shared). `--read-back`
gives the answers of a trace store as text to "clew extract --answers given" and to "clew score":
answers per second of both, and how far the traces are those that were generated.
"""

import argparse
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from extract import llama_7b, synchronize
from serve import make_detector

import clew
from clew.base.progress import WorkEnded, WorkStarted
from clew.hallucination.capture import load_model
from clew.hallucination.live.existing import ExistingAnswer, encode_answers
from clew.hallucination.live.features import Answer
from clew.hallucination.live.session import Session
from clew.hallucination.questions.answered import AnsweredQuestion


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


def read_back(session, store):
    made = clew.TraceBatchLoader(store)
    names = {"id": "question_id", "question": "question", "answer": "answer"}
    rows = [{name: one[column] for name, column in names.items()} for one in made.iter_traces()]
    settings, events = made.manifest.settings, []
    kept = {name: settings[name] for name in ("node_dim", "edges_per_token")}
    kept |= {"prompt": settings["prompt"]["template"], "chat": settings["prompt"]["chat"]}

    # Other processes disturb a CPU's own time less than the clock's.
    clock = time.perf_counter if session.loaded.device.type == "cuda" else time.process_time

    def note(event):
        events.append((clock(), event))

    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "read"
        read = clew.extract(
            model=session.loaded,
            questions=rows,
            answers="given",
            out=out,
            basis=store,
            reporter=note,
            **kept,
        )
        starts = [when for when, event in events if isinstance(event, WorkStarted)]
        ends = [when for when, event in events if isinstance(event, WorkEnded)]
        speed = read.num_traces / (ends[-1] - starts[-1])
        compare_traces(made, read)
    scorer, encoded = (
        session.scorer(),
        encode_answers(
            session.encoder, [ExistingAnswer(about=AnsweredQuestion(**row)) for row in rows]
        ),
    )
    answers = [answer for answer, _ in encoded]
    list(scorer.score(answers[: scorer.window]))  # warms up
    started = clock()
    list(scorer.score(answers))
    took = clock() - started
    print(
        f"read: {speed:,.1f} answers/s, scored: {len(rows) / took:,.1f} answers/s, "
        f"{speed * took / len(rows):.2f} times as fast (by {clock.__name__})"
    )


def compare_traces(made, read):
    """Relative differences, by norm and layer, of the traces that have the same tokens."""
    found = {trace["question_id"]: trace for trace in read.iter_traces()}
    pairs = [(one, found[one["question_id"]]) for one in made.iter_traces() if one["answer"]]
    same = [(one, two) for one, two in pairs if [*one["tokens"]] == [*two["tokens"]]]
    print(f"same tokens: {len(same):,} of {len(pairs):,} answers ({len(same) / len(pairs):.1%})")
    if not same:  # a random model writes tokens that no tokenizer would choose
        return
    for name in ("last_hidden", "answer_hidden", "nodes", "token_logprobs", "token_entropies"):
        errors = [difference(one[name], two[name]) for one, two in same]
        print(f"  {name}: median {statistics.median(errors):.1e}, largest {max(errors):.1e}")
    edges = [(one["edge_source"] == two["edge_source"]).mean() for one, two in same]
    print(f"  edges to the same token: {statistics.mean(edges):.2%}")


def difference(one, two):
    one, two = (np.atleast_2d(np.float32(values)) for values in (one, two))
    one, two = (values.reshape(len(values), -1) for values in (one, two))
    gap = np.linalg.norm(one - two, axis=1) / np.maximum(np.linalg.norm(one, axis=1), 1e-6)
    return float(gap.max())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--llama-7b", action="store_true")
    parser.add_argument("--detector", type=Path)
    parser.add_argument("--answers", type=int)
    parser.add_argument("--answer-tokens", type=int, default=16)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--read-back", type=Path, metavar="TRACES")
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
        if args.read_back:
            read_back(session, args.read_back)


if __name__ == "__main__":
    main()
