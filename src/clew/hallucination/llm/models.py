"""Load a causal language model with eager attention, in evaluation mode, and describe it. Its
folder may be somebody else's: it is checked before and after the libraries load it."""

import contextlib
import hashlib
import pickle
import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import PreTrainedModel

from clew.base.cpu import Threads, leave_slow_kernels
from clew.base.errors import InputError, without_settings
from clew.base.texts import shortened
from clew.hallucination.hub import find_cached, quiet_hub, why_unreachable
from clew.hallucination.llm.device_map import (
    computing_device,
    is_spread,
    model_device,
    named_weights,
)
from clew.hallucination.llm.embedded import (
    EMBEDDED_NAME,
    DeviceMap,
    Quantize,
    embedded_model_folder,
    quiet_transformers,
    read_gguf_once,
)
from clew.hallucination.llm.placement import (
    check_device,
    check_dtype,
    check_model,
    read_device_map,
    unreachable,
)
from clew.storage.reading import read_json

# Edges are stored as 16-bit token numbers.
MAX_TOKENS = 65_535
_TIMED_TOKENS = 32

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


@dataclass(frozen=True)
class LoadedModel:
    """A loaded model with its tokenizer; can be unpacked: `model, tokenizer = load_model(...)`.
    `name` is the name it was loaded by."""

    model: Any
    tokenizer: Any
    name: str = ""
    quantize: Quantize | None = None

    @property
    def device(self) -> torch.device:
        """The device that takes the tokens and returns the logits."""
        return model_device(self.model)

    def __iter__(self) -> Iterator[Any]:
        return iter((self.model, self.tokenizer))


def load_model(
    name: str = EMBEDDED_NAME,
    *,
    dtype: str | torch.dtype = "auto",
    device: str = "auto",
    quantize: Quantize | None = None,
    revision: str | None = None,
    device_map: DeviceMap | None = None,
    offload_folder: str | Path | None = None,
) -> LoadedModel:
    """Load a model and its tokenizer.

    `name` is "smollm2" (built in), a local folder, a `.gguf` file, or a Hugging Face id.
    `dtype` "auto" is float32 on the CPU and the model's own on a GPU. `device` "auto" is the
    first GPU, or the CPU. `revision` is a commit on the Hub. Code in a model's folder is never run.
    `device_map` spreads the layers over GPUs, CPU memory and disk: a policy such as "auto", a dict,
    or a JSON file. `offload_folder` is for weights on disk whose files cannot be read in place.
    Raises InputError if the model is not available, or requires such code.
    """
    leave_slow_kernels()
    placed = _placing_options(device, device_map, offload_folder)
    device = choose_device(computing_device(placed["device_map"]) if placed else device)
    options = {"dtype": _choose_dtype(dtype, device), "attn_implementation": "eager"}
    if quantize is not None:
        options |= _quantize_options(quantize, device)
    options |= placed
    with explained(name), quiet_transformers(), quiet_hub(), read_gguf_once():
        source, extra = _find_source(name)
        if not Path(source).exists():
            extra |= _reach_hub(name, revision)
        tokenizer = _load_tokenizer(source, extra)
        load = _choose_class(source, extra)
        # Left out, transformers asks on the terminal whether to run the code.
        options["trust_remote_code"] = False
        model, info = load.from_pretrained(source, output_loading_info=True, **extra, **options)
    refuse_missing_weights(name, info["missing_keys"])
    refuse_odd_settings(name, model, tokenizer)
    if quantize is None and not placed:
        model = model.to(device)
    return LoadedModel(model.eval(), tokenizer, name=name, quantize=quantize)


def settle_threads(threads: Threads, model: PreTrainedModel) -> None:
    """Choose the number of threads for a model on the CPU, by a short pass; on a GPU, or where
    weights are read from disk, they matter little."""
    tokens = torch.zeros(1, _TIMED_TOKENS, dtype=torch.long)

    @torch.inference_mode()
    def pass_once() -> None:
        model(input_ids=tokens, use_cache=False)

    if model_device(model).type == "cpu" and not is_spread(model):
        threads.settle(pass_once)


def _choose_class(source: str, extra: dict[str, Any]) -> Any:
    """Checkpoints that also read images have a class of their own; text passes only the rest."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.models.auto import modeling_auto as auto

    if "gguf_file" in extra:
        return AutoModelForCausalLM
    config = AutoConfig.from_pretrained(source, trust_remote_code=False, **extra)
    reads_images = auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.get(config.model_type)
    is_text = config.model_type in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    if reads_images and (not is_text or reads_images in (config.architectures or ())):
        return AutoModelForImageTextToText
    return AutoModelForCausalLM


def _load_tokenizer(source: str, extra: dict[str, Any]) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(source, trust_remote_code=False, **extra)
    except Exception as error:
        if type(error) is Exception:  # what tokenizers raises for an invalid file
            raise ValueError(str(error)) from error
        raise


def _reach_hub(name: str, revision: str | None) -> dict[str, Any]:
    """How to load from the Hub, or from its cache where the Hub is out of reach."""
    why = why_unreachable()
    pinned = {} if revision is None else {"revision": revision}
    if not why:
        return pinned
    if find_cached(name, revision):
        return {"local_files_only": True, **pinned}
    raise unreachable(name, why)


def choose_device(device: str) -> str:
    """The device that "auto" stands for, or the named one, validated."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    check_device(device)
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise InputError(
            'PyTorch sees no CUDA GPU. Use `device="cpu"`, or check the driver and '
            "that PyTorch was built with CUDA.",
            setting="device",
            value=device,
        )
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(
            f"it is not available here ({without_settings(str(error)).splitlines()[0]}). Use auto, "
            f"cpu, cuda or cuda:1.",
            setting="device",
            value=device,
        ) from None
    return device


def describe_model(name: str, model: PreTrainedModel, quantize: str | None) -> dict[str, Any]:
    """The model's entry in the manifest; any difference makes it another model."""
    config = model.config.get_text_config()
    return {
        "id": name,
        "family": model.config.model_type,
        "revision": getattr(model.config, "_commit_hash", None),
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        "quantize": quantize,
        "layers": config.num_hidden_layers,
        "dim": config.hidden_size,
        "heads": getattr(config, "num_attention_heads", 0),
        "vocabulary": config.vocab_size,
        "context": getattr(config, "max_position_embeddings", None),
        "fingerprint": fingerprint(model),
    }


@torch.inference_mode()
def fingerprint(model: PreTrainedModel) -> str:
    """A short hash over names, shapes and some values of all weights: same model, same hash."""
    digest = hashlib.sha256()
    for name, parameter in named_weights(model):
        flat = parameter.detach().reshape(-1)
        sample = flat[:: max(1, flat.numel() // 16)][:16].float().cpu().numpy()
        digest.update(f"{name}{tuple(parameter.shape)}".encode())
        digest.update(sample.tobytes())
    return digest.hexdigest()[:16]


def end_tokens(model: PreTrainedModel, tokenizer: Any) -> list[int]:
    """All tokens that end an answer, as model and tokenizer declare them."""
    declared = [*declared_ends(model), tokenizer.eos_token_id]
    return sorted({token for token in declared if token is not None})


def context_tokens(model: PreTrainedModel) -> int:
    """The most tokens, prompt and answer together, that the model and a trace can have."""
    context = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return min(context or MAX_TOKENS, MAX_TOKENS)


def _find_source(name: str) -> tuple[str, dict[str, Any]]:
    if name == EMBEDDED_NAME:
        return str(embedded_model_folder()), {}
    check_model(name)
    path = Path(name).expanduser()
    if name.endswith(".gguf"):
        return str(path.parent), {"gguf_file": path.name}
    if path.is_dir():
        check_config(path / "config.json")
    return (str(path) if path.is_dir() else name), {}


def _choose_dtype(dtype: str | torch.dtype, device: str) -> Any:
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype == "auto":
        return torch.float32 if device == "cpu" else "auto"
    check_dtype(dtype)
    return getattr(torch, dtype)


def _placing_options(
    device: str, device_map: DeviceMap | None, offload_folder: str | Path | None
) -> dict[str, Any]:
    """How transformers is told where the layers go; empty for a single device."""
    if device_map is None:
        return {}
    if device != "auto":
        raise InputError(
            "`device_map` says where the layers go: give one of both.",
            setting="device",
            value=device,
        )
    read = read_device_map(device_map)
    folder = None if offload_folder is None else str(Path(offload_folder).expanduser())
    return {"device_map": read, "offload_folder": folder}


def _quantize_options(quantize: str, device: str) -> dict[str, Any]:
    try:
        import bitsandbytes  # noqa: F401
        from transformers import BitsAndBytesConfig
    except ImportError:
        raise InputError(
            'this requires bitsandbytes. Install it with pip install "clew[quantize]".',
            setting="quantize",
            value=quantize,
        ) from None
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    if quantize == "4bit":
        bits = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=dtype)
    else:
        bits = BitsAndBytesConfig(load_in_8bit=True)
    return {"quantization_config": bits, "device_map": {"": device}}


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
