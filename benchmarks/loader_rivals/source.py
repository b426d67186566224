"""The samples that every contestant delivers: seeded values, a label that is the sample's index.

Written once as one `.npy` with a checksum a sample; each rival converts it to its own format.
"""

import zlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

BATCH = 32
WORKERS = 2
SHUFFLE_BUFFER = 1000


@dataclass(frozen=True, kw_only=True)
class Shape:
    """`shards` x `per_shard` samples of float16 [layers, dim]."""

    shards: int
    per_shard: int
    layers: int
    dim: int

    @property
    def samples(self):
        return self.shards * self.per_shard

    @property
    def sample_bytes(self):
        return self.layers * self.dim * 2


SHAPES = {
    "sequences": Shape(shards=12, per_shard=250, layers=32, dim=4096),
    "small": Shape(shards=12, per_shard=2000, layers=30, dim=576),
}
QUICK_SHAPES = {
    "sequences": Shape(shards=4, per_shard=50, layers=32, dim=4096),
    "small": Shape(shards=4, per_shard=100, layers=30, dim=576),
}


class Source:
    """The samples in `folder`: `samples[index]` has the label `index`."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.samples = np.load(self.folder / "samples.npy", mmap_mode="r")
        shards = np.load(self.folder / "shards.npy")
        self.shards = [range(*bounds) for bounds in shards]

    @cached_property
    def checksums(self):
        return np.load(self.folder / "checksums.npy")

    def iter_shards(self):
        """Yields (values [rows, layers, dim], labels [rows]) of one shard after the other."""
        for rows in self.shards:
            yield np.array(self.samples[rows.start : rows.stop]), np.arange(rows.start, rows.stop)


def write_source(folder, shape):
    """Writes the samples once; a folder that has them already is left as it is."""
    if (folder / "checksums.npy").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    samples = np.lib.format.open_memmap(
        folder / "samples.npy",
        mode="w+",
        dtype=np.float16,
        shape=(shape.samples, shape.layers, shape.dim),
    )
    generator = np.random.default_rng(0)
    for start in range(0, shape.samples, shape.per_shard):
        block = samples[start : start + shape.per_shard]
        block[:] = generator.standard_normal(block.shape, dtype=np.float32)
    starts = np.arange(0, shape.samples, shape.per_shard)
    np.save(folder / "shards.npy", np.stack([starts, starts + shape.per_shard], axis=1))
    np.save(folder / "checksums.npy", checksum(samples))


def checksum(values):
    """One CRC-32 a sample."""
    return np.array([zlib.crc32(np.ascontiguousarray(sample)) for sample in values])


def check_epoch(batches, source):
    """Raises unless `batches` bring each sample exactly once, with its own values."""
    seen = np.zeros(len(source.samples), dtype=int)
    for values, labels in batches:
        labels = np.asarray(labels)
        np.add.at(seen, labels, 1)
        found = checksum(np.asarray(values).astype(np.float16, copy=False))
        if not np.array_equal(found, source.checksums[labels]):
            raise SystemExit("a batch holds other values than were stored under its labels")
    if not (seen == 1).all():
        raise SystemExit(
            f"{(seen == 0).sum()} samples never came and {(seen > 1).sum()} came more than once"
        )


def touch(values, labels):
    """What a consumer does at the very least, the same for all: a value and a label a sample."""
    if len(values) != len(labels):
        raise SystemExit(f"a batch has {len(values)} samples and {len(labels)} labels")
    return float(values[:, -1, -1].sum()) + int(labels.sum())
