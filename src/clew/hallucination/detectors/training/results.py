"""results.json: what every network of an output folder reached, and how it was made."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import filelock

from clew.engine.versions import read_versions
from clew.errors import SettingsMismatchError, StoreError
from clew.hallucination.detectors.registry import NETWORKS
from clew.storage.writing import replace_file

RESULTS_FILE = "results.json"
# What networks over graphs stand on besides.
LIBRARY = "torch-geometric"

Run = dict[str, Any]


class ResultsFile:
    """The runs of one folder (which exists), one a network; others stay when one is added."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / RESULTS_FILE

    def find(self, model: str) -> Run | None:
        return next((run for run in self._read()["runs"] if run["model"] == model), None)

    def refuse_other_data(self, data: dict[str, Any], trained_anew: Iterable[str]) -> None:
        """Raises SettingsMismatchError when the runs that stay were made on other samples: what
        stands in one table must have been measured on the same."""
        saved = self._read()
        stay = [run["model"] for run in saved["runs"] if run["model"] not in set(trained_anew)]
        if not stay or saved["data"] == data:
            return
        before, now = (_describe(described) for described in (saved["data"], data))
        raise SettingsMismatchError(
            f'"{self.path.parent}" has results of {" and ".join(stay)} on other samples: {before} '
            f"there, {now} now. Choose another `output_dir`, or train all of them anew with "
            f"`overwrite=True`."
        )

    def add(self, run: Run, *, data: dict[str, Any], settings: dict[str, Any]) -> None:
        """Put the run in the place of an earlier one of the same network."""
        with self._locked():
            runs = {old["model"]: old for old in self._read()["runs"]} | {run["model"]: run}
            ordered = [runs.pop(name) for name in NETWORKS if name in runs]
            self._write({"runs": [*ordered, *runs.values()], "data": data, "settings": settings})

    def remove(self, models: Iterable[str]) -> None:
        gone = set(models)
        with self._locked():
            saved = self._read()
            left = [run for run in saved["runs"] if run["model"] not in gone]
            if len(left) < len(saved["runs"]):
                self._write({**saved, "runs": left})

    def _locked(self) -> filelock.BaseFileLock:
        """For the short moment of a change: another network may be trained into the folder."""
        return filelock.FileLock(self.path.parent / ".results.lock")

    def _read(self) -> dict[str, Any]:
        if not self.path.exists():
            return {"runs": [], "data": {}, "settings": {}}
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
            _ = [run["model"] for run in content["runs"]], content["data"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreError(
                f'"{self.path}" cannot be read ({error}): take it away (the networks beside it are '
                f"not touched, and the same command lists them again), or choose another "
                f"`output_dir`."
            ) from None
        return content

    def _write(self, content: dict[str, Any]) -> None:
        ordered = {name: content[name] for name in ("runs", "data", "settings")}
        text = json.dumps(
            {**ordered, "versions": read_versions(LIBRARY)}, indent=1, ensure_ascii=False
        )
        replace_file(self.path, f"{text}\n".encode())


def _describe(data: dict[str, Any]) -> str:
    counts = [f"{name} {sum(of.values()):,}" for name, of in data.items() if isinstance(of, dict)]
    return f"{', '.join(counts)} (questions {data.get('questions', 'unknown')})"
