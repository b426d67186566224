"""Training speed and memory of image patterns beside the plain loop, in one run.

    python benchmarks/patterns.py                     every part; on a GPU when there is one
    python benchmarks/patterns.py --part speed        whole epochs beside the same step on one batch
    python benchmarks/patterns.py --part finetune     the pretrained network beside others
    python benchmarks/patterns.py --part features     the pretrained network's features on a CPU
    python benchmarks/patterns.py --part memory       RAM with more photos than may lie in it
    python benchmarks/patterns.py --part decode       photos decoded per second, by workers

The plain loop: the same network in single precision, one kernel at a time, on pictures that lie
ready on the device, without any augmentation. clew's epochs begin with photos in folders. The
rivals of fine-tuning read, crop and mirror photos too: see fine_tuning_rivals.py.
"""

import argparse
import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from statistics import median

import numpy as np
import psutil
import torch
from fine_tuning_rivals import plain_epochs, timm_epochs
from PIL import Image
from torch.nn import functional as F
from train_rivals.report import Report

from clew.base.cores import map_in_threads
from clew.base.cpu import fast_convolutions
from clew.base.progress import ignore_event
from clew.engine import CategoricalLoss, LoadSettings, PlanRequest, TrainConfig, fit
from clew.engine.processes import start_fabric
from clew.engine.setup import build_optimizer
from clew.engine.step import build_step
from clew.patterns.augment import AugmentConfig
from clew.patterns.cache.build import cache_photos
from clew.patterns.cache.samples import ImageSamples, choose_place, open_images
from clew.patterns.features.compute import choose_form, pooled_stages
from clew.patterns.networks import LITE0, build_network
from clew.patterns.networks.classifier import PatternClassifier, normalize
from clew.patterns.networks.lite0 import load_lite0
from clew.patterns.photos import find_classes, read_photo
from clew.patterns.training.config import BODY_RATE

CLASSES = 10


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--part", choices=PARTS, action="append", help="[default: all]")
    cuda = torch.cuda.is_available()
    parser.add_argument("--device", default="cuda" if cuda else "cpu")
    parser.add_argument("--network", default="standard")
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--photos", type=int, help="for speed [default: 20,000; CPU: 640]")
    parser.add_argument("--tuned-size", type=int, default=224, help="pixels for finetune")
    parser.add_argument("--tuned-photos", type=int, help="for finetune [default: 3,200; CPU: 64]")
    parser.add_argument("--many", type=int, default=200_000, help="photos for memory")
    parser.add_argument(
        "--batch", type=int, action="append", help="[default: 16, and what the plan takes]"
    )
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--workers", type=int, action="append", help="that decode [default: the cores]"
    )
    args = parser.parse_args()
    args.photos = args.photos or (20_000 if args.device == "cuda" else 640)
    args.worker_counts = args.workers or [len(psutil.Process().cpu_affinity())]
    args.workers = max(args.worker_counts)
    report = Report(args)
    for part in args.part or PARTS:
        with tempfile.TemporaryDirectory(prefix="clew-patterns-") as folder:
            PARTS[part](args, report, Path(folder))
    report.save("patterns")


def run_speed(args, report, folder):
    samples = decode(args, report, folder, args.photos)
    report.title("images a second, network and augmentation as in clew patterns train")
    for batch in args.batch or (16, None):
        run = train(args, folder, samples, batch)
        warm = [row["samples_per_second"] for row in run.history[1:]]
        rates = race(args, plain=plain_step(args, 16), clew=planned_step(args, run.plan))
        size = f"batch {run.plan.batch_size}{'' if batch else ' (the plan)'}"
        plain, step = median(rates["plain"]), median(rates["clew"])
        report.add("speed", "plain loop, batch 16", **spread(rates["plain"]))
        report.add(
            "speed", f"clew, the step alone, {size}", **spread(rates["clew"]), times=step / plain
        )
        report.add(
            "speed",
            f"clew, whole epochs, {size}",
            **spread(warm),
            of_the_step=median(warm) / step,
            waits=run.data_wait_share,
            times=median(warm) / plain,
        )
        report.add("speed", "", plan=run.plan.precision, compiled=run.plan.compile)


def run_finetune(args, report, folder):
    """Whole epochs of fine-tuning with crops and augmentation, from photos in folders, beside the
    same step on a batch that lies ready, a plain loop and timm."""
    args = argparse.Namespace(**vars(args) | {"network": "lite0", "size": args.tuned_size})
    args.photos = args.tuned_photos or (3_200 if args.device == "cuda" else 64)
    samples = decode(args, report, folder, args.photos)
    report.title(f"images a second, fine-tuning at {args.size} pixels")
    for batch in args.batch or (32, 128):
        run = train(args, folder, samples, batch)
        warm = [row["samples_per_second"] for row in run.history[1:]]
        step = median(race(args, clew=planned_step(args, run.plan))["clew"])
        report.add("finetune", f"clew, the step alone, batch {batch}", images_per_second=step)
        ours = median(warm)
        report.add(
            "finetune",
            f"clew, whole epochs, batch {batch}",
            **spread(warm),
            of_the_step=ours / step,
            waits=run.data_wait_share,
            plan=f"{run.plan.variant}",
        )
        for name, rival in (("plain loop", plain_epochs), ("timm", timm_epochs)):
            try:
                rates = list(rival(args, folder / "photos", batch))
            except (ImportError, RuntimeError, OSError) as error:
                report.add("finetune", f"{name}, batch {batch}", failed=str(error).split("\n")[0])
                continue
            report.add(
                "finetune",
                f"{name}, batch {batch}",
                **spread(rates),
                clew_is_faster_by=ours / median(rates),
            )


def spread(rates):
    return {"images_per_second": median(rates), "from": min(rates), "to": max(rates)}


def run_decode(args, report, folder):
    """Small JPEGs from folders into an empty cache, the processes started anew each time."""
    report.title(f"{args.photos:,} JPEGs of {args.size} pixels decoded, by workers")
    make_photos(folder / "photos", args.photos, args)
    found = find_classes(folder / "photos")
    few, begun = found.photos[:500], time.perf_counter()
    for photo in few:
        read_photo(photo.path, args.size)
    alone = len(few) / (time.perf_counter() - begun)
    report.add("decode", "one thread, without a cache", images_per_second=alone)
    for workers in args.worker_counts:
        rates = []
        for number in range(args.repeats):
            begun = time.perf_counter()
            cache_photos(found, folder / f"{workers}-{number}", args.size, workers=workers)
            rates.append(args.photos / (time.perf_counter() - begun))
            shutil.rmtree(folder / f"{workers}-{number}")
        report.add(
            "decode",
            f"{workers} workers",
            **spread(rates),
            per_core=median(rates) / workers / alone,
        )


def run_memory(args, report, folder):
    """Pictures are left on the disk, whatever there is of memory: that is what is measured."""
    process = psutil.Process()
    samples = decode(args, report, folder, args.many, place="disk")
    before = process.memory_info().rss
    most = before
    loader = open_images(LoadSettings(batch_size=256, num_workers=2, shuffle=True), samples)
    for epoch in range(2):
        begun = time.perf_counter()
        loader.set_epoch(epoch)
        for number, _ in enumerate(loader):
            if number % 20 == 0:
                most = max(most, process.memory_info().rss)
        seconds = time.perf_counter() - begun
        report.add(
            "memory",
            f"epoch {epoch + 1} over {len(samples):,} pictures on the disk",
            gigabytes=len(samples) * args.size**2 * 3 / 1e9,
            resident_mb=most / 1e6,
            more_than_before_mb=(most - before) / 1e6,
            images_per_second=len(samples) / seconds,
        )


def decode(args, report, folder, count, place=None):
    """Photos of noise in folders, decoded by clew twice: the second time there is nothing to do."""
    report.title(f"{count:,} JPEGs of {args.size} pixels")
    make_photos(folder / "photos", count, args)
    for number in (1, 2):
        begun = time.perf_counter()
        cached = cache_photos(
            find_classes(folder / "photos"), folder / "cache", args.size, workers=args.workers
        )
        seconds = time.perf_counter() - begun
        resident = psutil.Process().memory_info().rss / 1e6
        report.add(
            "decode", f"time {number}", seconds=seconds, rate=count / seconds, resident_mb=resident
        )
    labels = np.array([int(photo.label) for photo in cached.photos])
    needed = len(labels) * args.size**2 * 3
    chosen = choose_place(needed, device=args.device)
    report.add("decode", f"pictures lie on {place or chosen.place}", why=chosen.reason)
    return ImageSamples(
        cached.store, cached.rows, labels, place=place or chosen.place, device=args.device
    )


def make_photos(folder, count, args):
    for label in range(CLASSES):
        (folder / str(label)).mkdir(parents=True, exist_ok=True)

    def make(number):
        blobs = np.random.default_rng(number).integers(0, 256, (9, 9, 3), np.uint8)
        picture = Image.fromarray(blobs).resize((args.size, args.size), Image.Resampling.BILINEAR)
        picture.save(folder / str(number % CLASSES) / f"{number:06}.jpg", quality=85)

    with ThreadPoolExecutor(args.workers) as threads:
        list(threads.map(make, range(count)))


def build(args, augment):
    """The weights are random: the speed is that of pretrained ones."""
    torch.manual_seed(0)
    network = build_network(args.network, classes=CLASSES, image_size=args.size)
    loss = CategoricalLoss(label_smoothing=0.1)
    rate = BODY_RATE if args.network == LITE0 else 1.0
    return PatternClassifier(network, classes=CLASSES, loss=loss, augment=augment, body_rate=rate)


def augmentation(args):
    return AugmentConfig(flip=True, crop=0.35 if args.network == LITE0 else None)


def train(args, folder, samples, batch):
    shutil.rmtree(folder / "run", ignore_errors=True)
    return fit(
        build(args, augmentation(args)),
        partial(open_images, samples=samples),
        config=TrainConfig(epochs=args.epochs, patience=None, checkpoint_every_seconds=1e6),
        request=PlanRequest(batch_size=batch, device=args.device),
        output_dir=folder / "run",
        reporter=ignore_event,
    )


def planned_step(args, plan):
    """The step that the run made, on one batch that lies ready, and how many pictures that is."""
    fabric = start_fabric(plan.device)
    model = build(args, augmentation(args)).to(fabric.device).train()
    if plan.channels_last:
        model = model.to(memory_format=torch.channels_last)
    optimizer = build_optimizer(model, TrainConfig(), lr=1e-3, capturable=plan.cuda_graph)
    step = build_step(model, plan.variant, optimizer, fabric)
    shape = (plan.batch_size, args.size, args.size, 3)
    batch = {
        "image": torch.randint(0, 256, shape, dtype=torch.uint8, device=fabric.device),
        "label": torch.randint(0, CLASSES, shape[:1], device=fabric.device),
    }
    return lambda: step.run([batch], 1e-3), plan.batch_size


def plain_step(args, batch):
    torch.manual_seed(0)
    network = build_network(args.network, classes=CLASSES, image_size=args.size).to(args.device)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    images = torch.randn(batch, 3, args.size, args.size, device=args.device)
    labels = torch.randint(0, CLASSES, (batch,), device=args.device)

    def step():
        optimizer.zero_grad()
        F.cross_entropy(network(images), labels).backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()

    return step, batch


def race(args, **rivals):
    """Pictures a second in each of several blocks, the rivals by turns: whatever else the machine
    does slows both."""
    wait = torch.cuda.synchronize if args.device == "cuda" else lambda: None
    rates = {name: [] for name in rivals}
    for turn in range(args.repeats + 1):
        for name, (step, batch) in rivals.items():
            # What a plan with 16 bits sets for the whole process; else as PyTorch does by itself.
            torch.set_float32_matmul_precision("highest" if name == "plain" else "high")
            steps = 50 if args.device == "cuda" else max(1, 64 // batch)
            wait()
            begun = time.perf_counter()
            for _ in range(steps):
                step()
            wait()
            if turn:  # the first warms up
                rates[name].append(steps * batch / (time.perf_counter() - begun))
    return rates


def run_features(args, report, _):
    """Features of photos as clew computes them, beside the network as it is: in single precision,
    with all cores. The processor's time says the same on a machine that is busy."""
    report.title(f"features of {args.tuned_size} pixels on {args.workers} cores, images a second")
    network, count = load_lite0(1).eval(), 16 * args.workers
    shape = (count, args.tuned_size, args.tuned_size, 3)
    images = torch.randint(0, 256, shape, dtype=torch.uint8)
    rivals = {"plain": partial(plain_features, network), "clew": partial(own_features, args)}
    rates, seconds = {name: [] for name in rivals}, {name: [] for name in rivals}
    torch.set_num_threads(args.workers)
    for turn in range(args.repeats + 1):
        for name, run in rivals.items():
            begun, worked = time.perf_counter(), time.process_time()
            run(images)
            if turn:  # the first warms up
                rates[name].append(count / (time.perf_counter() - begun))
                seconds[name].append((time.process_time() - worked) / count)
    for name in rivals:
        report.add(
            "features",
            {"plain": "plain PyTorch, eager fp32", "clew": "clew"}[name],
            **spread(rates[name]),
            cpu_ms=1e3 * min(seconds[name]),
            times=median(rates[name]) / median(rates["plain"]),
            times_by_cpu=min(seconds["plain"]) / min(seconds[name]),
        )


@torch.inference_mode()
def plain_features(network, images):
    for batch in images.split(16):
        network.features(normalize(batch, network).contiguous()).mean((2, 3))


@cache
def frozen_network():
    return pooled_stages(load_lite0(1), choose_form(torch.device("cpu")))


def own_features(args, images):
    def run(batch):
        torch.set_num_threads(1)
        return frozen_network()(batch)

    threads = torch.get_num_threads()
    with fast_convolutions():
        list(map_in_threads(run, images.split(8), args.workers))
    torch.set_num_threads(threads)


PARTS = {
    "speed": run_speed,
    "finetune": run_finetune,
    "features": run_features,
    "memory": run_memory,
    "decode": run_decode,
}


if __name__ == "__main__":
    main()
