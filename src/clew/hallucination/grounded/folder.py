"""Where a reader is: a folder with these files. Importing this loads nothing heavy."""

from pathlib import Path
from typing import Any

from clew.base.errors import StoreError
from clew.hallucination.hub import fetch_detector

BUILT_IN_READER = "grounded"
READER_JSON, ADAPTER = "reader.json", "adapter.safetensors"
_BUILT_IN = Path(__file__).parent / "built_in"


def reader_folder(name: str | Path) -> Path:
    """The folder of a reader: the built-in one comes with the package, others may be on the Hub."""
    return _BUILT_IN if str(name) == BUILT_IN_READER else Path(fetch_detector(name)).expanduser()


def check_reader(name: Any) -> None:
    """Raises StoreError if there is no reader of this name; what is not a name is fine."""
    if isinstance(name, str | Path) and not is_reader(name):
        raise StoreError(
            f'there is no reader in "{reader_folder(name)}": {READER_JSON} is missing. Train one, '
            f'or use "{BUILT_IN_READER}", which is built in.'
        )


def is_reader(name: Any) -> bool:
    """Whether this names a reader rather than another detector."""
    return isinstance(name, str | Path) and (reader_folder(name) / READER_JSON).exists()
