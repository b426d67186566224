"""The plain way: a `.pt` a shard, torch.load of the whole shard, one sample after the other."""

import random
from collections import OrderedDict

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from .source import BATCH, SHUFFLE_BUFFER, WORKERS, Source


def write_shards(data, folder):
    folder.mkdir()
    for index, (values, labels) in enumerate(Source(data).iter_shards()):
        samples = [
            {"features": torch.from_numpy(value.copy()), "label": int(label)}
            for value, label in zip(values, labels, strict=True)
        ]
        torch.save(samples, folder / f"batch_{index:04}.pt")


class ShardStream(IterableDataset):
    def __init__(self, folder, shuffle):
        self.paths, self.shuffle = sorted(folder.glob("*.pt")), shuffle

    def __iter__(self):
        worker = get_worker_info()
        paths = self.paths[worker.id :: worker.num_workers]
        if self.shuffle:
            random.shuffle(paths)
            return self.shuffled(self.read(paths))
        return self.read(paths)

    def read(self, paths):
        for path in paths:
            yield from torch.load(path)

    def shuffled(self, samples):
        buffer = []
        for sample in samples:
            buffer.append(sample)
            if len(buffer) >= SHUFFLE_BUFFER:
                yield buffer.pop(random.randrange(len(buffer)))
        random.shuffle(buffer)
        yield from buffer


class Plain:
    def prepare(self, data, folder):
        write_shards(data, folder)

    def open(self, _data, folder, shuffle):
        self.loader = DataLoader(
            ShardStream(folder, shuffle),
            batch_size=BATCH,
            num_workers=WORKERS,
            persistent_workers=True,
        )

    def make_epoch(self):
        for batch in self.loader:
            yield batch["features"], batch["label"]


class PlainLRU:
    """Random access: the two shards loaded last are kept."""

    def prepare(self, data, folder):
        write_shards(data, folder)

    def open(self, data, folder):
        self.paths = sorted(folder.glob("*.pt"))
        self.per_shard = len(Source(data).shards[0])
        self.loaded = OrderedDict()

    def get(self, index):
        shard, row = divmod(index, self.per_shard)
        if shard not in self.loaded:
            if len(self.loaded) == 2:
                self.loaded.popitem(last=False)
            self.loaded[shard] = torch.load(self.paths[shard])
        self.loaded.move_to_end(shard)
        sample = self.loaded[shard][row]
        return sample["features"], sample["label"]
