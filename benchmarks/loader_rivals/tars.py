"""webdataset: tar shards of raw bytes, shards and a buffer of 1,000 samples shuffled, batches
made in the workers as its documentation advises."""

import random

import numpy as np
import torch
import webdataset

from .source import BATCH, SHUFFLE_BUFFER, WORKERS, Source


class Decode:
    def __init__(self, shape):
        self.shape = shape

    def __call__(self, sample):
        values = np.frombuffer(bytearray(sample["bin"]), dtype=np.float16).reshape(self.shape)
        return torch.from_numpy(values), int(sample["__key__"])


class WebDataset:
    def prepare(self, data, folder):
        folder.mkdir()
        for index, (values, labels) in enumerate(Source(data).iter_shards()):
            with webdataset.TarWriter(str(folder / f"{index:04}.tar")) as writer:
                for value, label in zip(values, labels, strict=True):
                    writer.write({"__key__": f"{label:08}", "bin": value.tobytes()})

    def open(self, data, folder, shuffle):
        paths = [str(path) for path in sorted(folder.glob("*.tar"))]
        random.seed(0)
        dataset = webdataset.WebDataset(
            paths, shardshuffle=len(paths) if shuffle else False, empty_check=False
        )
        if shuffle:
            dataset = dataset.shuffle(SHUFFLE_BUFFER)
        dataset = dataset.map(Decode(Source(data).samples.shape[1:])).batched(BATCH)
        self.loader = webdataset.WebLoader(
            dataset, batch_size=None, num_workers=WORKERS, persistent_workers=True
        )

    def make_epoch(self):
        yield from self.loader
