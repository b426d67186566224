"""The Hugging Face Hub: whether it can be reached, without retries and messages on the terminal;
and detectors in its repositories."""

import logging
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from clew.base.errors import InputError
from clew.base.progress import Note, Reporter, log_event
from clew.base.texts import bytes_text

_LOGGERS = ("huggingface_hub", "datasets", "transformers")
_PREFIX = re.compile(r"\Ahf:/+")  # a Path keeps one slash of the two
_PART = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}"
_REPOSITORY = re.compile(rf"{_PART}/{_PART}")
_REVISION = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_./-]{0,198}[A-Za-z0-9_-])?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
CARD = "README.md"
# What is read of a repository, and how large it may be. Everything else stays there.
_JSON, _DATA = 1 << 26, 1 << 31
_LIMITS = {
    **{name: _JSON for name in ("detector.json", "reader.json")},
    **{name: _DATA for name in ("detector.safetensors", "adapter.safetensors")},
    **{name: _DATA for name in ("known.safetensors", "feedback.jsonl")},
}
HUB_FILES = tuple(_LIMITS)
# A detector or a reader is complete with both of its files.
_PAIRS = (("detector.json", "detector.safetensors"), ("reader.json", "adapter.safetensors"))
# The detector for the built-in model that comes with the package: its name, and where it is.
READY = "ready"
_READY_FOLDER = Path(__file__).parent / "detectors" / READY
_LOG_IN = 'log in with "hf auth login", or set HF_TOKEN'
Given = TypeVar("Given")


@dataclass(frozen=True)
class HubName:
    """A repository of the Hub, and which revision of it: a commit, a tag or a branch."""

    repository: str
    revision: str | None = None

    def __str__(self) -> str:
        return f"hf://{self.repository}" + (f"@{self.revision}" if self.revision else "")


def parse_name(text: str, setting: str | None = None) -> HubName:
    """From "owner/name@revision", with or without "hf://". Raises InputError."""
    name, at, revision = _PREFIX.sub("", text).partition("@")
    is_safe = ".." not in text and "--" not in name  # which the Hub does not take either
    if not (is_safe and _REPOSITORY.fullmatch(name)) or (at and not _REVISION.fullmatch(revision)):
        wanted = 'write "owner/name", and behind "@" a commit, a tag or a branch, if it is not the'
        raise _error(f"{wanted} newest.", text, setting)
    return HubName(name, revision or None)


def fetch_detector(
    given: Given, report: Reporter | None = None, setting: str | None = "detector"
) -> Any:
    """The folder of a detector or reader that is given as "hf://owner/name[@revision]", in the
    cache of the Hub, or as "ready"; anything else is returned as it is. What has been fetched is
    used again offline. Raises InputError if it cannot be fetched."""
    if isinstance(given, str | Path) and str(given) == READY:
        return _READY_FOLDER
    if not isinstance(given, str | Path) or not _PREFIX.match(str(given)):
        return given
    name, report = parse_name(str(given), setting), report or log_event
    cached = _find_cached(name)
    if cached is not None and _COMMIT.fullmatch(name.revision or ""):
        return cached  # a commit never changes
    if why := why_unreachable():
        if cached is None:
            remedy = "connect to the Hub once, or give a folder"
            raise _error(f"it is not on this machine, and {why}: {remedy}.", name, setting)
        report(Note(f"{name}: revision {cached.name}, fetched earlier ({why})"))
        return cached
    folder = _download(name, setting)
    report(Note(f"{name}: revision {folder.name}"))
    return folder


def find_origin(folder: str | Path) -> str | None:
    """The name with which a folder in the cache was fetched, pinned to its commit, or that of the
    ready detector; None for any other folder."""
    from huggingface_hub import constants

    path, cache = Path(folder).absolute(), Path(constants.HF_HUB_CACHE).absolute()
    if path == _READY_FOLDER:
        return READY
    found = path.relative_to(cache).parts if cache in path.parents else ()
    if len(found) < 3 or found[1] != "snapshots":
        return None
    return str(HubName(found[0].removeprefix("models--").replace("--", "/"), found[2]))


def refuse_change(folder: Path) -> None:
    """Raise InputError for a folder in the cache, which every later use of that commit reads, or in
    the package."""
    if (name := find_origin(folder)) is not None:
        raise InputError(f"{name} stays as it is: give a folder for yours with `out`.")


def _find_cached(name: HubName) -> Path | None:
    from huggingface_hub import constants, try_to_load_from_cache

    for pair in _PAIRS:
        found = [
            try_to_load_from_cache(
                name.repository, file, cache_dir=constants.HF_HUB_CACHE, revision=name.revision
            )
            for file in pair
        ]
        if all(isinstance(one, str) for one in found):
            return Path(str(found[0])).parent
    return None


def _download(name: HubName, setting: str | None) -> Path:
    from huggingface_hub import HfApi, constants

    with _refusing(name, setting):
        api = HfApi(endpoint=constants.ENDPOINT, library_name="clew")
        options: Any = {"repo_id": name.repository, "revision": name.revision}
        about = api.model_info(**options, files_metadata=True)
        _check_sizes({one.rfilename: one.size for one in about.siblings or ()}, name, setting)
        folder = Path(
            api.snapshot_download(
                **options, allow_patterns=list(HUB_FILES), cache_dir=constants.HF_HUB_CACHE
            )
        )
    _check_sizes({one.name: one.stat().st_size for one in folder.iterdir()}, name, setting)
    return folder


def _check_sizes(sizes: Mapping[str, int | None], name: HubName, setting: str | None) -> None:
    """Raise InputError for a repository without a detector, or with too large a file."""
    if not any(sizes.keys() >= {*pair} for pair in _PAIRS):
        raise _error('it contains no detector: "clew push" writes one there.', name, setting)
    for file, most in _LIMITS.items():
        if (size := sizes.get(file) or 0) > most:
            text = f"{file} has {bytes_text(size)}, and at most {bytes_text(most)} are fetched."
            raise _error(text, name, setting)


def upload(
    repository: str, files: Mapping[str, Path | bytes], *, public: bool, message: str
) -> str:
    """Write files into a repository in one commit, and remove those of an earlier detector. A new
    repository is private unless `public`. Returns the commit. Raises InputError."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, constants

    name = parse_name(repository)
    if name.revision is not None:
        raise _error('every push is a new revision: omit "@".', name, None)
    if why := why_unreachable():
        raise InputError(f"nothing was pushed: {why}.")
    with _refusing(name, None):
        api = HfApi(endpoint=constants.ENDPOINT, library_name="clew")
        there = _prepare(api, name, public=public)
        adds = [CommitOperationAdd(path, content) for path, content in files.items()]
        removed = [one for one in HUB_FILES if one in there and one not in files]
        commit = api.create_commit(
            name.repository,
            [*adds, *map(CommitOperationDelete, removed)],
            commit_message=message,
        )
    return commit.oid


def _prepare(api: Any, name: HubName, *, public: bool) -> Collection[str]:
    """Create the repository, or see that a detector may go into it. Returns what it contains."""
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        about = api.model_info(name.repository)
    except RepositoryNotFoundError:
        api.create_repo(name.repository, private=not public)
        return ()
    there = {one.rfilename for one in about.siblings or ()}
    if there - {".gitattributes"} and not there.intersection(HUB_FILES):
        problem = "it contains something other than a detector: choose a new name."
        raise _error(problem, name, None)
    if not about.private and not public:
        problem = "it is public: push there with `public=True`, or choose a new name."
        raise _error(problem, name, None)
    if about.private and public:
        api.update_repo_settings(name.repository, private=False)
    return there


@contextmanager
def _refusing(name: HubName, setting: str | None) -> Iterator[None]:
    """One sentence for what the Hub answers, and nothing else on the terminal."""
    from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError
    from huggingface_hub.errors import RevisionNotFoundError as NoRevision

    try:
        with quiet_hub(), _without_bars():
            yield
        return
    except InputError:
        raise
    except RepositoryNotFoundError as error:
        status = error.response.status_code
        why = f"there is no such repository, or you may not read it (status {status}): {_LOG_IN}."
    except NoRevision:
        why = f'it has no revision "{name.revision}": give a commit, a tag or a branch.'
    except HfHubHTTPError as error:
        status, said = error.response.status_code, error.server_message or "it does not say why"
        hint = f": {_LOG_IN}" if status in (401, 403) else ""
        why = f"the Hub refused with status {status} ({said.splitlines()[0]:.200}){hint}."
    except Exception as error:  # those of its HTTP client, whichever it is, and cut downloads
        said = " ".join(str(error).split())[:200] or type(error).__name__
        why = f"the connection to the Hub failed ({said}): try again."
    raise _error(why, name, setting)


def _error(text: str, name: HubName | str, setting: str | None) -> InputError:
    """`setting` is None for a name that was given without one."""
    if setting is None:
        return InputError(f'"{name}": {text}')
    return InputError(text, setting=setting, value=str(name))


def why_unreachable() -> str:
    """Why the Hub cannot be reached; empty if it responds at all. Checked here because the
    libraries would retry for a minute."""
    from huggingface_hub import constants, is_offline_mode
    from huggingface_hub.utils import get_session

    if is_offline_mode():
        return "HF_HUB_OFFLINE is set"
    try:
        get_session().head(constants.ENDPOINT, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except Exception as error:  # those of its HTTP client, whichever it is
        return f"{constants.ENDPOINT} cannot be reached ({str(error) or type(error).__name__})"
    return ""


def find_cached(name: str, revision: str | None = None) -> bool:
    """Whether a model of this name was downloaded before."""
    from huggingface_hub import try_to_load_from_cache

    try:
        return isinstance(try_to_load_from_cache(name, "config.json", revision=revision), str)
    except ValueError:  # not a name that the Hub could have
        return False


@contextmanager
def quiet_hub() -> Iterator[None]:
    """Silence what the libraries log about retries: the error that follows says the same."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextmanager
def _without_bars() -> Iterator[None]:
    from huggingface_hub.utils import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    was_disabled = are_progress_bars_disabled()
    if not was_disabled:
        disable_progress_bars()
    try:
        yield
    finally:
        if not was_disabled:
            enable_progress_bars()
