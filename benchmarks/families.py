"""What clew does with every causal family of transformers, tiny and with random weights.

    python benchmarks/families.py --out docs/families.md      all families, about ten minutes
    python benchmarks/families.py --only llama mamba          some of them

Each model is saved, loaded by its folder, captured with `clew extract`, compared with plain passes,
and served; families that cannot be built count as failed.
"""

import argparse
import logging
import sys
import tempfile
import tomllib
import warnings
from collections.abc import Sequence
from pathlib import Path

import transformers
from transformers.models.auto import modeling_auto as auto

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.families import Checked, check_family

TEXTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", help="families [default: all]")
    parser.add_argument("--out", type=Path, help="the page to write")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    logging.disable(logging.WARNING)
    causal = sorted(auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    found = [_check(family) for family in given.only or causal]
    images = [] if given.only else [_check(family, images=True) for family in TEXTS["images"]]
    page = _write_page(found, images)
    if given.out is None:
        print(page)
    else:
        given.out.write_text(page, encoding="utf-8")


def _check(family: str, *, images: bool = False) -> Checked:
    with tempfile.TemporaryDirectory() as folder:
        found = check_family(family, Path(folder), images=images)
    # Of some, only the whole has checkpoints.
    if not (found.works or images) and family in TEXTS["images"]:
        return _check(family, images=True)
    print(_row(found), found.reason, file=sys.stderr, flush=True)
    return found


def _write_page(found: Sequence[Checked], images: Sequence[Checked]) -> str:
    working = [one for one in found if one.works]
    share = f"{len(working)} of {len(found)} families ({len(working) / len(found):.0%})"
    values = {"version": transformers.__version__, "share": share}
    parts = [TEXTS["head"].format(**values), _table(working)]
    if images:
        parts += [TEXTS["with_images"], _table([one for one in images if one.works])]
    failed = [one for one in (*found, *images) if not one.works]
    reasons = {one.family: TEXTS["why"].get(one.family, one.reason) for one in failed}
    if reasons:
        listed = "\n".join(f"- `{name}`: {why}" for name, why in reasons.items())
        parts += [TEXTS["failed"], listed]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _table(found: Sequence[Checked]) -> str:
    head = (
        "| family | captures | difference | serves | layers with attention |\n|---|---|---|---|---|"
    )
    return "\n".join([head, *map(_row, found)])


def _row(one: Checked) -> str:
    cells = (
        f"`{one.family}`",
        "yes" if one.captures else "no",
        "" if one.difference is None else f"{one.difference:.0e}",
        "yes" if one.serves else "no",
        f"{one.attention_layers} of {one.layers}",
    )
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
