"""An epoch of shuffled float16 [32, 4096] samples from an object store: clew beside
mosaicml-streaming and litdata reading the same bytes from the same server, and beside what the
server gives a plain reader of parallel ranges.

    python benchmarks/cloud.py                       the server as fast as it can
    python benchmarks/cloud.py --rate 300 --latency-ms 10      through a network of 300 MB/s
    python benchmarks/cloud.py --rivals-python VENV/bin/python
    python benchmarks/cloud.py --quick               little data, to see that all of it runs

Each contestant runs in a fresh process, in turn, several rounds. Cold: one epoch, with opening,
into an empty cache. Warm: the epochs after it. How to install the rivals:
loader_rivals/requirements.txt.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from loader_rivals.source import BATCH, QUICK_SHAPES, SHAPES, WORKERS, write_source

HERE = Path(__file__).resolve().parent
RIVALS = {"mosaicml-streaming": "mds", "litdata": "litdata"}
OURS = ("plain ranges", "clew", "clew, shard by shard", "clew, small cache", "clew, local folder")
WARM_SECONDS = 2.0
TRIES = 3  # a rival may fail now and then


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=0, help="MB/s of the network")
    parser.add_argument("--latency-ms", type=float, default=0)
    parser.add_argument("--rivals-python", default=sys.executable)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        job = json.loads(args.child)
        print(json.dumps({**CHILDREN[job["name"]](job), "peak_mib": _peak_mib()}))
        return
    with tempfile.TemporaryDirectory(prefix="clew-cloud-") as temporary:
        run(args, args.data or Path(temporary))


def run(args, folder):
    shape = (QUICK_SHAPES if args.quick else SHAPES)["sequences"]
    write_source(folder / "source", shape)
    bucket = folder / "served" / "bucket"
    names = [*OURS, *RIVALS] if args.only is None else args.only
    for name in names:
        prepare(args, name, folder, bucket)
    command = [sys.executable, HERE / "range_server.py", bucket.parent]
    command += ["--rate", str(args.rate), "--latency-ms", str(args.latency_ms)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        environment = point_to(f"http://127.0.0.1:{server.stdout.readline().strip()}")
        results = measure(args, names, folder, environment, shape)
    finally:
        server.kill()
    report(args, results, shape)


def prepare(args, name, folder, bucket):
    kind = RIVALS.get(name, "clew")
    if not (bucket / kind).exists():
        job = {"name": f"prepare {kind}", "data": str(folder / "source"), "out": str(bucket / kind)}
        call(args, name, job, {})


def measure(args, names, folder, environment, shape):
    results = {name: [] for name in names}
    for number in range(args.rounds):
        for name in names:
            cache = folder / "cache"
            shutil.rmtree(cache, ignore_errors=True)
            job = {
                "name": name,
                "url": f"s3://bucket/{RIVALS.get(name, 'clew')}",
                "local": str(folder / "served" / "bucket" / "clew"),
                "cache": str(cache),
                "bytes": shape.samples * shape.sample_bytes,
                "samples": shape.samples,
            }
            found = call(args, name, job, environment)
            found["cache_mb"] = sum(p.stat().st_size for p in cache.rglob("*") if p.is_file()) / 1e6
            results[name].append(found)
            print(f"  round {number + 1}, {name}: {found}", flush=True)
    return results


def call(args, name, job, environment):
    python = args.rivals_python if name in RIVALS else sys.executable
    command = [python, __file__, "--child", json.dumps(job)]
    for left in reversed(range(TRIES)):
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            text=True,
            check=not left,
            env={**os.environ, **environment},
        )
        if not done.returncode:
            break
        print(f"  {name} failed and is run again", flush=True)
        shutil.rmtree(job.get("cache", ""), ignore_errors=True)
    return json.loads(done.stdout.splitlines()[-1])


def point_to(endpoint):
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "S3_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "any",
        "AWS_SECRET_ACCESS_KEY": "any",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "NO_PROXY": "127.0.0.1",
    }


def report(args, results, shape):
    print(
        f"\n{shape.samples:,} samples, {shape.samples * shape.sample_bytes / 1e6:,.0f} MB; "
        f"{args.rate or 'unlimited'} MB/s, {args.latency_ms} ms\n"
    )
    print("| | cold MB/s | warm MB/s | peak MiB |\n|---|---|---|---|")
    for name, found in results.items():
        cells = [_spread([one.get(key) for one in found]) for key in ("cold", "warm", "peak_mib")]
        print(f"| {name} | {' | '.join(cells)} |")


def _spread(values):
    if any(value is None for value in values):
        return ""
    middle = statistics.median(values)
    return f"{middle:,.0f} ({min(values):,.0f} to {max(values):,.0f})"


def _peak_mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def prepare_clew(job):
    """A folder as `clew preprocess` writes it: the shards, and the list of samples beside them."""
    import numpy as np
    import pyarrow as pa
    from loader_rivals.clew_loader import sequence_columns, write_store
    from loader_rivals.source import Source

    from clew.hallucination.samples.splits import Splits, write_splits

    source, folder = Source(job["data"]), Path(job["out"])
    shards = (sequence_columns(values) for values, _ in source.iter_shards())
    write_store(folder / "sequences", "sequences", shards)
    ids = np.arange(len(source.samples))
    label = (ids % 2).astype(np.float32)
    table = Splits(
        global_example_id=ids,
        question_id=pa.array([str(i) for i in ids]),
        split=np.zeros(len(ids), np.uint8),
        label=label,
        score=1 - label,
    )
    write_splits(folder / "splits.csv", table)
    return {}


def prepare_mds(job):
    from loader_rivals.mosaicml import write_shards

    write_shards(Path(job["data"]), Path(job["out"]))
    return {}


def prepare_litdata(job):
    from loader_rivals.lightning import LitData

    LitData().prepare(Path(job["data"]), Path(job["out"]))
    return {}


def read_plainly(job):
    """What the server gives 16 connections that keep nothing."""
    from clew.storage.places import open_place

    begun = time.perf_counter()
    place = open_place(f"{job['url']}/sequences")
    entries = {name: e.size for name, e in place.entries().items() if name.endswith(".arrow")}
    size = 4 << 20
    ranges = [
        (name, start, min(size, total - start))
        for name, total in entries.items()
        for start in range(0, total, size)
    ]
    with ThreadPoolExecutor(16) as threads:
        for _ in threads.map(lambda r: place.read_ranges(r[0], [r[1:]]), ranges):
            pass
    return {"cold": sum(entries.values()) / 1e6 / (time.perf_counter() - begun)}


def read_clew(job):
    return _time_clew(job, shuffle=True)


def read_clew_by_shard(job):
    return _time_clew(job, shuffle=True, shuffle_buffer_size=1000)


def read_clew_small(job):
    """A cache of a twentieth of the store: every sample is a range of its own."""
    return _time_clew(job, shuffle=True, cache_size=job["bytes"] // 20, warm=False)


def read_local(job):
    return _time_clew({**job, "url": job["local"]}, shuffle=True)


def _time_clew(job, *, cache_size="100GB", warm=True, **order):
    from clew.datasets import Loader, PreprocessedLSTMMapDataset

    begun = time.perf_counter()
    dataset = PreprocessedLSTMMapDataset(job["url"], cache_dir=job["cache"], cache_size=cache_size)
    loader = Loader(dataset, BATCH, num_workers=WORKERS, persistent_workers=True, **order)

    def epoch():
        seen = 0
        for batch in loader:
            seen += _touch(batch["sequence"])
        assert seen == job["samples"], seen

    return _time_epochs(epoch, job, begun, warm=warm)


def read_mosaicml(job):
    from loader_rivals.mosaicml import import_streaming

    streaming = import_streaming()
    streaming.base.util.clean_stale_shared_memory()
    begun = time.perf_counter()
    dataset = streaming.StreamingDataset(
        remote=job["url"], local=job["cache"], shuffle=True, batch_size=BATCH
    )
    loader = streaming.StreamingDataLoader(
        dataset, batch_size=BATCH, num_workers=WORKERS, persistent_workers=True
    )
    return _time_loader(loader, job, begun)


def read_litdata(job):
    from litdata import StreamingDataLoader, StreamingDataset
    from litdata.streaming import downloader

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # no other way to use this server
    begun = time.perf_counter()
    dataset = StreamingDataset(
        job["url"],
        cache_dir=job["cache"],
        shuffle=True,
        drop_last=False,
        max_cache_size="100GB",
        storage_options={"endpoint_url": os.environ["AWS_ENDPOINT_URL"]},
    )
    loader = StreamingDataLoader(
        dataset, batch_size=BATCH, num_workers=WORKERS, persistent_workers=True
    )
    return _time_loader(loader, job, begun)


def _time_loader(loader, job, begun):
    def epoch():
        seen = 0
        for batch in loader:
            seen += _touch(batch["features"])
        assert seen == job["samples"], seen

    return _time_epochs(epoch, job, begun)


def _time_epochs(epoch, job, begun, *, warm=True):
    """MB/s of the first epoch, with opening, and the median of those after it."""
    epoch()
    cold = job["bytes"] / 1e6 / (time.perf_counter() - begun)
    rates, started = [], time.perf_counter()
    while warm and (len(rates) < 3 or time.perf_counter() - started < WARM_SECONDS):
        begun = time.perf_counter()
        epoch()
        rates.append(job["bytes"] / 1e6 / (time.perf_counter() - begun))
    return {"cold": cold, **({"warm": statistics.median(rates)} if warm else {})}


def _touch(values):
    """What a consumer does at the very least: a value per sample."""
    float(values[:, -1, -1].sum())
    return len(values)


CHILDREN = {
    "prepare clew": prepare_clew,
    "prepare mds": prepare_mds,
    "prepare litdata": prepare_litdata,
    "plain ranges": read_plainly,
    "clew": read_clew,
    "clew, shard by shard": read_clew_by_shard,
    "clew, small cache": read_clew_small,
    "clew, local folder": read_local,
    "mosaicml-streaming": read_mosaicml,
    "litdata": read_litdata,
}

if __name__ == "__main__":
    main()
