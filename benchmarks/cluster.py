"""How many workers can fill one store: clew's own leases, claims and manifest code, with simulated
workers, storage and clock.

    python benchmarks/cluster.py                        1 to 1,024 workers, 10 million questions
    python benchmarks/cluster.py --shard-size 5000      larger shards: fewer commits
    python benchmarks/cluster.py --slice 0.1            the middle tenth of the run, faster

Workers load a model, claim shards, answer them, put them, and list them in the manifest. 1% of them
die per hour and are replaced; what they had put is taken over. Requests take the time of an object
store, and more of them per second than it allows are refused ("503 Slow Down") and tried again.
"""

import argparse
import bisect
import heapq
import itertools
import random
import threading
import time
from collections import Counter, defaultdict

from clew.storage.leases import Claims, Leases, Owner
from clew.storage.manifest import swap
from clew.storage.place import ChangedError, Content

# What one entry of a manifest takes: bytes, and seconds to parse and to encode it (measured with
# 20,000 entries on one core of an ARM server).
ENTRY_BYTES, PARSE_SECONDS, ENCODE_SECONDS = 164, 17e-6, 7e-6
# Seconds until an object store answers, and bytes per second of one connection.
READ_SECONDS, WRITE_SECONDS, LIST_SECONDS, BANDWIDTH = 0.03, 0.06, 0.06, 100e6
# Bytes per second at which a worker puts a shard, in parts of 5 MB at the same time.
PUT_BANDWIDTH, PART_BYTES = 500e6, 5 << 20
# Requests per second that Amazon S3 documents for one prefix.
READS_PER_SECOND, WRITES_PER_SECOND = 5500, 3500
FIRST_BACKOFF, LONGEST_BACKOFF = 0.1, 15.0
REPLACED_AFTER = 120.0


class Killed(BaseException):
    """The worker died, wherever it was."""


class TooLate(Exception):
    """Another worker has replaced the manifest."""


class Task:
    """A thread that runs only while the clock lets it: one at a time, in the order of their
    times."""

    def __init__(self, clock, work, worker=None):
        self.clock, self.worker, self.is_over = clock, worker, False
        self.turn = threading.Lock()
        self.turn.acquire()
        self.thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self.thread.start()
        clock.wake(self, 0.0)

    def _run(self, work):
        self.turn.acquire()
        try:
            self.refuse_dead()
            work()
        except Killed:
            pass
        self.is_over = True
        self.clock.back.release()

    def refuse_dead(self):
        if self.worker is not None and self.worker.is_dead:
            raise Killed


class Clock:
    """Simulated time. Threads wait for it with `sleep`."""

    def __init__(self):
        self.seconds, self._order = 0.0, itertools.count()
        self._waiting, self._current = [], None
        self.back = threading.Lock()
        self.back.acquire()

    def now(self):
        return self.seconds

    def wake(self, task, after):
        heapq.heappush(self._waiting, (self.seconds + after, next(self._order), task))

    def sleep(self, seconds):
        task = self._current
        self.wake(task, seconds)
        self.back.release()
        task.turn.acquire()
        task.refuse_dead()

    def run(self, is_done):
        while self._waiting and not is_done():
            self.seconds, _, task = heapq.heappop(self._waiting)
            if task.is_over:
                continue
            self._current = task
            task.turn.release()
            self.back.acquire()


class Allowance:
    """Requests per second that the store takes."""

    def __init__(self, clock, rate):
        self._clock, self._rate, self._left, self._last = clock, rate, rate, 0.0

    def take(self):
        passed = self._clock.now() - self._last
        self._left = min(self._rate, self._left + passed * self._rate)
        self._last = self._clock.now()
        if self._left < 1:
            return False
        self._left -= 1
        return True


class ObjectStore:
    """What all workers see: files with versions, and the manifest as a set of bits."""

    def __init__(self, clock, shards, done, throttle):
        self.clock, self.files = clock, defaultdict(dict)
        self.listed, self.version = (1 << done) - 1, 0
        self.pending = list(range(done, done + shards))
        self.reads = Allowance(clock, READS_PER_SECOND * throttle)
        self.writes = Allowance(clock, WRITES_PER_SECOND * throttle)
        self.requests, self.per_minute = Counter(), Counter()
        self._versions = itertools.count(1)

    def request(self, kind, seconds, size=0):
        """Wait as long as a request takes: refused ones are tried again."""
        pause, allowance = FIRST_BACKOFF, self.reads if kind == "GET" else self.writes
        while not allowance.take():
            self.requests["503"] += 1
            self.clock.sleep(random.uniform(0, pause))
            pause = min(2 * pause, LONGEST_BACKOFF)
        self.requests[kind] += 1
        self.per_minute[int(self.clock.now() // 60)] += 1
        self.clock.sleep(seconds + size / BANDWIDTH)

    def put(self, size):
        """Put something large, in parts."""
        self.requests["PUT"] += int(size // PART_BYTES)
        self.per_minute[int(self.clock.now() // 60)] += int(size // PART_BYTES)
        self.request("PUT", WRITE_SECONDS + size / PUT_BANDWIDTH)

    def new_version(self):
        return str(next(self._versions))

    def manifest_bytes(self):
        return 4000 + ENTRY_BYTES * self.listed.bit_count()

    def read_manifest(self):
        self.request("GET", READ_SECONDS, self.manifest_bytes())
        found = self.listed, str(self.version)
        self.clock.sleep(PARSE_SECONDS * self.listed.bit_count())
        return found

    def write_manifest(self, listed, version):
        self.clock.sleep(ENCODE_SECONDS * listed.bit_count())
        self.request("PUT", WRITE_SECONDS, self.manifest_bytes())
        if str(self.version) != version:
            self.requests["conflict"] += 1
            raise ChangedError("")
        for number in bits(listed & ~self.listed):
            del self.pending[bisect.bisect_left(self.pending, number)]
        self.listed, self.version = listed, self.version + 1

    def find_pending(self):
        self.read_manifest()
        return list(self.pending)


def bits(number):
    while number:
        low = number & -number
        yield low.bit_length() - 1
        number ^= low


class SimulatedPlace:
    """A folder of the store, as clew's leases use it."""

    url = "simulated"

    def __init__(self, store, folder):
        self._store, self._files = store, store.files[folder]

    def names(self, prefix=""):
        self._store.request("LIST", LIST_SECONDS * (1 + len(self._files) // 1000))
        return sorted(name for name in self._files if name.startswith(prefix))

    def read(self, name, _max_bytes):
        self._store.request("GET", READ_SECONDS)
        if name not in self._files:
            raise FileNotFoundError(name)
        return self._files[name]

    def create(self, name, content):
        self._store.request("PUT", WRITE_SECONDS, len(content))
        if name in self._files:
            return False
        self._files[name] = Content(data=content, version=self._store.new_version())
        return True

    def replace(self, name, content, version):
        self._store.request("PUT", WRITE_SECONDS, len(content))
        if name not in self._files or self._files[name].version != version:
            raise ChangedError("")
        self._files[name] = Content(data=content, version=self._store.new_version())
        return self._files[name].version

    def delete(self, *names):
        self._store.request("DELETE", WRITE_SECONDS)
        for name in names:
            self._files.pop(name, None)


class Worker:
    """Loads a model, then makes shards until all are done."""

    def __init__(self, run, number):
        self.run, self.number, self.is_dead = run, number, False
        self.spent = run.spent
        self.leases = Leases(
            SimulatedPlace(run.store, ".work"),
            owner=Owner(worker=f"w{number}", host="h", machine=f"m{number}", pid=1, started=0.0),
            now=run.clock.now,
        )
        self.claims = Claims(self.leases, run.store.find_pending)
        self.writes, self.unlisted = [], []
        Task(run.clock, self.work, self)
        Task(run.clock, self.renew, self)
        Task(run.clock, self.die)

    def die(self):
        clock = self.run.clock
        clock.sleep(self.run.chance.expovariate(self.run.deaths_per_second))
        if self.run.is_done():
            return
        self.is_dead = True
        self.run.counts["died"] += 1
        clock.sleep(REPLACED_AFTER)
        self.run.add_worker()

    def renew(self):
        while True:
            self.run.clock.sleep(self.leases.renew_seconds)
            self.leases.renew()

    def work(self):
        self.timed("loading", self.run.clock.sleep, self.run.startup)
        while True:
            claim = self.timed("claiming", self.claims.take)
            if claim is not None:
                self.make(claim)
            elif not self.claims.others:
                self.wait_for_writes(leaving=0)
                self.timed("writing", self.list_shards)
                if not self.claims.look():
                    return
            else:
                self.timed("writing", self.list_shards)
                self.timed("waiting", self.run.clock.sleep, self.claims.wait_seconds)

    def make(self, claim):
        """As a capture does: a piece per record batch, then the shard, then the manifest."""
        run, pieces = self.run, SimulatedPlace(self.run.store, f"pieces-{claim.number}")
        there = self.timed("claiming", pieces.names)
        run.counts["taken over"] += bool(there)
        for piece in range(run.batches):
            if f"{piece}" in there:
                run.counts["batches kept"] += 1
                continue
            seconds = run.shard_seconds / run.batches * run.chance.uniform(0.8, 1.2)
            self.timed("answering", run.clock.sleep, seconds)
            if not claim.lease.is_held:
                run.counts["lease lost"] += 1
                return
            self.timed("writing", self.in_background, self.put_piece, pieces, piece)
        self.timed("writing", self.in_background, self.finish, claim, pieces)

    def in_background(self, function, *arguments):
        """As a capture writes while the next answers are generated: one thing at a time, and at
        most two wait."""
        self.wait_for_writes(leaving=2)
        before = self.writes[-1] if self.writes else None

        def write():
            while before is not None and not before.is_over:
                self.run.clock.sleep(0.25)
            function(*arguments)

        self.writes.append(Task(self.run.clock, write, self))

    def wait_for_writes(self, leaving):
        while True:
            self.writes = [task for task in self.writes if not task.is_over]
            if len(self.writes) <= leaving:
                return
            self.run.clock.sleep(0.25)

    def put_piece(self, pieces, piece):
        self.run.store.put(self.run.shard_bytes / self.run.batches)
        pieces._files[f"{piece}"] = Content(data=b"", version="")

    def finish(self, claim, pieces):
        """As clew commits a shard: look whether another worker was faster, put it, list it."""
        run, store = self.run, self.run.store
        listed, _ = store.read_manifest()
        if listed >> claim.number & 1:
            run.counts["made twice"] += 1
            self.claims.give_up(claim)
            return
        store.put(run.shard_bytes)
        self.unlisted.append((claim, pieces, run.clock.now()))
        self.list_shards(wait=not run.together)

    def list_shards(self, wait=True):
        """Add what this worker has put to the manifest. Without `wait`, only if nobody is faster:
        the next shard is then listed together with this one."""
        run, store, waiting = self.run, self.run.store, self.unlisted
        if not waiting:
            return
        mask = sum(1 << claim.number for claim, _, _ in waiting)
        try:
            swap(
                store.read_manifest,
                store.write_manifest,
                lambda listed: listed | mask,
                run.clock.sleep if wait else self.leave,
            )
        except TooLate:
            return
        self.unlisted = []
        for claim, pieces, since in waiting:
            run.commits.append(run.clock.now() - since)
            pieces.delete(*pieces.names())
            store.files.pop(f"pieces-{claim.number}", None)
            self.claims.give_up(claim)

    def leave(self, _seconds):
        raise TooLate

    def timed(self, what, function, *arguments):
        started = self.run.clock.now()
        try:
            return function(*arguments)
        finally:
            self.spent[what] += self.run.clock.now() - started


class Run:
    """One capture by `workers` workers."""

    def __init__(self, args, workers):
        random.seed(0)
        self.chance = random.Random(1)
        self.clock, self.counts, self.spent = Clock(), Counter(), Counter()
        shards = -(-args.questions // args.shard_size)
        self.shards = max(1, int(shards * args.slice))
        self.shard_seconds = args.shard_size * args.question_seconds
        self.shard_bytes, self.batches = args.shard_size * args.trace_bytes, args.batches
        self.startup, self.deaths_per_second = args.startup, args.deaths / 3600
        self.commits, self.together = [], args.together
        self.store = ObjectStore(
            self.clock, self.shards, (shards - self.shards) // 2, args.throttle
        )
        self.workers, self._numbers = workers, itertools.count()
        for _ in range(workers):
            self.add_worker()
        self.clock.run(self.is_done)
        self.ideal = self.startup + self.shards * self.shard_seconds / workers

    def add_worker(self):
        Worker(self, next(self._numbers))

    def is_done(self):
        return not self.store.pending

    def describe(self):
        seconds, spent = self.clock.now(), sum(self.spent.values())
        kinds = self.store.requests
        total = sum(kinds[kind] for kind in ("GET", "PUT", "LIST", "DELETE"))
        shares = {name: value / spent for name, value in self.spent.most_common()}
        return {
            "workers": self.workers,
            "hours": seconds / 3600,
            "efficiency": self.ideal / seconds,
            "died": self.counts["died"],
            "twice": self.counts["made twice"],
            "taken over": self.counts["taken over"],
            "requests/s": total / seconds,
            "peak/s": max(self.store.per_minute.values()) / 60,
            "refused": kinds["503"],
            "conflicts": kinds["conflict"] / max(1, len(self.commits)),
            "commit s": sum(self.commits) / max(1, len(self.commits)),
            "shares": shares,
        }


COLUMNS = {
    "workers": "{:,}",
    "hours": "{:,.2f}",
    "efficiency": "{:.0%}",
    "died": "{:,}",
    "twice": "{:,}",
    "taken over": "{:,}",
    "requests/s": "{:,.1f}",
    "peak/s": "{:,.0f}",
    "refused": "{:,}",
    "conflicts": "{:.1f}",
    "commit s": "{:.2f}",
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4, 16, 64, 256, 1024])
    parser.add_argument("--questions", type=int, default=10_000_000)
    parser.add_argument("--shard-size", type=int, default=500)
    parser.add_argument("--slice", type=float, default=1.0, help="simulate a part, from the middle")
    parser.add_argument(
        "--together",
        action="store_true",
        help="not what clew does: list several shards together after a conflict",
    )
    parser.add_argument("--question-seconds", type=float, default=0.06, help="of one worker")
    parser.add_argument("--trace-bytes", type=int, default=1_000_000)
    parser.add_argument("--batches", type=int, default=4, help="record batches per shard")
    parser.add_argument("--startup", type=float, default=60.0, help="seconds to load the model")
    parser.add_argument("--deaths", type=float, default=0.01, help="per worker and hour")
    parser.add_argument("--throttle", type=float, default=1.0, help="share of S3's request rates")
    args = parser.parse_args()
    threading.stack_size(1 << 18)
    print("".join(f"{name:>12}" for name in COLUMNS) + "  a worker's time")
    stopped = None
    for workers in args.workers:
        started = time.process_time()
        found = Run(args, workers).describe()
        cells = "".join(f"{form.format(found[name]):>12}" for name, form in COLUMNS.items())
        shares = ", ".join(f"{name} {share:.0%}" for name, share in found["shares"].items())
        print(f"{cells}  {shares}  [{time.process_time() - started:.0f} s]", flush=True)
        if stopped is None and found["efficiency"] < 0.9:
            stopped = found
    if stopped is None:
        print("every number of workers reaches 90% of the ideal")
        return
    del stopped["shares"]["answering"]
    why = max(stopped["shares"], key=stopped["shares"].get)
    print(
        f"below 90% of the ideal from {stopped['workers']:,} workers on: {why} takes the most time "
        f"besides answering ({stopped['conflicts']:.1f} conflicts and {stopped['commit s']:.2f} s "
        "per commit to the manifest)"
    )


if __name__ == "__main__":
    main()
