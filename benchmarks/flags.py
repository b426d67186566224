"""What each training flag gives alone, in time and memory: AMP, torch.compile, channels_last, the
image cache and gradient checkpointing, with the networks that clew trains.

    python benchmarks/flags.py                        every network; on a GPU when there is one
    python benchmarks/flags.py --network standard     one of them
    python benchmarks/flags.py --quick                little data, to see that all of it runs

"step": one batch that lies ready, again and again. "epoch": whole epochs of clew's trainer; those
of images start with JPEGs in folders, decoded in every epoch by a DataLoader with a process per
core unless they are cached. "none" is single precision, one kernel at a time, images in NCHW.
CUDA graphs, which clew's own plan also uses, are off everywhere.
"""

import argparse
import gc
import json
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import psutil
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from train_rivals import speed
from train_rivals.data import write_folder
from train_rivals.report import Report

from clew.base.memory import measure_peak_bytes
from clew.base.progress import ignore_event
from clew.datasets import Loader
from clew.engine import PlanRequest, TrainConfig, fit
from clew.engine.feed import move
from clew.engine.plan import StepVariant
from clew.engine.processes import start_fabric
from clew.engine.setup import build_optimizer, place_model
from clew.engine.step import build_step
from clew.patterns.cache.build import cache_photos
from clew.patterns.cache.samples import ImageSamples, choose_place, open_images
from clew.patterns.photos import find_classes, read_photo
from patterns import CLASSES, augmentation, make_photos
from patterns import build as build_images

IMAGES = {"standard": 128, "lite0": 224}
DETECTORS = ("lstm", "gnn_det")
CACHE, CHECKPOINTING = "image cache", "gradient checkpointing"
FLAGS = {
    "AMP": {"amp": True},
    "torch.compile": {"compile": True},
    "channels_last": {"channels_last": True},
    CACHE: {},
    CHECKPOINTING: {"gradient_checkpointing": True},
}
OFF = {"compile": False, "cuda_graph": False, "channels_last": False, "calibrate": False}
WARM_UP = 5


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    cuda = torch.cuda.is_available()
    known = (*IMAGES, *DETECTORS)
    parser.add_argument("--network", choices=known, action="append", help="[default: all]")
    parser.add_argument("--part", choices=("step", "epoch"), action="append", help="[default: all]")
    parser.add_argument("--flag", choices=FLAGS, action="append", help="[default: all]")
    parser.add_argument("--device", default="cuda" if cuda else "cpu")
    parser.add_argument("--size", type=int, help="pixels [default: 128; lite0: 224]")
    parser.add_argument("--photos", type=int, default=10_240)
    parser.add_argument("--samples", type=int, default=4096, help="of the detectors")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=4, help="the first is not counted")
    parser.add_argument("--repeats", type=int, default=5, help="blocks of steps")
    parser.add_argument("--steps", type=int, default=30, help="in a block")
    parser.add_argument("--out", type=Path, help="write the figures as JSON, after every row")
    parser.add_argument("--quick", action="store_true", help="little data, figures mean nothing")
    args = parser.parse_args()
    if args.quick:
        args.size, args.photos, args.samples, args.batch = args.size or 32, 16, 16, 8
        args.epochs, args.repeats, args.steps = 2, 1, 1
        if args.device == "cpu":  # compiling takes a minute there
            args.flag = args.flag or [flag for flag in FLAGS if flag != "torch.compile"]
    args.workers = len(psutil.Process().cpu_affinity())
    report = Report(args)
    for name in args.network or known:
        with tempfile.TemporaryDirectory(prefix="clew-flags-") as folder:
            kind = Images if name in IMAGES else Detector
            measure(args, report, kind(args, report, name, Path(folder)))
    report.save("flags")


def measure(args, report, subject):
    """Every part of a network: without any flag, with each alone, and with all."""
    for part in args.part or ("step", "epoch"):
        report.title(f"{subject.name}, {part}, batch {args.batch}, on {args.device}")
        base = None
        for flags in rows_of(args, subject.applies, part):
            run = partial(time_steps if part == "step" else time_epochs, args, subject, flags)
            rates, figures = fresh(args, run)
            base = base or median(rates)
            report.add(
                f"{subject.name}, {part}",
                title(flags, subject.applies),
                per_second=median(rates),
                from_to=f"{min(rates):,.0f} to {max(rates):,.0f}",
                times=median(rates) / base,
                **figures,
            )
            if args.out:
                args.out.write_text(json.dumps(report.rows, indent=1) + "\n")


def rows_of(args, applies, part):
    """Sets of flags. A batch that lies ready needs no cache."""
    chosen = [flag for flag in applies if flag in (args.flag or FLAGS)]
    if part == "step":
        chosen = [flag for flag in chosen if flag != CACHE]
    rows = [(), *((flag,) for flag in chosen)]
    if len(chosen) > 2:
        rows.append(tuple(flag for flag in chosen if flag != CHECKPOINTING))
        rows.append(tuple(chosen))
    return list(dict.fromkeys(rows))


def title(flags, applies):
    if len(flags) < 2:
        return flags[0] if flags else "none"
    return (
        "all"
        if CHECKPOINTING in flags or CHECKPOINTING not in applies
        else (f"all but {CHECKPOINTING}")
    )


def fresh(args, run):
    """What a run returns, with nothing left of the one before; on a GPU with its peak memory:
    weights, optimizer, activations, and images that lie there."""
    torch.compiler.reset()
    gc.collect()
    torch.set_float32_matmul_precision("highest")
    if args.device != "cuda":
        return run()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    rates, figures = run()
    return rates, {"peak_mib": torch.cuda.max_memory_allocated() / 2**20, **figures}


def request(args, flags):
    asked = {name: value for flag in flags for name, value in FLAGS[flag].items()}
    if "amp" not in asked:
        asked["precision"] = "fp32"
    return PlanRequest(**OFF | asked | {"device": args.device, "batch_size": args.batch})


def time_steps(args, subject, flags):
    """Samples per second of each block, and the seconds until the first block."""
    asked = request(args, flags)
    fabric = start_fabric(args.device)
    way = StepVariant(
        precision=asked.precision or "bf16",
        compile=asked.compile,
        channels_last=asked.channels_last,
        gradient_checkpointing=asked.gradient_checkpointing,
    )
    model = place_model(
        subject.build(flags).train(),
        fabric.device,
        channels_last=way.channels_last,
        gradient_checkpointing=way.gradient_checkpointing,
    )
    optimizer = build_optimizer(model, TrainConfig(), lr=1e-3)
    step = build_step(model, way, optimizer, fabric)
    batch = move(subject.batch(), fabric.device, channels_last=way.channels_last)
    run = partial(step.run, [batch], 1e-3)
    wait = torch.cuda.synchronize if args.device == "cuda" else lambda: None
    begun = time.perf_counter()
    for _ in range(1 if args.quick else WARM_UP):
        run()
    wait()
    figures = {"first_seconds": time.perf_counter() - begun}
    rates = []
    for _ in range(args.repeats):
        begun = time.perf_counter()
        for _ in range(args.steps):
            run()
        wait()
        rates.append(args.steps * args.batch / (time.perf_counter() - begun))
    if args.device == "cpu" and not way.compile:
        figures["peak_mib"] = measure_peak_bytes(run, fabric.device) / 2**20
    return rates, figures


def time_epochs(args, subject, flags):
    """Samples per second of each epoch but the first, and how long they waited for data."""
    with tempfile.TemporaryDirectory() as out:
        run = fit(
            subject.build(flags),
            subject.open_batches(flags),
            config=TrainConfig(epochs=args.epochs, patience=None, checkpoint_every_seconds=1e6),
            request=request(args, flags),
            output_dir=Path(out),
            reporter=ignore_event,
        )
    rates = [row["samples_per_second"] for row in run.history[1:]]
    return rates, {"waits": run.data_wait_share}


class Images:
    """A network for photos: JPEGs of noise in folders."""

    applies = tuple(FLAGS)

    def __init__(self, args, report, name, folder):
        self.name, self._folder = name, folder
        network = "tiny" if args.quick and name != "lite0" else name
        size = args.size or IMAGES[name]
        self._args = argparse.Namespace(**vars(args) | {"network": network, "size": size})
        make_photos(folder / "photos", args.photos, self._args)
        begun = time.perf_counter()
        found = find_classes(folder / "photos")
        self._cached = cache_photos(found, folder / "cache", size, workers=args.workers)
        seconds = time.perf_counter() - begun
        report.add("cache", f"{name}: decoding {args.photos:,} photos once", seconds=seconds)

    def build(self, flags):
        model = build_images(self._args, augmentation(self._args))
        if "channels_last" not in flags:  # clew's images are in that order in any case
            model.normalize = nn.Sequential(model.normalize, ChannelsFirst())
        return model

    def batch(self):
        count, size = self._args.batch, self._args.size
        return {
            "image": torch.randint(0, 256, (count, size, size, 3), dtype=torch.uint8),
            "label": torch.randint(0, CLASSES, (count,)),
        }

    def open_batches(self, flags):
        if CACHE not in flags:
            return partial(open_photos, self._args, self._folder / "photos")
        cached, device = self._cached, self._args.device
        labels = np.array([int(photo.label) for photo in cached.photos])
        place = choose_place(len(labels) * self._args.size**2 * 3, device=device).place
        samples = ImageSamples(cached.store, cached.rows, labels, place=place, device=device)
        return partial(open_images, samples=samples)


class ChannelsFirst(nn.Module):
    def forward(self, images):
        return images.contiguous()


class Photos(Dataset):
    """Decodes a photo as clew does, whenever it is asked for one."""

    def __init__(self, folder, size):
        self._photos, self._size = find_classes(folder).photos, size

    def __len__(self):
        return len(self._photos)

    def __getitem__(self, index):
        photo = self._photos[index]
        square = read_photo(photo.path, self._size)
        return {
            "image": torch.from_numpy(square.pixels),
            "label": int(photo.label),
            "index": index,
        }


def open_photos(args, folder, settings):
    return DataLoader(
        Photos(folder, args.size),
        settings.batch_size,
        shuffle=settings.shuffle,
        num_workers=args.workers,
        persistent_workers=True,
        pin_memory=settings.pin_memory,
        drop_last=True,
    )


class Detector:
    """A hallucination detector on samples of 32 layers and 4,096 dimensions, from the page
    cache."""

    applies = ("AMP", "torch.compile", CHECKPOINTING)

    def __init__(self, args, _report, name, folder):
        self.name, self._args, self._folder = name, args, folder
        write_folder(folder, (args.samples, 16, 16))

    def build(self, _flags):
        return speed.build(self.name)

    def batch(self):
        dataset = speed.open_dataset(self._folder, self.name, "train")
        return next(iter(Loader(dataset, self._args.batch, shuffle=True)))

    def open_batches(self, _flags):
        opened = speed.open_files(self._folder, self.name)("train")
        return lambda settings: opened(replace(settings, num_workers=self._args.workers))


if __name__ == "__main__":
    main()
