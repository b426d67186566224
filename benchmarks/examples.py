"""What the README's examples of `clew ask` and `clew check` print.

    python benchmarks/examples.py --out benchmarks/figures/examples.json

Runs the README's own commands, with the handbook that docs/guides/grounded.md writes. With AMX, the
reader computes in bfloat16: risks differ by less than 0.01, but spans may be longer or shorter.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from detection import write_figures

ROOT = Path(__file__).resolve().parents[1]
README, GUIDE = ROOT / "README.md", ROOT / "docs/guides/grounded.md"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the printed lines")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run(find_command(GUIDE, "echo"), folder)
        commands = {name: find_command(README, f"clew {name}") for name in ("ask", "check")}
        printed = {name: run(command, folder) for name, command in commands.items()}
    print(*printed["ask"], *printed["check"], sep="\n")
    write_figures(args.out, printed)


def find_command(page, start):
    """The first in a console block that starts so, with the lines that a backslash continues."""
    text = page.read_text(encoding="utf-8")
    return re.search(rf"^\$ ({start} (?:.*\\\n)*.*)$", text, re.MULTILINE)[1]


def run(command, folder):
    command = re.sub("^clew", f"'{sys.executable}' -m clew", command)
    done = subprocess.run(
        command, shell=True, cwd=folder, check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout.splitlines()


if __name__ == "__main__":
    main()
