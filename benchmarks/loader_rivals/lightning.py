"""litdata: chunks of about 64 MB written by `optimize`, read by its own loader."""

import torch
from litdata import StreamingDataLoader, StreamingDataset, optimize

from .source import BATCH, WORKERS, Source


class ReadSample:
    """Picklable, since `optimize` calls it in processes of its own."""

    def __init__(self, data):
        self.data = data

    def __call__(self, index):
        values = Source(self.data).samples[index]
        return {"features": torch.from_numpy(values.copy()), "label": index}


class LitData:
    def prepare(self, data, folder):
        optimize(
            fn=ReadSample(data),
            inputs=list(range(len(Source(data).samples))),
            output_dir=str(folder),
            chunk_bytes="64MB",
            num_workers=WORKERS,
        )

    def open(self, _data, folder, shuffle):
        dataset = StreamingDataset(str(folder), shuffle=shuffle, drop_last=False)
        self.loader = StreamingDataLoader(
            dataset, batch_size=BATCH, num_workers=WORKERS, persistent_workers=True
        )

    def make_epoch(self):
        for batch in self.loader:
            yield batch["features"], batch["label"]
