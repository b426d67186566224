"""clew serve with risks against "transformers serve" with its continuous batching: the same model
in float32, the same questions, 1, 8 and 64 clients over HTTP, by turns.

    python benchmarks/serve.py --part transformers --detector comparison/detector

The rival requires `pip install "transformers[serving]"` (fastapi, uvicorn, openai). And vLLM with a
detector in it against the same vLLM without, and clew serve against vLLM's server, in the
environment of `make test-vllm`:

    python benchmarks/serve.py --part vllm --detector comparison/detector --repeats 10
    python benchmarks/serve.py --part vllm-server --detector comparison/detector --levels 1 8
"""

import http.client
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import psutil
import scipy.stats
from tokenizers import Tokenizer

from clew.hallucination.llm.embedded import embedded_model_folder
from clew.hallucination.questions import load_questions

START_SECONDS = 900


def run_rivals(args):
    model = str(embedded_model_folder())
    rival = [sys.executable, "-c", "from transformers.cli.transformers import main; main()"]
    rival += ["serve", model, "--continuous-batching", "--device", "cpu", "--dtype", "float32"]
    # By default its cache takes most of the memory.
    rival += ["--cb-max-memory-percent", "0.2"]
    commands = {"clew serve, with risks": clew_command(args, model), "transformers serve": rival}
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


def clew_command(args, model):
    command = [sys.executable, "-m", "clew", "serve", str(args.detector), "--prompt", "messages"]
    return [*command, "--model-name", model]


def run_servers(args):
    """clew serve with risks against vLLM's own server, each alone in new processes, by turns."""
    model = str(embedded_model_folder())
    rival = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model]
    rival += ["--dtype", "float32", "--enforce-eager", "--max-model-len", "1024"]
    commands = {"clew serve, with risks": clew_command(args, model), "vLLM": rival}
    questions = [question.question for question in load_questions("facts", 256).questions]
    found = {level: {name: [] for name in commands} for level in args.levels}
    for number in range(args.repeats):
        for name, command in sorted(commands.items(), reverse=bool(number % 2)):
            with serving(command, model) as server, server.awake():
                ask_all(server.port, model, questions[-8:], 8, args)  # warms up
                for clients, turns in found.items():
                    busy = server.cpu_seconds()
                    asked = questions[: max(args.requests // 4, clients)]
                    turn = ask_all(server.port, model, asked, clients, args)
                    turns[name].append((*turn, server.cpu_seconds() - busy))
    for clients, turns in found.items():
        for name, some in turns.items():
            report(clients, name, some)


def run_vllm(args):
    """Pairs of turns of one vLLM that has a detector in its worker: with its hooks and the risk of
    every answer, and without them, as vLLM is alone. Two starts of the same server differ by more
    than what is measured. All answers have the same length and end by themselves."""
    # Whether the hooks are there is said by a function, which vLLM sends to its worker.
    os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
    from vllm import LLM, SamplingParams

    model = str(embedded_model_folder())
    end = Tokenizer.from_file(str(Path(model) / "tokenizer.json")).token_to_id("<|im_end|>")
    most = args.max_new_tokens
    llm = LLM(
        model=model,
        dtype="float32",
        enforce_eager=True,
        max_model_len=1024,
        max_num_seqs=64,
        enable_prefix_caching=False,  # the second turn of a pair would have less to do
        worker_extension_cls="clew.vllm.DetectorWorker",
        additional_config={"clew_detector": str(args.detector.resolve())},
        disable_log_stats=True,
    )
    sampling = SamplingParams(
        temperature=0, min_tokens=most - 1, max_tokens=most, logit_bias={end: 100}
    )
    [problem] = llm.collective_rpc("clew_attach")
    if problem:
        raise SystemExit(problem)
    questions = [question.question for question in load_questions("facts", 256).questions]
    for clients in args.levels:
        rates, busy = {"plain": [], "inside": []}, {"plain": [], "inside": []}
        for number in range(args.repeats + 1):  # the first pair warms up
            for name in sorted(rates, reverse=bool(number % 2)):
                llm.collective_rpc(partial(switch_hooks, on=name == "inside"))
                before, started = children_seconds(), time.perf_counter()
                count = 0
                for first in range(0, max(8, 2 * clients), clients):
                    some = questions[first : first + clients]
                    count += answer_inside(llm, some, sampling, checks=name == "inside")
                rates[name].append(count / (time.perf_counter() - started))
                busy[name].append(1e3 * (children_seconds() - before) / count)
        report_pairs(clients, rates, lambda plain, inside: 1 - inside / plain, "tokens/s")
        report_pairs(clients, busy, lambda plain, inside: inside / plain - 1, "CPU ms/token")
    llm.llm_engine.engine_core.shutdown()


def switch_hooks(worker, *, on):
    """In vLLM's worker."""
    recorder = worker.model_runner.clew_inside._recorder
    recorder.close()
    recorder._next = recorder._step = None
    recorder._handles = recorder._hook() if on else []


def answer_inside(llm, questions, sampling, *, checks):
    """Answer questions together, and assess the answers; returns how many tokens they have."""
    chats = [[{"role": "user", "content": question}] for question in questions]
    found = llm.chat(chats, sampling, use_tqdm=False)
    if checks:
        asked = [
            {"name": one.request_id, "question": q, "text": one.outputs[0].text, "ended": "end"}
            for one, q in zip(found, questions, strict=True)
        ]
        [clews] = llm.collective_rpc("clew_risks", args=(asked,))
        unchecked = [one["reason"] for one in clews if one["state"] == "unavailable"]
        if unchecked:
            raise SystemExit(f"{len(unchecked)} answers were not checked: {unchecked[0]}")
    return sum(len(one.outputs[0].token_ids) for one in found)


def children_seconds():
    """The CPU time of all processes that this one has started."""
    times = [one.cpu_times() for one in psutil.Process().children(recursive=True)]
    return sum(one.user + one.system for one in times)


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
