"""An extension of Griffe: functions that take a class of settings are documented with its fields,
as `inspect.signature` shows them."""

import inspect
import re
from typing import Any, get_args

import griffe


class SettingsInSignatures(griffe.Extension):
    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        if not any("takes(" in str(one.value) for one in func.decorators):
            return
        function = griffe.dynamic_import(func.path)
        func.parameters = griffe.Parameters(*map(_describe, _parameters(function)))
        func.docstring = griffe.Docstring(inspect.getdoc(function) or "", parent=func)


def _parameters(function: Any) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())


def _describe(one: inspect.Parameter) -> griffe.Parameter:
    kind = griffe.ParameterKind.keyword_only
    if one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD:
        kind = griffe.ParameterKind.positional_or_keyword
    default = None if one.default is inspect.Parameter.empty else _as_text(one.default)
    return griffe.Parameter(
        one.name, kind=kind, default=default, annotation=_annotation(one.annotation)
    )


def _annotation(kind: Any) -> str:
    """As it is written: without marks for the command line and without modules."""
    plain = get_args(kind)[0] if hasattr(kind, "__metadata__") else kind
    text = plain if isinstance(plain, str) else inspect.formatannotation(plain)
    return re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", text)


def _as_text(value: object) -> str:
    return "lambda: False" if callable(value) else repr(value)
