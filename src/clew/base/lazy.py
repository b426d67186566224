"""Names of a package that are imported on first use, so that the package loads nothing heavy."""

from importlib import import_module

TYPE_CHECKING = False  # as in typing, which takes longer to import than this module
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def lazy_names(
    package: str, homes: "Mapping[str, str]"
) -> "tuple[Callable[[str], Any], Callable[[], list[str]]]":
    """The `__getattr__` and `__dir__` of a package; `homes` maps each name to its module, as a
    path below the package ("trained.model") or, after a dot, beside it (".loading.loader")."""

    def find(name: str) -> "Any":
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f".{homes[name]}", package), name)

    def list_names() -> list[str]:
        return sorted({*vars(import_module(package)), *homes})

    return find, list_names
