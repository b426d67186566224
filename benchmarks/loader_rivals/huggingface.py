"""Hugging Face datasets, memory-mapped Arrow: the format for PyTorch that its documentation shows,
which turns float16 into float32, and its "arrow" format with a collate of our own, as fast as we
could make it.
"""

import shutil

import datasets
import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from .source import BATCH, WORKERS, Source


def iter_samples(data):
    for values, labels in Source(data).iter_shards():
        for value, label in zip(values, labels, strict=True):
            yield {"features": value.reshape(-1), "label": int(label)}


class Collate:
    def __init__(self, shape):
        self.shape = shape

    def __call__(self, table):
        chunks = [c.flatten().to_numpy(zero_copy_only=True) for c in table["features"].chunks]
        values = np.concatenate(chunks).reshape(-1, *self.shape)
        return torch.from_numpy(values), torch.from_numpy(np.array(table["label"]))


class HuggingFaceArrow:
    def prepare(self, data, folder):
        size = int(np.prod(Source(data).samples.shape[1:]))
        features = datasets.Features(
            {
                "features": datasets.List(datasets.Value("float16"), length=size),
                "label": datasets.Value("int64"),
            }
        )
        datasets.Dataset.from_generator(
            iter_samples,
            gen_kwargs={"data": data},
            features=features,
            cache_dir=str(folder / "cache"),
            writer_batch_size=250,
        ).save_to_disk(str(folder / "saved"), num_shards=len(Source(data).shards))
        shutil.rmtree(folder / "cache")

    def open(self, data, folder, shuffle):
        dataset = datasets.load_from_disk(str(folder / "saved")).with_format("arrow")
        rows = RandomSampler(dataset) if shuffle else SequentialSampler(dataset)
        self.loader = DataLoader(
            dataset,
            sampler=BatchSampler(rows, BATCH, drop_last=False),
            batch_size=None,
            num_workers=WORKERS,
            persistent_workers=True,
            collate_fn=Collate(Source(data).samples.shape[1:]),
        )

    def make_epoch(self):
        yield from self.loader


class HuggingFace(HuggingFaceArrow):
    def open(self, data, folder, shuffle):
        self.shape = Source(data).samples.shape[1:]
        dataset = datasets.load_from_disk(str(folder / "saved")).with_format("torch")
        self.loader = DataLoader(
            dataset,
            batch_size=BATCH,
            shuffle=shuffle,
            num_workers=WORKERS,
            persistent_workers=True,
        )

    def make_epoch(self):
        for batch in self.loader:
            yield batch["features"].view(-1, *self.shape), batch["label"]
