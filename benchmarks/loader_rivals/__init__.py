"""The loaders that clew is measured beside: one module a rival, one small class a contestant.

`CONTESTANTS` names them without importing any: each is imported in its own fresh process.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

# name in the table -> (module here, class in it, package to be installed or None)
CONTESTANTS = {
    "plain": ("plain", "Plain", None),
    "mosaicml-streaming": ("mosaicml", "MosaicML", "mosaicml-streaming"),
    "litdata": ("lightning", "LitData", "litdata"),
    "webdataset": ("tars", "WebDataset", "webdataset"),
    "HF datasets": ("huggingface", "HuggingFace", "datasets"),
    "HF datasets, arrow": ("huggingface", "HuggingFaceArrow", "datasets"),
    "spdl": ("threads", "Spdl", "spdl"),
    "grain": ("threads", "Grain", "grain"),
    "clew": ("clew_loader", "Clew", "clew"),
    "clew, low memory": ("clew_loader", "ClewLowMemory", "clew"),
    "clew, DataLoader": ("clew_loader", "ClewDataLoader", "clew"),
    "clew, DataLoader, 4 workers": ("clew_loader", "ClewDataLoaderWorkers", "clew"),
    "memcpy": ("memcpy", "Memcpy", None),
    "memcpy, row by row": ("memcpy", "MemcpyRows", None),
}
RANDOM_ACCESS = {
    "plain": ("plain", "PlainLRU", None),
    "mosaicml-streaming": ("mosaicml", "MosaicMLRandom", "mosaicml-streaming"),
    "clew": ("clew_loader", "ClewRandom", "clew"),
    "clew, two shards": ("clew_loader", "ClewTwoShards", "clew"),
    "clew, views": ("clew_loader", "ClewViews", "clew"),
}
GRAPHS = {
    "PyG": ("graphs", "PyG", "torch-geometric"),
    "clew": ("clew_loader", "ClewGraphs", "clew"),
    "clew, two threads": ("clew_loader", "ClewGraphLoader", "clew"),
}


def find_version(package):
    """The installed version of a package, "" for a contestant that needs none, else None."""
    if package is None:
        return ""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def build(entry):
    module, name, _ = entry
    return getattr(import_module(f"{__name__}.{module}"), name)()
