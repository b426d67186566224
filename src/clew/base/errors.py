"""The one exception tree. Every message says what is wrong, the value, and what to do."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from clew.base.texts import for_terminal, quoted

# Actions that fix an error, as a user would run them; `clew.cli` has a command for each.
Action = Literal["repair", "convert", "preprocess"]
_ACTIONS: dict[Action, str] = {
    "repair": "repair the store with clew.verify({store}, repair=True)",
    "convert": "convert them, beside the old files, with clew.convert({store}, out={store})",
    "preprocess": "create training samples from it with clew.preprocess({store}, ...)",
}


_MOST_SHOWN = 400  # characters of a value
_MAX_TEXT = 4000  # of a message


@dataclass(frozen=True)
class Call:
    """A call that fixes an error: `clew.patterns.train(name="animals")`. `clew.cli` shows the
    command that does the same. `words` are the positional arguments, `settings` the keyword
    arguments.
    """

    function: str
    words: tuple[object, ...] = ()
    settings: Mapping[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        named = (f"{name}={_as_python(value)}" for name, value in self.settings.items())
        return f"{self.function}({', '.join((*map(_as_python, self.words), *named))})"


def _as_python(value: object) -> str:
    if isinstance(value, Path):
        return f"Path({quoted(str(value))})"
    return quoted(value) if isinstance(value, str) else f"{value}"


class ClewError(Exception):
    """Base class of all errors that clew raises; the text is meant to be read by a person.

    The text is one string, or several parts if it contains a `Call`.

    `setting` is the name of the setting that is wrong, as in Python ("batch_size"), and `value` its
    value: the text starts with both. Other settings are in the text between backticks, alone or
    with a value: "choose another `out`, or give `overwrite=True`". `action` names what fixes the
    error, `store` the folder to apply it to. `clew.cli` shows settings as flags and actions as
    commands.
    """

    def __init__(
        self,
        *text: str | Call,
        setting: str | None = None,
        value: Any = None,
        action: Action | None = None,
        store: Path | None = None,
    ) -> None:
        self.parts = tuple(_bounded(part) if isinstance(part, str) else part for part in text)
        self.text = "".join(map(str, self.parts))
        super().__init__(self.text)
        self.setting, self.value = setting, value
        self.action, self.store = action, store

    def __str__(self) -> str:
        about = f"{describe_setting(self.setting, self.value)}: " if self.setting else ""
        way_out = ""
        if self.action:
            way_out = _ACTIONS[self.action].format(store=quoted(f"{self.store}"))
        return join_sentences(f"{about}{self.text}", way_out)


class InputError(ClewError):
    """A value, file or model that was given cannot be used. If it is an argument, `setting` and
    `value` name it."""


class StoreError(ClewError):
    """A store on disk is missing, damaged, or not what the command expected."""


class StoreLockedError(StoreError):
    """Another process is writing the same part of the store. `owner` describes it, "" if
    unknown."""

    def __init__(self, text: str = "", *, owner: str = "", **about: Any) -> None:
        super().__init__(text, **about)
        self.owner = owner


class TooManyFilesError(StoreError):
    """The process has reached its limit of open files."""


class OtherVersionError(StoreError):
    """A store was written by a version of clew whose format this one cannot read."""


class SettingsMismatchError(StoreError):
    """A store or a run was started with different settings."""


class DiskFullError(StoreError):
    """The disk does not have enough space."""


class UnsafePickleError(InputError):
    """A pickle refers to something other than plain data."""


class MethodError(ClewError):
    """A detection method from outside clew failed; the text names it and its package."""


class TrainingError(ClewError):
    """Training cannot continue: non-finite values, or a step that does not fit in memory."""


class LostProcessError(TrainingError):
    """Another process of the same training has ended. `is_first` says whether this process noticed
    it before all others, so that one of them tells the user."""

    def __init__(self, *text: str | Call, is_first: bool = True) -> None:
        super().__init__(*text)
        self.is_first = is_first


class QueueFullError(ClewError):
    """Too many requests wait for an answer. `waiting` says how many."""

    def __init__(self, *text: str | Call, waiting: int = 0) -> None:
        super().__init__(*text)
        self.waiting = waiting


class StoppedError(ClewError):
    """The run was asked to stop (by `should_stop`). If `is_resumable`, everything so far is saved,
    and the same call resumes it.
    """

    def __init__(self, *text: str | Call, is_resumable: bool = True) -> None:
        super().__init__(*text)
        self.is_resumable = is_resumable

    def __str__(self) -> str:
        # Not in `text`: clew.cli shows the whole command instead.
        way_out = "run the same command again to resume" if self.is_resumable else ""
        return join_sentences(super().__str__(), way_out)


class TrainingStoppedError(StoppedError):
    """Training was asked to stop."""


def _bounded(text: str) -> str:
    """A message that names something from a file is still a message."""
    if len(text) <= _MAX_TEXT:
        return text
    return f"{text[: _MAX_TEXT // 2]} [...] {text[-_MAX_TEXT // 2 :]}"


def without_settings(text: str) -> str:
    """Another program's message, for the text of an error: its backticks are replaced, since they
    do not name settings."""
    return text.replace("`", "'")


def describe_setting(name: str, value: Any) -> str:
    """`batch_size is 0`, `split is "70/20"`."""
    text = for_terminal(value)
    text = text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
    return f'{name} is "{text}"' if isinstance(value, str | Path) else f"{name} is {text}"


def join_sentences(text: str, way_out: str) -> str:
    """ "it was truncated" and "repair it" become "it was truncated: repair it."; a sentence that
    has already ended is followed by a new one."""
    if not way_out:
        return text
    if text.endswith("."):
        return f"{text} {way_out[:1].upper()}{way_out[1:]}."
    return f"{text}: {way_out}."
