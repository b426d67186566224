"""Results as tables: Arrow first, then pandas, Polars and notebooks."""

from html import escape
from typing import TYPE_CHECKING, Any

from clew.base.errors import InputError

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

_MOST_ROWS = 50


class Tabular:
    """A result with a table. A subclass only has to define `table`."""

    @property
    def table(self) -> "pyarrow.Table":
        """The rows as an Arrow table."""
        raise NotImplementedError

    def to_pandas(self) -> "pandas.DataFrame":
        """The rows as a pandas data frame; requires pandas."""
        _require("pandas")
        return self.table.to_pandas()

    def to_polars(self) -> "polars.DataFrame":
        """The rows as a Polars data frame; requires Polars."""
        polars = _require("polars")
        return polars.from_arrow(self.table)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The rows for any library that reads Arrow's C interface."""
        return self.table.__arrow_c_stream__(requested_schema)

    def _repr_html_(self) -> str:
        """The HTML that a notebook displays."""
        return html_table(self.table.slice(0, _MOST_ROWS))


def html_table(table: "pyarrow.Table") -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in table.column_names)
    rows = "".join(
        f"<tr>{''.join(f'<td>{escape(_cell(value))}</td>' for value in row.values())}</tr>"
        for row in table.to_pylist()
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _require(name: str) -> Any:
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError:
        raise InputError(f"this requires {name}. Install it with pip install {name}.") from None
