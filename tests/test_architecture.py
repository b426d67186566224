"""Two applications on one foundation: which folder may import which, and the public surface."""

import ast
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import clew

SOURCE = Path(clew.__file__).parent
# What everyone may import, which imports nothing else.
SHARED = {"base", "version"}
# What each folder may import besides itself and what everyone shares.
ALLOWED: dict[str, set[str]] = {
    **{name: set() for name in SHARED},
    "storage": set(),
    "metrics": set(),
    "pages": {"storage"},
    "cluster": {"storage"},
    "loading": {"storage"},
    "engine": {"metrics", "storage", "loading"},
    "hallucination": {"storage", "metrics", "pages", "loading", "engine", "cluster"},
    "patterns": {"storage", "metrics", "pages", "loading", "engine"},
    "datasets": {"loading", "hallucination"},
    "vllm": {"hallucination"},
    "inspect_ai": {"hallucination"},
    "__init__": {"hallucination"},
    "cli": {"storage", "loading", "engine", "pages", "hallucination", "patterns"},
    "__main__": {"cli"},
}
# The folders of the two applications: each may import those before it.
ROOMS = {
    "hallucination": (
        "hub",
        "questions",
        "traces",
        "legacy",
        "labels",
        "llm",
        "capture",
        "samples",
        "detectors",
        "grounded",
        "comparison",
        "answer_page",
        "live",
        "workflow",
    ),
    "patterns": (
        "results_file",
        "presets",
        "photos",
        "augment",
        "networks",
        "cache",
        "features",
        "photo_map",
        "trained",
        "report",
        "training",
        "settings",
        "library",
        "identification",
        "review",
        "cleaning",
        "serving",
        "flow",
        "workflow",
    ),
}


@pytest.mark.slow
def test_lower_layers_never_import_higher_ones() -> None:
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        imported = {name.split(".")[1] for name in imported_modules(path) if name.count(".")}
        extra = imported - {room} - SHARED - ALLOWED[room]
        if extra:
            found.append(f"{path.relative_to(SOURCE)} must not import {sorted(extra)}")
    assert not found, "\n".join(found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("application", "room"), [(name, room) for name, rooms in ROOMS.items() for room in rooms]
)
def test_folders_of_an_application_import_only_lower_ones(application: str, room: str) -> None:
    inside, rooms = SOURCE / application, ROOMS[application]
    paths = [inside / f"{room}.py", *(inside / room).rglob("*.py")]
    names = set().union(*(imported_modules(path) for path in paths if path.exists()))
    parts = [name.split(".") for name in names]
    imported = {part[2] for part in parts if len(part) > 2 and part[1] == application}
    assert imported & {*rooms} <= {*rooms[: rooms.index(room) + 1]}


def test_every_folder_of_an_application_has_its_place_in_the_order() -> None:
    for application, rooms in ROOMS.items():
        inside = SOURCE / application
        names = {path.relative_to(inside).parts[0] for path in inside.rglob("*.py")}
        assert {name.removesuffix(".py") for name in names} - {"__init__"} == {*rooms}


@pytest.mark.slow
def test_imports_have_no_cycles() -> None:
    """Imports under TYPE_CHECKING count too: two files that need each other are one."""
    circles = [circle for circle in find_circles(import_graph()) if len(circle) > 1]
    assert not circles, "\n".join(" <-> ".join(sorted(circle)) for circle in circles)


@pytest.mark.slow
@pytest.mark.parametrize(
    "folder", sorted({*ALLOWED} - SHARED - {"__init__", "__main__", "datasets", "vllm"})
)
def test_no_two_classes_of_a_folder_share_a_name(folder: str) -> None:
    places: dict[str, list[str]] = {}
    for path in (SOURCE / folder).rglob("*.py"):
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(path.name)
    assert not {name: files for name, files in places.items() if len(files) > 1}


@pytest.mark.slow
def test_only_the_command_line_names_flags() -> None:
    """The library names settings; `clew.cli` turns them into flags."""
    named = [
        f"{path.relative_to(SOURCE)}: {text!r:.80}"
        for path in sorted(SOURCE.rglob("*.py"))
        if path.relative_to(SOURCE).parts[0] != "cli"
        and path.name != "wheels.py"  # which names pip's
        for text in texts(path)
        if any(word.startswith("--") and word[2:3].isalpha() for word in text.split())
    ]
    assert not named, "\n".join(named)


def texts(path: Path) -> Iterator[str]:
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imported_modules(path: Path) -> frozenset[str]:
    """The modules of clew that a file imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {_module(node.module, alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return frozenset(name for name in found if name.split(".")[0] == "clew")


def _module(package: str, name: str) -> str:
    """`from package import name` may mean a module or something in one."""
    inner = SOURCE.parent.joinpath(*package.split("."), name)
    is_module = inner.is_dir() or inner.with_suffix(".py").exists()
    return f"{package}.{name}" if is_module else package


def import_graph() -> dict[str, set[str]]:
    graph = {}
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        name = ".".join(parts).removesuffix(".__init__")
        graph[name] = {*imported_modules(path)} - {name}
    return graph


def find_circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """The strongly connected components: two modules are in one if each reaches the other."""
    reached = {name: _reach(graph, name) for name in graph}
    groups = {
        frozenset({name} | {other for other in reached[name] if name in reached.get(other, ())})
        for name in graph
    }
    return [set(group) for group in groups]


def _reach(graph: dict[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        for name in graph.get(waiting.pop(), ()):
            if name not in seen:
                seen.add(name)
                waiting.append(name)
    return seen


def test_every_file_beside_the_code_is_packaged() -> None:
    project = SOURCE.parents[1] / "pyproject.toml"
    options = tomllib.loads(project.read_text(encoding="utf-8"))["tool"]["setuptools"]
    patterns = options["package-data"]["clew"]
    packaged = {path for pattern in patterns for path in SOURCE.glob(pattern)}
    beside = {path for path in SOURCE.rglob("*.*") if path.is_file()}
    assert {path for path in beside if path.suffix not in (".py", ".pyc")} == packaged


def test_public_surface_is_exactly_what_is_documented() -> None:
    assert clew.__all__ == [
        "ClewError",
        "ComparisonResult",
        "DetectionMethod",
        "Detector",
        "DiskFullError",
        "InputError",
        "OtherVersionError",
        "SettingsMismatchError",
        "StoppedError",
        "StoreError",
        "StoreLockedError",
        "Trace",
        "TraceBatchLoader",
        "TrainingError",
        "TrainingStoppedError",
        "__version__",
        "adapt",
        "ask",
        "calibrate",
        "check",
        "compare",
        "convert",
        "extract",
        "extract_batch_subset",
        "inspect",
        "label",
        "load_detector",
        "load_model",
        "load_reader",
        "merge_batches",
        "plan",
        "preprocess",
        "push",
        "register_method",
        "score",
        "scorer",
        "serve",
        "show",
        "train",
        "verify",
    ]
    assert all(hasattr(clew, name) for name in clew.__all__)
