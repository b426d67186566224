"""Settings from a --config file, checked against the options of the command."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from clew.base.errors import InputError
from clew.base.texts import find_close, shortened
from clew.base.urls import as_path
from clew.cli.options import Setting
from clew.storage.run_file import RunFile, read_run_file

_WANTED = {
    str: "text",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    Path: "text",
}
# Of a file that somebody else may have written.
_SHOWN, _LISTED = 60, 5
INT_LIMIT = 1 << 63


def read_config(
    path: Path, command: str, settings: Sequence[Setting], typed: Collection[str]
) -> RunFile:
    """Read the settings of a file, by argument name. Raises InputError if the file belongs to
    another command, has unknown settings, values of the wrong type, or a setting that only a flag
    may give and that is not one of those `typed` as flags, which override the file."""
    run = read_run_file(path)
    if run.command not in (None, command):
        raise InputError(
            f'it was written by "clew {str(run.command)[:_SHOWN]}". Pass it to that command, or '
            f'give a file written by "clew {command}".',
            setting="config",
            value=path,
        )
    names = _spellings(settings)
    _refuse_unknown(run, command, names)
    by_name = {setting.name: setting for setting in settings}
    found = {names[_plain(name)]: value for name, value in run.settings.items()}
    values = {name: _check(run, by_name[name], value) for name, value in found.items()}
    _refuse_without_flag(run, [by_name[name] for name in values if name not in typed], values)
    return replace(run, command=command, settings=values)


def refuse_unrecorded(run: RunFile, given: Mapping[str, Any], settings: Sequence[Setting]) -> None:
    """Raise InputError for a setting that the file could not record (a Python object) and that was
    not given again."""
    titles = {setting.name: setting.title for setting in settings}
    for name in run.not_recorded:
        if name in titles and name not in given:
            raise InputError(
                f"this run was started from Python, with a value for {titles[name]} that cannot "
                f"be stored in a file. Give {titles[name]} as well.",
                setting="config",
                value=run.path,
            )


def _spellings(settings: Sequence[Setting]) -> dict[str, str]:
    """Maps every name that a file may use, including flags, to its argument."""
    flags = {_plain(flag): one.name for one in settings for flag in one.flags}
    return flags | {one.name: one.name for one in settings}


def _plain(name: str) -> str:
    return name.removeprefix("--").replace("-", "_")


def _refuse_unknown(run: RunFile, command: str, names: Mapping[str, str]) -> None:
    unknown = [name for name in run.settings if _plain(name) not in names]
    if not unknown:
        return
    close = find_close(_plain(unknown[0]), names)
    meant = f' Did you mean "{close}"?' if close else ""
    listed = ", ".join(f'"{name[:_SHOWN]}"' for name in unknown[:_LISTED])
    raise InputError(
        f'"clew {command}" has no setting named {listed}.{meant}', setting="config", value=run.path
    )


def _refuse_without_flag(
    run: RunFile, settings: Sequence[Setting], values: Mapping[str, Any]
) -> None:
    """A file from somebody else must not choose who gets keys and data."""
    found = [one for one in settings if one.needs_flag(values[one.name])]
    if found:
        listed = " and ".join(f"{one.name} to {_shown(values[one.name])}" for one in found)
        raise InputError(
            f"it sets {listed}. What decides where keys and data go, or who may connect, is never "
            f"read from a file. If you want it, give {' and '.join(one.title for one in found)} on "
            "the command line; else delete it from the file.",
            setting="config",
            value=run.path,
        )


def _shown(value: Any) -> str:
    """Paths as they were written."""
    return shortened(str(as_path(value)) if isinstance(value, Path) else value)


def _check(run: RunFile, setting: Setting, value: Any) -> Any:
    """Check the type of a value, and return it in the form that the argument takes."""
    many = isinstance(value, list)
    if many and not setting.may_be_list:
        raise _wrong(run, setting, value)
    items = value if many else [value]
    checked = [_check_one(run, setting, item) for item in items]
    if setting.may_be_list and (many or setting.is_list or setting.switches):
        return checked
    return checked[0]


def _check_one(run: RunFile, setting: Setting, value: Any) -> Any:
    kind: type = setting.kind
    accepted = {float: (int, float), Path: (str,)}.get(kind, (kind,))
    fits = isinstance(value, accepted) and (kind is bool or not isinstance(value, bool))
    if not fits or (isinstance(value, int) and abs(value) >= INT_LIMIT):
        raise _wrong(run, setting, value)
    allowed = tuple(setting.switches or setting.choices)
    if allowed and value not in allowed:
        raise InputError(
            f'its {setting.name} is "{value[:_SHOWN]}". Choose from: {", ".join(allowed)}.',
            setting="config",
            value=run.path,
        )
    return kind(value)


def _wrong(run: RunFile, setting: Setting, value: Any) -> InputError:
    wanted = _WANTED[setting.kind]
    if setting.may_be_list:
        wanted = f"{wanted}, or a list"
    return InputError(
        f"its {setting.name} is {shortened(value)}, but it must be {wanted}.",
        setting="config",
        value=run.path,
    )
