"""Convert legacy files into stores, and compare them, without executing anything in them."""

from clew.base.lazy import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from clew.hallucination.legacy.comparing import compare_pickle
    from clew.hallucination.legacy.convert import ConvertResult, convert_folder, convert_samples

__all__ = ["ConvertResult", "compare_pickle", "convert_folder", "convert_samples"]

# The process that reads a file imports this package, and starts for each file.
_HOMES = {name: "convert" for name in __all__} | {"compare_pickle": "comparing"}
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
