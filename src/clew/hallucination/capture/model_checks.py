"""What is checked about a language model's folder, which somebody else may have written, before and
after the libraries load it."""

import contextlib
import pickle
import struct
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import PreTrainedModel

from clew.base.errors import InputError, without_settings
from clew.base.texts import shortened
from clew.hallucination.capture.embedded import EMBEDDED_NAME
from clew.storage.reading import read_json

# What the libraries raise for files that they cannot use.
_LIBRARY_ERRORS = (
    *(OSError, ValueError, LookupError, ImportError, RuntimeError),
    *(TypeError, AttributeError, ArithmeticError, struct.error, pickle.PickleError),
    *(SafetensorError, StrictDataclassError),
)
# What transformers builds one object for, however small the weights are.
_MOST = {
    "num_labels": 100_000,
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layers", "n_layer"), 10_000),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 10_000),
}


def check_config(path: Path) -> None:
    """Raise ValueError if transformers would not end reading the description of a model."""
    waiting = [read_json(path, finite=False)]
    if not isinstance(waiting[0], dict):
        raise ValueError(f"config.json contains {shortened(waiting[0])}")
    while waiting:
        config = waiting.pop()
        for name, most in _MOST.items():
            if isinstance(value := config.get(name), int) and value > most:
                raise ValueError(
                    f"{name} in config.json is {shortened(value)}; at most {most:,} are supported"
                )
        waiting += [inner for inner in config.values() if isinstance(inner, dict)]


def refuse_missing_weights(name: str, missing: Collection[str]) -> None:
    """Raise InputError for missing weights: transformers fills them with random numbers and only
    logs a warning."""
    if missing:
        raise InputError(
            f'the model "{name}" is missing {len(missing)} of its weights (the first: '
            f"{min(missing)}), so its answers would be meaningless. Download or save the "
            "complete model again."
        )


def refuse_odd_settings(name: str, model: Any, tokenizer: Any) -> None:
    """Raise InputError for settings that transformers accepts, but cannot use later."""
    ends, layers = declared_ends(model), model.config.get_text_config().num_hidden_layers
    wrong = {
        "eos_token_id": not all(end is None or isinstance(end, int) for end in ends),
        "model_max_length": not isinstance(tokenizer.model_max_length, int | float),
        "num_hidden_layers": not isinstance(layers, int) or layers < 1,
    }
    if any(wrong.values()):
        setting = next(setting for setting in wrong if wrong[setting])
        raise InputError(
            f'the model "{name}" could not be loaded (its {setting} is not valid). Download or '
            "save the model again."
        )


def declared_ends(model: PreTrainedModel) -> list[Any]:
    declared = getattr(model.generation_config, "eos_token_id", None)
    return declared if isinstance(declared, list) else [declared]


@contextlib.contextmanager
def explained(name: str) -> Iterator[None]:
    """Turns what the libraries raise for an unavailable model into one sentence."""
    try:
        yield
    except InputError:
        raise
    except _LIBRARY_ERRORS as error:
        reason = without_settings(str(error)).strip().splitlines() or [type(error).__name__]
        raise InputError(
            f'the model "{name}" could not be loaded ({reason[0][:300]}). Give a local folder '
            "with config.json and weights, a .gguf file, a Hugging Face ID that this machine "
            f"can download, or {EMBEDDED_NAME}."
        ) from error
