"""The direction of imports, as the design draws it, and the public surface."""

import ast
from pathlib import Path

import pytest

import clew

SOURCE = Path(clew.__file__).parent
# What each package may import besides itself; the lower ones know nothing of those above.
ALLOWED = {
    "errors": set(),
    "version": set(),
    "markup": set(),
    "wording": set(),
    "shards": {"errors"},
    "questions": {"errors", "shards"},
    "traces": {"errors", "shards"},
    "capture": {"errors", "shards", "traces", "questions", "version"},
    "labels": {"errors", "shards", "traces"},
    "splits": {"errors", "shards", "labels"},
    "features": {"errors", "shards", "traces", "labels", "splits", "version"},
    "legacy": {"errors", "shards", "traces", "capture", "version"},
    "datasets": {"errors", "shards", "traces", "labels", "splits", "features", "legacy"},
    "models": {"errors"},
    "engine": {"errors", "version"},
    "measure": {"errors"},
    "probes": {"errors", "labels", "measure"},
    "detect": {
        "errors",
        "shards",
        "labels",
        "splits",
        "features",
        "legacy",
        "datasets",
        "models",
        "engine",
        "version",
    },
    "report": {"errors", "markup", "wording", "shards", "measure", "version"},
    "show": {"errors", "markup", "shards", "traces", "labels", "version"},
    "compare": {
        "errors",
        "shards",
        "splits",
        "datasets",
        "measure",
        "probes",
        "engine",
        "detect",
        "version",
    },
    "patterns": {
        "errors",
        "markup",
        "wording",
        "shards",
        "splits",
        "datasets",
        "models",
        "engine",
        "measure",
        "report",
        "version",
    },
    "cli": {
        "errors",
        "wording",
        "engine",
        "detect",
        "patterns",
        "compare",
        "report",
        "show",
        "shards",
        "traces",
        "capture",
        "questions",
        "labels",
        "splits",
        "features",
        "legacy",
        "version",
    },
    "__init__": {"errors", "traces", "version"},
    "__main__": {"cli"},
}

# The rooms of the image application: each may import those before it.
PATTERNS = (
    "photos",
    "augment",
    "networks",
    "classifier",
    "cache",
    "trained",
    "report",
    "training",
    "library",
    "identify",
    "review",
)


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: p.stem)
def test_imports_point_downwards(path: Path) -> None:
    room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    extra = imported_rooms(path) - {room} - ALLOWED[room]
    assert not extra, f"{path.relative_to(SOURCE)} must not import {sorted(extra)}"


@pytest.mark.parametrize("room", PATTERNS)
def test_the_rooms_of_patterns_stand_on_each_other(room: str) -> None:
    inside = SOURCE / "patterns"
    paths = [inside / f"{room}.py", *(inside / room).rglob("*.py")]
    imported = set().union(*(imported_rooms(path, depth=2) for path in paths if path.exists()))
    lower = {*PATTERNS[: PATTERNS.index(room) + 1]}
    assert imported & {*PATTERNS} <= lower


def imported_rooms(path: Path, depth: int = 1) -> set[str]:
    """The parts of the imported names that are `depth` below clew."""
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
            if node.module == "clew":
                names = [f"clew.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        parts = [name.split(".") for name in names if name.startswith("clew.")]
        rooms |= {part[depth] for part in parts if len(part) > depth}
    return rooms


def test_the_public_surface_is_what_it_says() -> None:
    assert clew.__all__ == [
        "ClewError",
        "Trace",
        "TraceBatchLoader",
        "__version__",
        "extract_batch_subset",
        "merge_batches",
    ]
    assert all(hasattr(clew, name) for name in clew.__all__)
