"""The size of the squares and where they are kept are chosen, with a reason."""

from pathlib import Path

import pytest

from clew.base.errors import InputError
from clew.engine.plan import Gpu, Machine
from clew.patterns.cache.build import choose_size
from clew.patterns.cache.samples import choose_place
from clew.patterns.photos import find_classes
from tests.patterns.cache.pictures import make_folder, make_photo

GB = 10**9


def machine(memory: int, gpu: int | None = None) -> Machine:
    gpus = (
        [Gpu(name="a GPU", memory_bytes=2 * gpu, free_bytes=gpu, capability=(9, 0))] if gpu else []
    )
    return Machine(
        cores=2, free_memory_bytes=memory, bf16_instructions="", gpus=tuple(gpus), cannot_compile=""
    )


@pytest.mark.parametrize(
    ("needed", "wanted", "device", "place"),
    [
        (3 * GB, "auto", "cuda", "gpu"),
        (3 * GB, "auto", "cuda:0", "gpu"),
        (4 * GB, "auto", "cuda", "ram"),
        (3 * GB, "auto", "cpu", "ram"),
        (3 * GB, "ram", "cuda", "ram"),
        (3 * GB, "disk", "cuda", "disk"),
        (9 * GB, "auto", "cuda", "disk"),
        (9 * GB, "ram", "cpu", "ram"),
        (15 * GB, "ram", "cpu", "disk"),
    ],
)
def test_fastest_place_with_room_is_chosen(
    needed: int, wanted: str, device: str, place: str
) -> None:
    here = machine(16 * GB, gpu=10 * GB)
    assert choose_place(needed, wanted=wanted, device=device, machine=here).place == place


def test_reason_gives_the_sizes() -> None:
    chosen = choose_place(15 * GB, wanted="ram", machine=machine(16 * GB))
    assert chosen.reason == (
        '`cache="ram"` does not fit: 15 GB of images, 16 GB of free memory; the images '
        "may use at most 80% of it"
    )


def test_several_processes_share_the_memory() -> None:
    assert choose_place(3 * GB, machine=machine(16 * GB), processes=4).place == "disk"


def test_unknown_place_is_refused() -> None:
    with pytest.raises(InputError, match='cache is "tape": choose from: auto, ram, disk'):
        choose_place(1, wanted="tape")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sides", "size"),
    [((8, 9), 32), ((28, 28), 32), ((50, 100, 110), 96), ((400, 30, 300), 128)],
)
def test_size_follows_the_median_photo(tmp_path: Path, sides: tuple[int, ...], size: int) -> None:
    for number, side in enumerate(sides):
        make_photo(tmp_path / "ab"[number % 2] / f"{number}.png", number, side=side)
    assert choose_size(find_classes(tmp_path)) == size


def test_faulty_photos_do_not_affect_the_size(tmp_path: Path) -> None:
    make_folder(tmp_path, 3)
    for number in range(5):
        (tmp_path / "cats" / f"no {number}.jpg").write_text("no picture")
    assert choose_size(find_classes(tmp_path)) == 32
