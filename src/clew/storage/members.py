"""The types and bounds of what a manifest contains, checked when it is read."""

from typing import Annotated, Any, NotRequired, TypedDict

from clew.base.typed_json import Bounds, Matches

RowCount = Annotated[int, Bounds(least=0, most=10**12)]
ByteCount = Annotated[int, Bounds(least=0, most=1 << 60)]
Sha256 = Annotated[str, Matches("[0-9a-f]{64}")]
FileName = Annotated[str, Matches(r"[\w][\w.-]*")]  # points to nothing outside the store
_Size = Annotated[int, Bounds(least=0, most=1 << 31)]


class Source(TypedDict):
    """The file that a shard was made from."""

    batch_number: RowCount
    file: str
    sha256: Sha256
    records: NotRequired[RowCount]


class Skip(TypedDict):
    """An excluded question, file or record of a file, with the reason."""

    reason: str
    where: NotRequired[str]
    file: NotRequired[str]
    record: NotRequired[RowCount | None]
    question_id: NotRequired[str | None]


class _Model(TypedDict, total=False):
    id: str | None


class _Questions(TypedDict, total=False):
    name: str | None
    sha256: str | None


class _Capture(TypedDict, total=False):
    model: _Model | None
    questions: _Questions | None


class _SampleSource(TypedDict, total=False):
    store: str | None
    model: str | None
    sha256: str | None
    capture: _Capture | None


class _Machine(TypedDict, total=False):
    threads: RowCount | None
    generation_batch: RowCount | None
    generation_tokens: RowCount | None


class Settings(TypedDict, total=False):
    """The settings that are read back. Others are only shown and compared."""

    command: str | None
    keep: str | None
    method: str | None
    model: _Model | None
    questions: _Questions | None
    prompt: dict[str, Any] | None
    generation: dict[str, Any] | None
    machine: _Machine | None
    source: _SampleSource | None
    sources: list[Source]
    scores: dict[str, Any] | None
    shape: dict[str, _Size] | None
    answer_hidden: bool | None
    node_dim: RowCount | None
    edges_per_token: RowCount | None
    top_k: RowCount | None
    size: RowCount | None
