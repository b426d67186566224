"""spdl and grain: two threads that gather batches out of one memory-mapped array."""

import numpy as np

from .source import BATCH, WORKERS, Source


class Spdl:
    def prepare(self, data, folder):
        """The source itself is the file that is mapped."""

    def open(self, data, _folder, shuffle):
        self.samples, self.shuffle = Source(data).samples, shuffle
        self.generator = np.random.default_rng(0)

    def gather(self, rows):
        return np.take(self.samples, rows, axis=0), rows

    def make_epoch(self):
        from spdl.pipeline import PipelineBuilder

        order = np.arange(len(self.samples))
        if self.shuffle:
            self.generator.shuffle(order)
        rows = [order[start : start + BATCH] for start in range(0, len(order), BATCH)]
        builder = PipelineBuilder().add_source(rows).pipe(self.gather, concurrency=WORKERS)
        pipeline = builder.add_sink(2 * WORKERS).build(num_threads=WORKERS)
        with pipeline.auto_stop():
            yield from pipeline.get_iterator()


class MappedSamples:
    """grain's random-access source."""

    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return {"features": self.samples[index], "label": index}


class Grain:
    def prepare(self, data, folder):
        """The source itself is the file that is mapped."""

    def open(self, data, _folder, shuffle):
        self.samples, self.shuffle, self.epoch = MappedSamples(Source(data).samples), shuffle, 0

    def make_epoch(self):
        import grain

        dataset = grain.MapDataset.source(self.samples)
        if self.shuffle:
            self.epoch += 1
            dataset = dataset.shuffle(seed=self.epoch)
        options = grain.ReadOptions(num_threads=WORKERS, prefetch_buffer_size=2 * WORKERS)
        for batch in dataset.batch(BATCH, drop_remainder=False).to_iter_dataset(options):
            yield batch["features"], batch["label"]
