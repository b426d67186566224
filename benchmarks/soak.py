"""Many clients of `clew serve` at once, for a minute: no error, no answer mixed up, flat memory.

    python benchmarks/serve.py --part soak --detector comparison/detector

Every client asks questions of its own and compares the answers with those that the same server
gives when it is asked alone. Greedy answers in float32 may differ only where the two best logits
lie within 1e-4: there, the order of additions decides.
"""

import http.client
import json
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import psutil

from clew.hallucination.questions import load_questions

TIE = 1e-4
WARM_SECONDS = 20
QUESTIONS_PER_CLIENT = 2
FLAT_BYTES = 64 << 20


@dataclass
class Seen:
    """What the clients have seen together."""

    latencies: list = field(default_factory=list)
    first_tokens: list = field(default_factory=list)
    counts: Counter = field(default_factory=Counter)
    errors: list = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, seconds, first, outcome, tokens):
        with self.lock:
            self.latencies.append(seconds)
            self.first_tokens += [] if first is None else [first]
            self.counts[outcome] += 1
            self.counts["tokens"] += tokens

    def fail(self, text):
        with self.lock:
            self.errors.append(text)


def run_soak(args):
    """Returns whether everything held."""
    questions = load_questions("facts", args.clients * QUESTIONS_PER_CLIENT).questions
    texts = [question.question for question in questions]
    with serving(args.detector, args.model) as (process, address):
        server = psutil.Process(process.pid)
        alone = [ask(address, text, is_stream=False)[0] for text in texts]
        print(f"asked {len(texts)} questions alone", flush=True)
        before = sizes(server)
        memory, seen = soak(address, server, texts, alone, args)
        time.sleep(6)  # connections that are kept alive end
        after = sizes(server)
        process.terminate()
        code = process.wait(timeout=60)
        printed = process.stdout.read()
    leaked = [text for text in texts if text in printed]
    return tell(seen, memory, before, after, args) and code == 0 and not leaked


@contextmanager
def serving(detector, model):
    """`clew serve` in float32, and its address once it is ready."""
    words = ["serve", str(detector), "--port", "0", "--dtype", "float32", "--device", "cpu"]
    words += ["--model", str(model)] if model else []
    process = subprocess.Popen(
        [sys.executable, "-m", "clew", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={name: value for name, value in os.environ.items() if name != "CLEW_API_KEYS"},
    )
    try:
        printed = ""
        while not (found := re.search(r"at (http://[\d.:]+)/v1", printed)):
            line = process.stdout.readline()
            assert line, printed
            printed += line
        yield process, urlsplit(found[1]).netloc
    finally:
        process.kill()
        process.wait()


def soak(address, server, texts, alone, args):
    seen, memory = Seen(), []
    end = time.monotonic() + args.seconds
    clients = [
        threading.Thread(target=be_client, args=(address, number, texts, alone, end, seen))
        for number in range(args.clients)
    ]
    for client in clients:
        client.start()
    began = time.monotonic()
    while any(client.is_alive() for client in clients):
        memory.append((time.monotonic() - began, server.memory_info().rss))
        time.sleep(0.5)
    return memory, seen


def be_client(address, number, texts, alone, end, seen):
    """Asks its own questions in turn, every second client as a stream."""
    asked = 0
    while time.monotonic() < end:
        place = number * QUESTIONS_PER_CLIENT + asked % QUESTIONS_PER_CLIENT
        started = time.monotonic()
        try:
            answer, first = ask(address, texts[place], is_stream=number % 2 == 1)
        except (OSError, ValueError, LookupError, http.client.HTTPException) as error:
            seen.fail(f"client {number}: {error!r}")
            continue
        seconds = time.monotonic() - started
        seen.add(seconds, first, judge(answer, alone[place]), len(answer))
        asked += 1


def ask(address, text, *, is_stream):
    """The tokens of the answer, each with its log probability and the second best one's, and the
    seconds until the first."""
    body = {"messages": [{"role": "user", "content": text}], "logprobs": True, "top_logprobs": 2}
    connection = http.client.HTTPConnection(address, timeout=600)
    started, first, tokens = time.monotonic(), None, []
    try:
        headers = {"Content-Type": "application/json"}
        sent = json.dumps({**body, "stream": is_stream})
        connection.request("POST", "/v1/chat/completions", sent, headers)
        reply = connection.getresponse()
        if reply.status != 200:
            raise ValueError(f"{reply.status}: {reply.read(500)!r}")
        if not is_stream:
            return read_tokens(json.loads(reply.read())), None
        for line in reply:
            if line.startswith(b"data: {"):
                chunk = json.loads(line[6:])
                if "error" in chunk:
                    raise ValueError(str(chunk["error"]))
                tokens += read_tokens(chunk)
                if first is None and tokens:
                    first = time.monotonic() - started
        return tokens, first
    finally:
        connection.close()


def read_tokens(reply):
    found = []
    for choice in reply["choices"]:
        for one in (choice.get("logprobs") or {}).get("content") or ():
            found.append((one["token"], *(other["logprob"] for other in one["top_logprobs"][:2])))
    return found


def judge(answer, alone):
    """How an answer compares with that of a lone run: "same", "tie" or "other"."""
    for ours, theirs in zip(answer, alone, strict=False):
        if ours[0] != theirs[0]:
            return "tie" if len(theirs) < 3 or theirs[1] - theirs[2] <= TIE else "other"
    return "same" if len(answer) == len(alone) else "other"


def sizes(process):
    return process.num_threads(), process.num_fds()


def tell(seen, memory, before, after, args):
    counts = seen.counts
    print(
        f"{args.clients} clients for {args.seconds:g} s: {len(seen.latencies):,} answers, "
        f"{counts['tokens'] / args.seconds:,.0f} tokens/s, {len(seen.errors)} errors; "
        f"{counts['same']:,} equal those of a lone run, {counts['tie']} differ at a tie, "
        f"{counts['other']} differ"
    )
    for name, values in (("answer", seen.latencies), ("first token", seen.first_tokens)):
        cuts = statistics.quantiles(values, n=20) if len(values) > 1 else [0.0] * 19
        print(f"{name}: p50 {statistics.median(values or [0.0]):.2f} s, p95 {cuts[18]:.2f} s")
    warm = [size for seconds, size in memory if seconds >= min(WARM_SECONDS, args.seconds / 2)]
    growth = warm[-1] - warm[0]
    print(
        f"memory: {warm[0] / 1e6:,.0f} MB warm, {warm[-1] / 1e6:,.0f} MB at the end, at most "
        f"{max(warm) / 1e6:,.0f} MB; threads and open files {before} before, {after} after"
    )
    for error in seen.errors[:5]:
        print(f"  {error}")
    # A pool of threads may have grown; of every client that was kept, there would be hundreds.
    is_kept = any(late - early > 20 for early, late in zip(before, after, strict=True))
    held = not seen.errors and not counts["other"] and growth < FLAT_BYTES and not is_kept
    print("held" if held else "FAILED")
    return held
