"""The columns that sequences and graphs share, and single rows put together from arrays."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from clew.hallucination.legacy.samples import RowIds, read_label
from clew.hallucination.traces.compact import to_float16
from clew.hallucination.traces.schema import id_fields


def narrow(array: np.ndarray, notes: set[str]) -> np.ndarray:
    """Float16; what lies beyond its range becomes its largest value, as in capture."""
    if array.dtype == np.float16:
        return array
    notes.add("arrays that were wider than float16 are stored as float16")
    return to_float16(torch.from_numpy(array.astype(np.float32))).numpy()


def common_fields() -> list[pa.Field]:
    return [*id_fields(), pa.field("label", pa.float32())]


def common_columns(sample: Mapping[str, Any], ids: RowIds) -> dict[str, pa.Array]:
    values = {**asdict(ids), "label": read_label(sample["label"])}
    kinds = {field.name: field.type for field in common_fields()}
    return {name: pa.array([value], type=kinds[name]) for name, value in values.items()}


def fill_lists(schema: pa.Schema, name: str, values: np.ndarray) -> pa.Array:
    """One row whose (nested) list holds all of `values`."""
    kind = schema.field(name).type
    kinds = [kind]
    while pa.types.is_list(kinds[-1]) or pa.types.is_fixed_size_list(kinds[-1]):
        kinds.append(kinds[-1].value_type)
    array = pa.array(np.ascontiguousarray(values).reshape(-1), type=kinds[-1])
    for nested in reversed(kinds[:-1]):
        if pa.types.is_fixed_size_list(nested):
            array = pa.FixedSizeListArray.from_arrays(array, type=nested)
        else:
            array = pa.ListArray.from_arrays(pa.array([0, len(array)], pa.int32()), array)
    return array


def build_row(schema: pa.Schema, columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
