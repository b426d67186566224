"""The limit: two threads that copy batches out of memory into buffers used again and again."""

import threading

import numpy as np

from .source import BATCH, WORKERS, Source


class Memcpy:
    def prepare(self, data, folder):
        """Nothing is stored: the samples are held in memory."""

    def open(self, data, _folder, _shuffle):
        self.samples = np.array(Source(data).samples)
        self.buffers = [np.ones_like(self.samples[:BATCH]) for _ in range(WORKERS)]

    def copy(self, worker):
        buffer = self.buffers[worker]
        for start in range(worker * BATCH, len(self.samples), WORKERS * BATCH):
            block = self.samples[start : start + BATCH]
            np.copyto(buffer[: len(block)], block)

    def run_epoch(self):
        """An epoch without a consumer; `copy` releases the GIL for the length of a batch."""
        workers = [threading.Thread(target=self.copy, args=(w,)) for w in range(WORKERS)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return len(self.samples)


class MemcpyRows(Memcpy):
    """The same out of the page cache, one row at a time: what a shuffle leaves of the limit."""

    def open(self, data, _folder, shuffle):
        self.samples = Source(data).samples
        self.buffers = [np.ones_like(self.samples[:BATCH]) for _ in range(WORKERS)]
        rows = np.arange(len(self.samples))
        self.order = np.random.default_rng(0).permutation(rows) if shuffle else rows

    def copy(self, worker):
        buffer = self.buffers[worker]
        for start in range(worker * BATCH, len(self.samples), WORKERS * BATCH):
            for place, row in enumerate(self.order[start : start + BATCH]):
                np.copyto(buffer[place], self.samples[row])
