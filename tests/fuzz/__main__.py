"""`make fuzz`: hostile inputs and kills until the time is over, then the counts.

python -m tests.fuzz --minutes 30                            # every kind, then kills and limits
python -m tests.fuzz kills --kills 5                         # only kills and limits
python -m tests.fuzz kills --command calibrate --kills 100   # only kills of one command
python -m tests.fuzz shards 17                               # one case again, its folder kept
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["NO_PROXY"] = "127.0.0.1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ.setdefault("OMP_NUM_THREADS", "1")

from tests.fuzz import FUZZ_KILLS, FUZZ_MINUTES
from tests.fuzz.corpus import make_corpus
from tests.fuzz.harness import try_cases
from tests.fuzz.inputs import KINDS
from tests.fuzz.kills import COMMANDS, kill_and_resume
from tests.fuzz.limits import LIMITS, limit_and_resume

ENDINGS = ("ok", "refused", "failed")


def main() -> int:
    options = argparse.ArgumentParser(
        prog="python -m tests.fuzz",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_argument("kind", nargs="?", choices=[*KINDS, "kills"])
    options.add_argument("seed", nargs="?", type=int)
    options.add_argument("--minutes", type=float, default=FUZZ_MINUTES)
    options.add_argument("--first-seed", type=int, default=1000)
    options.add_argument("--kills", type=int, default=FUZZ_KILLS, help="per command")
    options.add_argument("--command", choices=COMMANDS, action="append", help="kill only this one")
    given = options.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    corpus = make_corpus(folder / "corpus")
    if given.seed is not None:
        return _try_one(given.kind, given.seed, corpus, folder)
    failures = 0
    if given.kind != "kills":
        kinds = [given.kind] if given.kind else list(KINDS)
        cases = _until(time.monotonic() + 60 * given.minutes, kinds, given.first_seed)
        failures += _try_all(cases, corpus, folder / "cases")
    if given.kind in (None, "kills"):
        chosen = given.command or list(COMMANDS)
        failures += _kill_all(chosen, given.kills, given.first_seed, corpus, folder / "kills")
    if given.kind in (None, "kills") and not given.command:
        failures += _limit_all(given.kills // 30, given.first_seed, corpus, folder / "limits")
    shutil.rmtree(folder)
    return int(failures > 0)


def _try_one(kind: str, seed: int, corpus: Path, folder: Path) -> int:
    (outcome,) = try_cases([(kind, seed)], corpus, folder / "cases", keep=True)
    _say(f"{outcome}\n{outcome.ended}; kept in {folder / 'cases'}")
    return int(outcome.ended == "failed")


def _try_all(cases: Iterator[tuple[str, int]], corpus: Path, folder: Path) -> int:
    counts: Counter[tuple[str, str]] = Counter()
    for outcome in try_cases(cases, corpus, folder):
        counts[outcome.kind, outcome.ended] += 1
        if outcome.ended == "failed":
            _say(f"{outcome} [{outcome.cpu_seconds:.1f} s, {outcome.megabytes} MB]\n")
    _say(f"{'kind':<16}" + "".join(f"{name:>9}" for name in ("cases", *ENDINGS)))
    for kind in dict.fromkeys(kind for kind, _ in counts):
        found = [counts[kind, ended] for ended in ENDINGS]
        _say(f"{kind:<16}" + "".join(f"{number:>9,}" for number in (sum(found), *found)))
    return sum(number for (_, ended), number in counts.items() if ended == "failed")


def _kill_all(commands: list[str], kills: int, seed: int, corpus: Path, folder: Path) -> int:
    failures = 0
    _say(f"{'command':<18}{'kills':>9}{'resumed':>9}{'different':>11}")
    for command in commands:
        home = folder / command.replace(" ", "-")
        home.mkdir(parents=True)
        killed = kill_and_resume(command, kills, seed, corpus, home)
        failures += bool(killed.problems)
        _say(f"{command:<18}{killed.kills:>9}{killed.completed:>9}{len(killed.problems):>11}")
        for problem in killed.problems:
            _say(f"  {problem}")
    return failures


def _limit_all(rounds: int, seed: int, corpus: Path, folder: Path) -> int:
    failures = 0
    _say(f"{'command':<18}{'limited':>9}{'different':>20}")
    for command in (name for name, words in COMMANDS.items() if isinstance(words[0], str)):
        home = folder / command.replace(" ", "-")
        home.mkdir(parents=True)
        problems = limit_and_resume(command, rounds, seed, corpus, home)
        failures += len(problems)
        _say(f"{command:<18}{rounds * len(LIMITS):>9}{len(problems):>20}")
        for problem in problems:
            _say(f"  {problem}")
    return failures


def _until(deadline: float, kinds: list[str], seed: int) -> Iterator[tuple[str, int]]:
    while time.monotonic() < deadline:
        yield from ((kind, seed) for kind in kinds)
        seed += 1


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
