"""mosaicml-streaming: MDS shards of about 64 MiB on the local disk, uncompressed."""

import importlib.machinery
import importlib.util
import sys
import types

from .source import BATCH, WORKERS, Source


def import_streaming():
    """Imports it where no torchvision fits torch: only its picture data sets need that one."""
    names = ["torchvision.transforms.functional", "torchvision.transforms"]
    names += ["torchvision.datasets", "torchvision"]
    if importlib.util.find_spec("torchvision") is not None:
        import streaming

        return streaming
    for name in names:
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__spec__ = importlib.machinery.ModuleSpec(name, None)
    sys.modules["torchvision.datasets"].VisionDataset = object
    sys.modules["torchvision.transforms.functional"].to_tensor = None
    import streaming

    for name in names:
        del sys.modules[name]
    return streaming


def write_shards(data, folder):
    source = Source(data)
    _, layers, dim = source.samples.shape
    columns = {"features": f"ndarray:float16:{layers},{dim}", "label": "int"}
    writer = import_streaming().MDSWriter(out=str(folder), columns=columns, size_limit=1 << 26)
    with writer:
        for values, labels in source.iter_shards():
            for value, label in zip(values, labels, strict=True):
                writer.write({"features": value, "label": int(label)})


class MosaicML:
    def prepare(self, data, folder):
        write_shards(data, folder)

    def open(self, _data, folder, shuffle):
        streaming = import_streaming()
        streaming.base.util.clean_stale_shared_memory()
        dataset = streaming.StreamingDataset(local=str(folder), shuffle=shuffle, batch_size=BATCH)
        self.loader = streaming.StreamingDataLoader(
            dataset, batch_size=BATCH, num_workers=WORKERS, persistent_workers=True
        )

    def make_epoch(self):
        for batch in self.loader:
            yield batch["features"], batch["label"]


class MosaicMLRandom:
    def prepare(self, data, folder):
        write_shards(data, folder)

    def open(self, _data, folder):
        streaming = import_streaming()
        streaming.base.util.clean_stale_shared_memory()
        self.dataset = streaming.StreamingDataset(
            local=str(folder), shuffle=False, batch_size=BATCH
        )

    def get(self, index):
        sample = self.dataset[index]
        return sample["features"], sample["label"]
