"""Tokens a second of live answers with and without their risks, by turns in the same run.

    python benchmarks/serve.py                          the embedded model on this CPU, 8 at once
    python benchmarks/serve.py --part llama-7b          random weights of Llama-2-7B's shape, GPU
    python benchmarks/serve.py --part transformers      against "transformers serve", over HTTP
    python benchmarks/serve.py --part vllm --repeats 10 --levels 1 8 32 --max-new-tokens 24
    python benchmarks/serve.py --part vllm-server       against vLLM's server, over HTTP
    python benchmarks/serve.py --part waiting           short questions beside long prompts
    python benchmarks/serve.py --part soak              64 clients for a minute: does it hold?
    python benchmarks/serve.py --part upstream --upstream http://127.0.0.1:8001/v1 --model NAME
                                                        time to the first token in front of a server

`--detector` is a detector folder for the embedded model (from "clew compare"); for `waiting`, one
is made if there is none.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

import torch

import clew
from clew.hallucination.capture import load_model
from clew.hallucination.live.session import Session
from clew.hallucination.llm.engine import Engine
from clew.hallucination.llm.requests import Request, Token
from clew.hallucination.questions import load_questions


def run_plain(loaded, requests, rows):
    """Generation alone: the same engine, which records nothing."""
    with Engine(loaded, max_rows=rows, max_waiting=len(requests)) as engine:
        warm_up(loaded, engine.submit, requests, rows)
        return measure(engine.submit, requests)


def run_scored(loaded, detector, requests, rows):
    """Generation with the risk of every answer and what feedback needs of it, as "clew serve"."""
    limits = {"max_rows": rows, "max_waiting": len(requests)}
    with Session(loaded, detector, **limits, vectors=True) as session:
        warm_up(loaded, session.submit, requests, rows)
        return measure(session.submit, requests)


def warm_up(loaded, submit, requests, rows):
    """A GPU captures the pass of each size when it first comes: all requests make them come."""
    some = requests if loaded.model.device.type == "cuda" else requests[:rows]
    wait_for([submit(request) for request in some])


def measure(submit, requests):
    """Tokens a second, CPU seconds a token, and the answers."""
    started, busy = time.perf_counter(), time.process_time()
    answers = wait_for([submit(request) for request in requests])
    seconds, busy = time.perf_counter() - started, time.process_time() - busy
    tokens = sum(len(answer.tokens) for answer in answers)
    return tokens / seconds, busy / tokens, answers


def wait_for(tickets):
    return [[event for event in ticket][-1] for ticket in tickets]


def compare_turns(loaded, detector, requests, rows, repeats):
    turns = []
    for number in range(repeats):
        plain, scored = (
            run_plain(loaded, requests, rows),
            run_scored(loaded, detector, requests, rows),
        )
        same = sum(a.text == b.text for a, b in zip(plain[2], scored[2], strict=True))
        turns.append((plain, scored))
        print(
            f"  turn {number + 1}: {plain[0]:,.1f} and {scored[0]:,.1f} tokens/s, "
            f"{plain[1] * 1e3:.2f} and {scored[1] * 1e3:.2f} CPU ms a token, "
            f"{same} of {len(requests)} answers are the same, "
            f"{sum(a.risk.risk is not None for a in scored[2])} have a risk",
            flush=True,
        )
    for name, place in (("tokens/s", 0), ("CPU seconds a token", 1)):
        plain, scored = ([turn[side][place] for turn in turns] for side in (0, 1))
        shares = [b / a for a, b in zip(plain, scored, strict=True)]
        cost = 1 - statistics.median(shares) if place == 0 else statistics.median(shares) - 1
        print(
            f"{name}: {statistics.median(plain):,.4g} without and {statistics.median(scored):,.4g} "
            f"with risks, {rows} at once: scoring costs {cost:.1%} "
            f"(turns: {', '.join(f'{share:.3f}' for share in shares)})"
        )


def run_embedded(args):
    loaded = load_model(device="cpu")
    detector = clew.load_detector(args.detector)
    with Session(loaded, detector) as session:
        questions = load_questions("facts", args.requests).questions
        requests = [session.make_request(question.question) for question in questions]
    compare_turns(loaded, detector, requests, args.rows or 8, args.repeats)


def run_waiting(args):
    """Seconds until a short question is answered, on an idle server and beside long prompts."""
    loaded = load_model(device="cpu")
    with tempfile.TemporaryDirectory() as scratch:
        made = args.detector or make_detector(loaded, Path(scratch))
        detector = made if args.detector is None else clew.load_detector(made)
    first, *questions = [q.question for q in load_questions("facts", 1 + args.requests).questions]
    random = torch.Generator().manual_seed(1)
    for level in (1, 8):
        longs = torch.randint(2, 32_000, (level, args.long_tokens), generator=random).tolist()
        with Session(loaded, detector) as session:
            wait_for_one(session, first, args)
            idle = [wait_for_one(session, one, args) for one in questions]
            for prompt in longs:
                session.submit(Request(prompt=prompt, max_new_tokens=64))
            while not session.load.running:
                time.sleep(0.01)
            before = session.load
            beside = [wait_for_one(session, one, args) for one in questions]
            after = session.load
        a_pass = (after.seconds - before.seconds) / max(1, after.passes - before.passes)
        alone, median = statistics.median(idle), statistics.median(beside)
        print(
            f"a short question: {alone:.2f} s idle, {median:.2f} s beside {level} prompts of "
            f"{args.long_tokens:,} tokens: {median / alone:.2f} times (medians of "
            f"{len(questions)}, longest {max(idle):.2f} and {max(beside):.2f} s; {a_pass:.3f} s a "
            f"pass; {after.running} long ones still ran, {after.waiting} waited)",
            flush=True,
        )


def wait_for_one(session, question, args):
    """Seconds of one question; those that take longer than `--seconds` are given up."""
    started = time.perf_counter()
    ticket = session.submit(session.make_request(question, max_new_tokens=args.max_new_tokens))
    while time.perf_counter() - started < args.seconds:
        try:
            if not isinstance(ticket.get(timeout=args.seconds), Token):
                break
        except TimeoutError:
            ticket.cancel()
    return time.perf_counter() - started


def run_llama_7b(args):
    from extract import llama_7b

    loaded = llama_7b()
    with tempfile.TemporaryDirectory() as scratch:
        detector = make_detector(loaded, Path(scratch))
    random = torch.Generator().manual_seed(1)
    requests = [
        Request(
            prompt=torch.randint(2, 32_000, (args.prompt_tokens,), generator=random).tolist(),
            max_new_tokens=args.max_new_tokens // 2 + number % (args.max_new_tokens + 1),
        )
        for number in range(args.requests)
    ]
    compare_turns(loaded, detector, requests, args.rows or 64, args.repeats)


def run_transformers(args):
    from serve_rivals import run_rivals

    run_rivals(args)


def run_vllm(args):
    import serve_rivals

    serve_rivals.run_vllm(args)


def run_vllm_server(args):
    import serve_rivals

    serve_rivals.run_servers(args)


def run_soak(args):
    import soak

    sys.exit(0 if soak.run_soak(args) else 1)


def run_upstream(args):
    """Seconds to the first token of a stream, from a server and through clew in front of it."""
    from serve_rivals import first_token_seconds, serving

    place = urlsplit(args.upstream)
    command = [sys.executable, "-m", "clew", "serve", str(args.detector), "--max-recent", "0"]
    command += ["--upstream", args.upstream, "--check-seconds", "60"]
    questions = [question.question for question in load_questions("facts", args.requests).questions]
    with serving(command, args.model) as server, server.awake():
        ports = {"without": place.port, "with": server.port}
        turns = {name: [] for name in ports}
        for number, question in enumerate(questions):
            first_token_seconds(place.port, args.model, question)  # the upstream caches the prompt
            for name in (*ports,) if number % 2 else (*reversed(ports),):
                turns[name].append(first_token_seconds(ports[name], args.model, question))
    added = [b - a for a, b in zip(turns["without"], turns["with"], strict=True)]
    random = torch.Generator().manual_seed(1)
    drawn = torch.randint(len(added), (2000, len(added)), generator=random)
    medians = torch.tensor(added)[drawn].median(dim=1).values
    low, high = torch.quantile(medians, torch.tensor([0.025, 0.975])).tolist()
    print(
        f"first token: {statistics.median(turns['without']) * 1e3:.1f} ms without and "
        f"{statistics.median(turns['with']) * 1e3:.1f} ms with clew in front: "
        f"+{statistics.median(added) * 1e3:.1f} ms [{low * 1e3:.1f}, {high * 1e3:.1f}] "
        f"({len(added)} pairs)"
    )


def make_detector(loaded, folder, count=96):
    """The default detector, fitted to answers of random questions with random labels."""
    from extract import random_questions

    questions = random_questions(folder / "questions.jsonl", count)
    clew.extract(
        model=loaded,
        questions=questions,
        out=folder / "traces",
        prompt="{question}",
        max_new_tokens=16,
        cut="none",
    )
    random = torch.Generator().manual_seed(2)
    labels = torch.randint(0, 2, (count,), generator=random).tolist()
    rows = [f"q{number},{label}" for number, label in enumerate(labels)]
    scores = folder / "scores.csv"
    scores.write_text("\n".join(["question_id,score", *rows]) + "\n")
    clew.preprocess(folder / "traces", scores_file=scores, out=folder / "samples")
    clew.compare(
        preprocessed_dir=folder / "samples",
        out=folder / "compared",
        methods="fusion",
        seeds=1,
        keep_at_chance=True,
    )
    return clew.load_detector(folder / "compared" / "detector", device=str(loaded.model.device))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=[*PARTS], default="embedded")
    parser.add_argument("--long-tokens", type=int, default=7500)
    parser.add_argument("--detector", type=Path)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--requests", type=int)
    parser.add_argument("--prompt-tokens", type=int, default=40)
    parser.add_argument("--max-new-tokens", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--levels", type=int, nargs="+", default=[1, 8, 64], help="clients at once")
    parser.add_argument(
        "--model", help="of the soak, if it is not where the detector says; of the upstream"
    )
    parser.add_argument("--upstream", help="URL of a running server's API, on this machine")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0)
    args = parser.parse_args()
    args.requests = args.requests or (512 if args.part == "llama-7b" else 64)
    PARTS[args.part](args)


PARTS = {
    "embedded": run_embedded,
    "llama-7b": run_llama_7b,
    "transformers": run_transformers,
    "vllm": run_vllm,
    "vllm-server": run_vllm_server,
    "waiting": run_waiting,
    "soak": run_soak,
    "upstream": run_upstream,
}


if __name__ == "__main__":
    main()
