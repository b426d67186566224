"""The one exception tree. Every message says what is wrong, the value, and what to do."""


class ClewError(Exception):
    """Base of all errors that clew raises on purpose; its text is meant for a person."""


class InputError(ClewError):
    """A value, file or model that the user gave cannot be used."""


class StoreError(ClewError):
    """A store on disk is missing, damaged, or not what the command expected."""


class StoreLockedError(StoreError):
    """Another process is writing the same part of the store."""


class TooManyFilesError(StoreError):
    """The process may not open another file."""


class OtherVersionError(StoreError):
    """A store was written by a clew whose format this one does not read."""


class SettingsMismatchError(StoreError):
    """A store was begun with other settings than those asked for now."""


class DiskFullError(StoreError):
    """There is no room for what is still to be written."""


class UnsafePickleError(InputError):
    """A pickle refers to something other than plain data."""


class TrainingError(ClewError):
    """Training cannot go on: values that are no numbers, or a step that does not fit in memory."""


class TrainingStoppedError(ClewError):
    """Training was asked to stop, and did so with everything on disk; the same call goes on."""
