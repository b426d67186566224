"""The fraction of the data in each split."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from clew.base.errors import InputError

SPLIT_NAMES = ("train", "validation", "test")
# Binary fractions: 0.7 + 0.15 + 0.15 is not quite 1.
_TOLERANCE = 1e-6


@dataclass(frozen=True, kw_only=True)
class Shares:
    """The fractions for training, validation and test; they sum to 1."""

    train: float = 0.7
    validation: float = 0.15
    test: float = 0.15

    def __post_init__(self) -> None:
        if any(not share >= 0 for share in self) or abs(sum(self) - 1) > _TOLERANCE:
            raise InputError(
                f"the fractions {tuple(self)} for train, validation and test are invalid: they "
                "must not be negative, and must sum to 1."
            )

    def __iter__(self) -> Iterator[float]:
        yield from (self.train, self.validation, self.test)

    def __str__(self) -> str:
        return "/".join(f"{100 * share:.10g}" for share in self)

    def pick(self, place: float) -> int:
        """The split that owns a point in [0, 1) when the fractions are laid end to end."""
        borders = list(accumulate(self))
        inside = [index for index, end in enumerate(borders) if place < end]
        return inside[0] if inside else self._last()

    def _last(self) -> int:
        return max(index for index, share in enumerate(self) if share > 0)


def parse_split(text: str) -> Shares:
    """Fractions from text such as "70/15/15", "0.7/0.15/0.15" or "80/20/0"."""
    try:
        numbers = [float(part) for part in text.split("/")]
    except ValueError:
        numbers = []
    total = sum(numbers)
    fits = len(numbers) == 3 and all(number >= 0 for number in numbers)
    for whole in (1.0, 100.0):
        if fits and abs(total - whole) <= _TOLERANCE * whole:
            train, validation, test = (number / whole for number in numbers)
            return Shares(train=train, validation=validation, test=test)
    reason = f": {text} sums to {total:g}" if fits else ""
    raise InputError(
        "use TRAIN/VALIDATION/TEST, three percentages that sum to 100, such as "
        f'`split="70/15/15"`{reason}.',
        setting="split",
        value=text,
    )
