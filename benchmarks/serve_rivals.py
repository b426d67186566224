"""clew serve with risks against "transformers serve" with its continuous batching: the same model
in float32, the same questions, 1, 8 and 64 clients over HTTP, by turns.

    python benchmarks/serve.py --part transformers --detector comparison/detector

The rival requires `pip install "transformers[serving]"` (fastapi, uvicorn, openai). And vLLM with a
detector in it against vLLM alone, in the environment of `make test-vllm`:

    python benchmarks/serve.py --part vllm --detector comparison/detector --repeats 10
"""

import http.client
import json
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import scipy.stats
from tokenizers import Tokenizer

from clew.hallucination.llm.embedded import embedded_model_folder
from clew.hallucination.questions import load_questions

START_SECONDS = 900
IDLE_SHARE = 0.1  # of a core


def run_rivals(args):
    model = str(embedded_model_folder())
    clew = [sys.executable, "-m", "clew", "serve", str(args.detector), "--prompt", "messages"]
    clew += ["--model-name", model]
    rival = [sys.executable, "-c", "from transformers.cli.transformers import main; main()"]
    rival += ["serve", model, "--continuous-batching", "--device", "cpu", "--dtype", "float32"]
    # By default its cache takes most of the memory.
    rival += ["--cb-max-memory-percent", "0.2"]
    commands = {"clew serve, with risks": clew, "transformers serve": rival}
    questions = [question.question for question in load_questions("facts", 256).questions]
    with ExitStack() as stack:
        servers = {n: stack.enter_context(serving(c, model)) for n, c in commands.items()}
        for clients in args.levels:
            asked = questions[: max(args.requests // 4, clients)]
            turns: dict[str, list] = {name: [] for name in servers}
            for _ in range(args.repeats):
                for name, server in servers.items():
                    with server.awake():
                        busy = server.cpu_seconds()
                        turn = ask_all(server.port, model, asked, clients, args)
                        turns[name].append((*turn, server.cpu_seconds() - busy))
            for name, found in turns.items():
                report(clients, name, found)


def run_vllm(args):
    """Pairs of turns: `clew serve --engine vllm` and plain vLLM, the same requests, by turns. All
    answers have the same length and end by themselves, so that all are checked. The other server
    is not stopped, since vLLM is slow for a while after it is woken up, but takes no CPU time: a
    few seconds after its last answer it sleeps, and a turn starts then."""
    model, detector = str(embedded_model_folder()), str(args.detector)
    sizes = ["--max-model-len", "1024", "--max-num-seqs", "64"]
    plain = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model"]
    plain += [model, "--dtype", "float32", "--enforce-eager", *sizes]
    inside = [sys.executable, "-m", "clew", "serve", detector, "--engine", "vllm"]
    inside += ["--prompt", "messages", "--engine-args"]
    inside += [" ".join(["--served-model-name", model, *sizes])]
    end = Tokenizer.from_file(str(Path(model) / "tokenizer.json")).token_to_id("<|im_end|>")
    most = args.max_new_tokens
    more = {"min_tokens": most - 1, "logit_bias": {str(end): 100}, "max_tokens": most}
    questions = [question.question for question in load_questions("facts", 256).questions]
    with ExitStack() as stack:
        commands = {"plain": plain, "inside": inside}
        servers = {n: stack.enter_context(serving(c, model)) for n, c in commands.items()}
        for server in servers.values():
            server.signal(signal.SIGCONT)
        for clients in args.levels:
            asked = questions[: max(8, 2 * clients)]
            rates, busy = {n: [] for n in servers}, {n: [] for n in servers}
            for number in range(args.repeats + 1):  # the first pair warms up
                for name in sorted(servers, reverse=bool(number % 2)):
                    wait_until_idle(servers.values())
                    port, before = servers[name].port, servers[name].cpu_seconds()
                    tokens, seconds, _ = ask_all(port, model, asked, clients, args, more)
                    busy[name].append((servers[name].cpu_seconds() - before) / tokens)
                    rates[name].append(tokens / seconds)
            report_pairs(clients, rates, lambda plain, inside: 1 - inside / plain, "tokens/s")
            busy = {name: [1e3 * one for one in some] for name, some in busy.items()}
            report_pairs(clients, busy, lambda plain, inside: inside / plain - 1, "CPU ms/token")


def wait_until_idle(servers):
    for server in servers:
        used = IDLE_SHARE
        while used >= IDLE_SHARE:
            before = server.cpu_seconds()
            time.sleep(1)
            used = server.cpu_seconds() - before


def report_pairs(clients, found, compare, unit):
    """The mean overhead of the pairs with its 95% interval."""
    pairs = list(zip(found["plain"][1:], found["inside"][1:], strict=True))
    overheads = [compare(*pair) for pair in pairs]
    mean, error = statistics.fmean(overheads), scipy.stats.sem(overheads)
    low, high = scipy.stats.t.interval(0.95, len(overheads) - 1, mean, error)
    plain, inside = (statistics.median(some) for some in zip(*pairs, strict=True))
    print(
        f"{clients:3} clients: plain {plain:.1f} {unit}, with the detector {inside:.1f}, overhead"
        f" {mean:.1%} [{low:.1%}, {high:.1%}] in {len(overheads)} pairs",
        flush=True,
    )


def report(clients, name, turns):
    """The median over the turns; latencies over all of them."""
    latencies = sorted(latency for _, _, some, _ in turns for latency in some)
    p95 = statistics.quantiles(latencies, n=20, method="inclusive")[-1]
    rate = statistics.median(tokens / seconds for tokens, seconds, *_ in turns)
    busy = statistics.median(cpu / tokens for tokens, *_, cpu in turns)
    print(
        f"{clients:3} clients, {name:24}: {rate:7.1f} tokens/s, latency p50 "
        f"{statistics.median(latencies):.2f} s, p95 {p95:.2f} s, {busy * 1e3:.1f} CPU ms a token "
        f"({len(latencies)} answers)",
        flush=True,
    )


class Server:
    """A server that runs only while it is asked: stopped in between, it takes no CPU time from the
    other one, not even by waiting."""

    def __init__(self, process, port):
        self.process, self.port = process, port

    def cpu_seconds(self):
        """Of all its processes."""
        first = psutil.Process(self.process.pid)
        times = [one.cpu_times() for one in (first, *first.children(recursive=True))]
        return sum(one.user + one.system for one in times)

    @contextmanager
    def awake(self):
        self.signal(signal.SIGCONT)
        try:
            yield
        finally:
            self.signal(signal.SIGSTOP)

    def signal(self, number):
        for one in [self.process, *psutil.Process(self.process.pid).children(recursive=True)]:
            one.send_signal(number)


@contextmanager
def serving(command, model):
    """A server in a process of its own, on a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [*command, "--host", "127.0.0.1", "--port", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    server = Server(process, port)
    try:
        wait_until_up(process, port, model)
        server.signal(signal.SIGSTOP)
        yield server
    finally:
        if process.poll() is None:
            server.signal(signal.SIGCONT)
        process.terminate()
        process.wait()


def wait_until_up(process, port, model):
    """Until the server answers, its model loaded."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SystemExit(f"the server ended with exit code {process.returncode}")
        try:
            ask(port, model, "Hello", 1)
            return
        except (OSError, ValueError, KeyError, http.client.HTTPException):
            time.sleep(0.5)
    raise SystemExit("the server did not start")


def ask_all(port, model, questions, clients, args, more=None):
    """All questions, by that many clients; returns tokens, seconds and latencies. Tokens are those
    of the answers' texts: servers do not agree on whether the end of an answer counts."""
    waiting, found, errors = iter(questions), [], []
    lock = threading.Lock()

    def work():
        while True:
            with lock:
                question = next(waiting, None)
            if question is None:
                return
            started = time.perf_counter()
            try:
                answer = ask(port, model, question, args.max_new_tokens, more)
            except (OSError, ValueError, KeyError, http.client.HTTPException) as error:
                errors.append(repr(error))
                return
            found.append((answer, time.perf_counter() - started))

    threads = [threading.Thread(target=work) for _ in range(clients)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise SystemExit(f"{len(errors)} clients failed, the first with {errors[0]}")
    seconds = time.perf_counter() - started
    tokens = Tokenizer.from_file(str(Path(model) / "tokenizer.json"))
    count = sum(len(tokens.encode(answer).ids) for answer, _ in found)
    return count, seconds, [latency for _, latency in found]


def ask(port, model, question, max_tokens, more=None):
    """The text of one answer."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": max_tokens,
        "temperature": 0,
        **(more or {}),
    }
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
    answer = json.loads(connection.getresponse().read())
    connection.close()
    return answer["choices"][0]["message"]["content"]


def first_token_seconds(port, model, question):
    """Until the first token of a streamed answer; the rest of it is read, too."""
    body = {"model": model, "messages": [{"role": "user", "content": question}]}
    body |= {"stream": True, "max_tokens": 8, "temperature": 0}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        started = time.perf_counter()
        connection.request(
            "POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"}
        )
        reply, seconds = connection.getresponse(), None
        for line in reply:
            if seconds is None and line.startswith(b"data: {"):
                choices = json.loads(line[6:])["choices"]
                if choices and choices[0]["delta"].get("content"):
                    seconds = time.perf_counter() - started
        return seconds
    finally:
        connection.close()
