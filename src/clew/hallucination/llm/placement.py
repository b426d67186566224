"""Which model, where and in which precision: names and files are checked before PyTorch is
imported, which takes seconds."""

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from clew.base.errors import InputError
from clew.base.texts import looks_like_path, suggest, suggest_path
from clew.base.typed_json import Bounds, Matches, read_as
from clew.hallucination.hub import find_cached, why_unreachable
from clew.hallucination.llm.embedded import EMBEDDED_NAME, DeviceMap
from clew.storage.reading import read_json

_DEVICE = re.compile(r"auto|(cpu|cuda|mps|xpu|hpu|npu|xla|meta)(:\d+)?")
_DTYPES = ("auto", "float32", "float16", "bfloat16")
_POLICIES = ("auto", "balanced", "balanced_low_0", "sequential")
# transformers makes a regular expression of the modules' names.
_Module = Annotated[str, Matches(r"[\w.]*")]
_Place = (
    Annotated[int, Bounds(least=0, most=1023)] | Annotated[str, Matches(r"cpu|disk|cuda(:\d+)?")]
)


def check_model(name: str) -> None:
    """Raise InputError for a name that is neither a folder with a model, a .gguf file nor probably
    an ID on the Hub. Loads nothing."""
    path, wrong = Path(name).expanduser(), ""
    if name.endswith(".gguf") and not path.is_file():
        wrong = f'there is no file "{name}"{suggest_path(name)}: check the path of the .gguf model.'
    elif not path.exists() and looks_like_path(name):
        wrong = f'there is no folder "{name}"{suggest_path(name)}: check the path of the model.'
    elif not path.exists() and name != EMBEDDED_NAME and (meant := suggest(name, [EMBEDDED_NAME])):
        wrong = (
            f'unknown model "{name}"{meant}: give a Hugging Face model ID, a local folder, a .gguf '
            f"file, or {EMBEDDED_NAME} (built in)."
        )
    elif path.is_dir() and name != EMBEDDED_NAME and not (path / "config.json").exists():
        wrong = f'"{name}" is a folder without config.json, so it is not a model: check the path.'
    if wrong:
        raise InputError(wrong)


def check_reachable(name: object) -> None:
    """Raise InputError for a model that would have to be downloaded and cannot be. Loads no
    PyTorch; what is not a name, as a loaded model, is fine."""
    if not isinstance(name, str | Path) or "torch" in sys.modules:
        return
    name = str(name)
    is_here = name == EMBEDDED_NAME or Path(name).expanduser().exists()
    if not is_here and not find_cached(name) and (why := why_unreachable()):
        raise unreachable(name, why)


def unreachable(name: str, why: str) -> InputError:
    return InputError(
        f'the model "{name}"{suggest_path(name)} could not be loaded: it is neither a local folder '
        f"nor in the cache, and {why}. Connect to the internet, or give a local folder, a .gguf "
        f"file or {EMBEDDED_NAME} (built in)."
    )


def check_placement(device: object, dtype: object, device_map: DeviceMap | None) -> None:
    """Raise InputError for what names no device, precision or map. What is not a text, as a
    `torch.dtype`, is fine."""
    if isinstance(device, str):
        check_device(device)
    if isinstance(dtype, str):
        check_dtype(dtype)
    if device_map is not None:
        read_device_map(device_map)


def check_device(device: str) -> None:
    """Raise InputError for what names no device; PyTorch says later which there are."""
    if not _DEVICE.fullmatch(device):
        raise InputError(
            "unknown device. Choose from: auto, cpu, cuda, cuda:N.", setting="device", value=device
        )


def check_dtype(dtype: str) -> None:
    if dtype not in _DTYPES:
        raise InputError(f"choose from: {', '.join(_DTYPES)}.", setting="dtype", value=dtype)


def read_device_map(given: DeviceMap) -> str | dict[str, int | str]:
    """The name of a policy, or which module goes where, from a dict or a JSON file. Raises
    InputError."""
    if not isinstance(given, Mapping) and str(given) in _POLICIES:
        return str(given)
    value: Any = dict(given) if isinstance(given, Mapping) else None
    try:
        value = read_json(Path(str(given)).expanduser()) if value is None else value
        return read_as(dict[_Module, _Place], value, "the map")
    except FileNotFoundError:
        reason = "there is no such file"
    except (OSError, ValueError) as error:
        reason = str(error)
    raise InputError(
        f"{reason}. Choose from: {', '.join(_POLICIES)}; or give a JSON file that maps names of "
        'modules to devices, as {"model.layers.0": "cuda:0", "model.layers.1": "cpu", ...}.',
        setting="device_map",
        value=given,
    )
