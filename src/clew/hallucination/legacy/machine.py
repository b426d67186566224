"""What a pickle builds: a stack, a memo, containers and stand-ins. Everything is counted before it
is made, only small keys are hashed, and nothing but stand-ins is called."""

from collections.abc import Callable, Mapping
from typing import Any

from clew.base.texts import shortened
from clew.hallucination.legacy.budget import Budget
from clew.hallucination.legacy.stand_ins import (
    Allowed,
    ArrayStandIn,
    DtypeStandIn,
    Inert,
    RefusedContentError,
    check_key,
    refuse_unless,
)

# Bytes that Python takes at most for a small object, and for an entry of a dict or a set.
OBJECT_BYTES, ENTRY_BYTES = 64, 100
# The hashes of tuples can be made to collide: this bounds how many of them a file uses as keys.
_TUPLE_KEY_BYTES = 25_000


class DamagedPickleError(ValueError):
    """The bytes are not a pickle."""


class Machine:
    """Holds the values of one pickle. It knows only the globals in `names`, which are stand-ins.

    Its methods raise RefusedContentError, OverBudgetError and DamagedPickleError.
    """

    def __init__(self, names: Mapping[tuple[str, str], Any], budget: Budget) -> None:
        self._names, self._budget = names, budget
        self._stack: list[Any] = []
        self._outer: list[list[Any]] = []
        self._memo: dict[int, Any] = {}

    def find_global(self, module: Any, name: Any) -> Any:
        if isinstance(module, str) and isinstance(name, str) and (module, name) in self._names:
            return self._names[module, name]
        both = f"{module}.{name}" if isinstance(module, str) and isinstance(name, str) else name
        raise RefusedContentError(
            f"it refers to {shortened(both)}, which is not plain data and could run code"
        )

    def persistent_load(self, pid: Any) -> Any:
        raise RefusedContentError(f"it refers to something outside the file ({shortened(pid)})")

    def pop(self) -> Any:
        if not self._stack:
            raise DamagedPickleError("it takes a value from an empty stack")
        return self._stack.pop()

    def push(self, value: Any) -> None:
        self._stack.append(value)

    def push_new(self, make: Callable[[], Any]) -> None:
        self._budget.take(4 * OBJECT_BYTES)
        self._stack.append(make())

    def mark(self) -> None:
        self._budget.take(OBJECT_BYTES)
        self._outer.append(self._stack)
        self._stack = []

    def pop_mark(self) -> list[Any]:
        if not self._outer:
            raise DamagedPickleError("it ends a container that it never started")
        items, self._stack = self._stack, self._outer.pop()
        return items

    def drop(self) -> None:
        if self._stack:
            self._stack.pop()
        else:
            self.pop_mark()

    def duplicate(self) -> None:
        value = self.pop()
        self._stack += (value, value)

    def put(self, place: int | None = None) -> None:
        if not self._stack:
            raise DamagedPickleError("it stores a value from an empty stack")
        self._budget.take(ENTRY_BYTES)
        self._memo[len(self._memo) if place is None else place] = self._stack[-1]

    def get(self, place: int) -> None:
        if place not in self._memo:
            raise DamagedPickleError("it refers to a value that it has not stored")
        self._stack.append(self._memo[place])

    def push_tuple(self, count: int) -> None:
        if len(self._stack) < count:
            raise DamagedPickleError("it takes a value from an empty stack")
        self._budget.take(OBJECT_BYTES)
        self._stack[-count:] = [tuple(self._stack[-count:])]

    def push_marked(self, make: type[list[Any]] | type[tuple[Any, ...]]) -> None:
        items = self.pop_mark()
        self._budget.take(OBJECT_BYTES + 8 * len(items))
        self._stack.append(make(items))

    def append(self) -> None:
        value = self.pop()
        self._top(list).append(value)

    def extend(self) -> None:
        items = self.pop_mark()
        self._budget.take(8 * len(items))
        self._top(list).extend(items)

    def set_item(self) -> None:
        value, key = self.pop(), self.pop()
        self._fill(self._top(dict), [key, value])

    def set_items(self) -> None:
        items = self.pop_mark()
        self._fill(self._top(dict), items)

    def push_dict(self) -> None:
        items = self.pop_mark()
        self.push_new(dict)
        self._fill(self._stack[-1], items)

    def add_items(self) -> None:
        items = self.pop_mark()
        self._top(set).update(map(self._count_key, items))

    def push_frozenset(self) -> None:
        items = self.pop_mark()
        self._budget.take(4 * OBJECT_BYTES)
        self._stack.append(frozenset(map(self._count_key, items)))

    def push_global(self) -> None:
        name, module = self.pop(), self.pop()
        self._stack.append(self.find_global(module, name))

    def push_persistent(self) -> None:
        self._stack.append(self.persistent_load(self.pop()))

    def call(self) -> None:
        arguments, function = self._pop_arguments(), self.pop()
        may_be_called = isinstance(function, Allowed) or function is Inert
        refuse_unless(may_be_called, f"it calls {shortened(function)}, which is not plain data")
        self._count_copies(arguments)
        self._stack.append(function(*arguments))

    def push_object(self) -> None:
        _, kind = self._pop_arguments(), self.pop()
        refuse_unless(kind is Inert, f"it creates {shortened(kind)}, which is not plain data")
        self.push_new(Inert)

    def build(self) -> None:
        state, target = self.pop(), self.pop()
        may_change = isinstance(target, Inert | DtypeStandIn | ArrayStandIn)
        refuse_unless(may_change, f"it tries to change {shortened(target)}")
        if not isinstance(target, Inert):
            self._count_copies(state)
        target.__setstate__(state)
        self._stack.append(target)

    def _top(self, kind: type) -> Any:
        if not self._stack or type(self._stack[-1]) is not kind:
            raise DamagedPickleError(f"it adds to a {kind.__name__} where there is none")
        return self._stack[-1]

    def _pop_arguments(self) -> tuple[Any, ...]:
        arguments = self.pop()
        if not isinstance(arguments, tuple):
            raise DamagedPickleError("it creates a value without arguments")
        return arguments

    def _fill(self, target: dict[Any, Any], items: list[Any]) -> None:
        if len(items) % 2:
            raise DamagedPickleError("a dict has a key without a value")
        pairs = iter(items)
        for key, value in zip(pairs, pairs, strict=True):
            target[self._count_key(key)] = value

    def _count_key(self, key: Any) -> Any:
        check_key(key)
        self._budget.take(_TUPLE_KEY_BYTES if isinstance(key, tuple) else ENTRY_BYTES)
        return key

    def _count_copies(self, values: Any) -> None:
        """Count what a stand-in makes of its arguments: at most a copy of each."""
        self._budget.take(4 * OBJECT_BYTES)
        for value in values if isinstance(values, tuple) else ():
            if isinstance(value, str | bytes | bytearray):
                self._budget.take(len(value))
            elif isinstance(value, list | tuple | dict | set | frozenset):
                self._budget.take(ENTRY_BYTES * len(value))
                tuples = sum(isinstance(item, tuple) for item in value)
                self._budget.take(_TUPLE_KEY_BYTES * tuples)
