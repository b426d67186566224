"""Answers that have a JSON schema: of each next token, only those are allowed that can still lead
to one. llguidance says which; a hostile schema is compiled first where limits end it."""

import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from clew.base.errors import InputError
from clew.base.python_processes import limit_process, start_copy
from clew.base.texts import shortened

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

MAX_SCHEMA_CHARACTERS = 1 << 16
_MOST_KEPT = 256
_CPU_SECONDS, _MEMORY_BYTES, _WAIT_SECONDS = 2, 1 << 29, 20.0
# A space, or a new line with an indent: a small model might otherwise write spaces for ever.
_OPTIONS: Any = {"whitespace_pattern": "( |\\n {0,24})?"}


def make_grammar(schema: str) -> str:
    from llguidance import LLMatcher

    return str(LLMatcher.grammar_from_json_schema(schema, overrides=_OPTIONS))


def write_problem() -> None:
    """Compile the schema that is standard input, without a tokenizer; what is wrong with it goes
    to standard output."""
    from llguidance import LLMatcher

    limit_process(memory_bytes=_MEMORY_BYTES, seconds=_CPU_SECONDS)
    try:
        sys.stdout.write(LLMatcher.validate_grammar(make_grammar(sys.stdin.read())))
    except ValueError as error:
        sys.stdout.write(str(error))


class Grammars:
    """Grammars over the tokens of a model, whose answers end at one of `ends`."""

    def __init__(self, tokenizer: Any, ends: Sequence[int]) -> None:
        self._tokenizer, self._ends = tokenizer, ends
        self._compile = lru_cache(_MOST_KEPT)(self._compile_text)

    def compile(self, schema: Mapping[str, Any]) -> "Grammar":
        """The grammar of a JSON schema. Raises InputError for one that cannot be used, or takes too
        long."""
        return self._compile(json.dumps(schema))

    def _compile_text(self, schema: str) -> "Grammar":
        if len(schema) > MAX_SCHEMA_CHARACTERS:
            most = f"at most {MAX_SCHEMA_CHARACTERS:,} are read"
            raise _unusable(f"it has {len(schema):,} characters; {most}")
        tokens = self._tokens
        _check(schema)
        return Grammar(tokens, schema)

    @cached_property
    def _tokens(self) -> Any:
        """The model's vocabulary, which takes about a second to read."""
        try:
            from llguidance.hf import from_tokenizer
        except ImportError:
            raise InputError(
                "JSON answers need llguidance: pip install 'clew[json]' where the server runs, or "
                "ask for JSON in the prompt."
            ) from None
        if not self._ends:
            raise InputError("JSON answers need a model that declares an end token.")
        try:
            return from_tokenizer(self._tokenizer, eos_token=list(self._ends))
        except ValueError as error:
            raise InputError(
                f"JSON answers cannot be made with this tokenizer: {_one_line(str(error))}."
            ) from None


class Grammar:
    """Raises InputError if it cannot be used with these tokens."""

    def __init__(self, tokens: Any, schema: str) -> None:
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(verbose_errors=False)
        self._first = LLMatcher(tokens, make_grammar(schema), log_level=0, limits=limits)
        self._first.compute_bitmask()
        if self._first.is_error():
            raise _unusable(self._first.get_error())

    def start(self) -> "Constraint":
        """For one answer."""
        return Constraint(self._first.deep_copy())


class Constraint:
    """Which tokens an answer may have next."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    @property
    def problem(self) -> str | None:
        """Why it cannot go on."""
        return _one_line(self._matcher.get_error()) if self._matcher.is_error() else None

    @property
    def is_complete(self) -> bool:
        """Whether nothing may follow but the end."""
        return bool(self._matcher.is_stopped() and not self._matcher.is_error())

    def accept(self, token: int) -> None:
        self._matcher.consume_token(token)

    def filter(self, logits: "Float[Tensor, ' vocabulary']") -> "Float[Tensor, ' vocabulary']":
        """Minus infinity for the tokens that are not allowed; all as they are if it has failed,
        which its `problem` says."""
        import torch

        if self.problem is not None:
            return logits
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self.problem is not None:
            return logits
        # A model may have more logits than its tokenizer has tokens.
        allowed = np.zeros(len(logits), np.bool_)
        found = np.unpackbits(bits, bitorder="little")[: len(logits)]
        allowed[: len(found)] = found
        return logits.where(torch.from_numpy(allowed).to(logits.device), -torch.inf)


def _check(schema: str) -> None:
    """Compile a schema in a process of its own, with little time and memory: some take hours."""
    with tempfile.TemporaryFile("w+") as given, tempfile.TemporaryFile("w+") as told:
        given.write(schema)
        given.seek(0)
        files = {"stdin": given.fileno(), "stdout": told.fileno()}
        with open(os.devnull, "w") as nowhere:
            child = start_copy(write_problem, **files, stderr=nowhere.fileno())
        try:
            status = child.wait(_WAIT_SECONDS)
        except TimeoutError:
            status = -1
        finally:
            child.end()
        told.seek(0)
        problem = told.read()
    if status or problem:
        raise _unusable(problem or "it takes too much time or memory to compile")


def _unusable(reason: str) -> InputError:
    if "NoExtension" in reason:
        reason = "no JSON value has it"
    return InputError(f"the schema cannot be used: {_one_line(reason)}. Change or omit it.")


def _one_line(text: str) -> str:
    return shortened(" ".join(text.split()))[1:-1].rstrip(".")
