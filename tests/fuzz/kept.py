"""Hostile detector folders, as `clew compare` keeps them: edited by somebody who also corrects the
checksums, so that what they protect from accidents does not protect the checks behind them."""

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

from clew.storage.hashing import hash_file, hash_text
from tests.fuzz.harness import Refused
from tests.fuzz.mutations import edit_bytes, edit_file, edit_header, edit_json, replace_entry

_JSON, _WEIGHTS = "detector.json", "detector.safetensors"


def detectors(chance: Random, corpus: Path, folder: Path) -> Callable[[], None]:
    """A detector folder, loaded and asked for the risk of an answer."""
    kept = sorted((corpus / "compared" / "detectors").iterdir())
    home = Path(shutil.copytree(chance.choice(kept), folder / "model"))
    name = chance.choice((_JSON, _JSON, _JSON, _WEIGHTS))
    if chance.random() < 0.1:
        others = [path / name for path in kept if path.name != home.name]
        replace_entry(chance, home / name, others, folder / "outside")
    elif name == _JSON:
        edit_file(chance, home / name, chance.choice((edit_json, edit_json, edit_bytes)))
    else:
        edit_file(chance, home / name, chance.choice((edit_header, edit_header, edit_bytes)))
    if chance.random() < 0.9:
        _correct_checksums(home)
    return lambda: _assess(home)


def _correct_checksums(home: Path) -> None:
    if not all((home / name).is_file() for name in (_JSON, _WEIGHTS)):
        return
    # What is not a JSON object anymore, nobody could correct.
    with suppress(ValueError, TypeError, AttributeError, RecursionError, OSError):
        edit_file(Random(), home / _JSON, lambda _, text: _sign(text, hash_file(home / _WEIGHTS)))


def _sign(text: bytes, weights: str) -> bytes:
    about = {**json.loads(text), "weights_sha256": weights}
    about.pop("sha256", None)
    return json.dumps({**about, "sha256": hash_text(json.dumps(about, sort_keys=True))}).encode()


def _assess(home: Path) -> None:
    from clew import ClewError, load_detector
    from clew.hallucination.detectors.data import BlankAnswer

    try:
        detector = load_detector(home)
        blank = BlankAnswer(detector.sample_shape, detector.fields)
        risks = [] if detector.scorer is None else detector.assess(_Ended(blank))
    except ClewError as error:
        raise Refused(str(error)[:2000]) from None
    assert -1 <= detector.threshold <= 1, f"threshold {detector.threshold}"
    for risk in risks:
        assert risk.risk is None or 0 <= risk.risk <= 1, f"risk {risk}"


class _Ended:
    """An answer with the reason why it ended."""

    stop_reasons = ("sentence",)

    def __init__(self, answer: object) -> None:
        self._answer = answer

    def __getattr__(self, name: str) -> object:
        return getattr(self._answer, name)
