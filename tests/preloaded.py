"""Imports everything that a command may need, so that processes forked from here start at once."""

import contextlib
import gc
import importlib
import os
import pkgutil

from PIL import Image

import clew

_FOREIGN = (
    *("torch", "pandas", "transformers.models.llama.modeling_llama", "torch_geometric.nn"),
    *("sklearn.linear_model", "sklearn.decomposition", "matplotlib.pyplot", "rapidfuzz.process"),
    *("fastapi", "uvicorn", "uvicorn.protocols.http.auto", "anyio._backends._asyncio"),
    *("uvicorn.loops.auto", "uvicorn.lifespan.off", "pydantic.v1", "pydantic.dataclasses"),
    *("pyarrow.pandas_compat", "rich._emoji_codes", "typer._adapters", "tomllib"),
    *("encodings.idna", "encodings.utf_8_sig", "openai", "lightning_fabric", "scipy.signal"),
    *("matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg"),
)

os.fsync = os.fstat  # as in conftest.py
gc.disable()  # until all is loaded: collections would go through it again and again
for _name in _FOREIGN:
    importlib.import_module(_name)
Image.init()
for _module in pkgutil.walk_packages(clew.__path__, "clew."):
    with contextlib.suppress(ImportError):  # kernels for a GPU
        importlib.import_module(_module.name)
# Collecting garbage would go through, and copy, all that was imported, in every process.
gc.collect()
gc.freeze()
gc.enable()
