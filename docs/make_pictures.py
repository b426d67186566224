"""Draws docs/images from the pages of the demo in headless Chromium: `make demo pictures`."""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from clew.hallucination.comparison.report.comparison import read_comparison

IMAGES = Path(__file__).with_name("images")
WIDTH = 1200
# Page of the demo, the section that the picture starts with, the picture and its height in pixels.
PICTURES = (
    ("comparison/report.html", "methods", "comparison.png", 775),
    ("answer-4.html", "", "answer.png", 600),
)
SERVED_HEIGHT = 960


def draw(page: Path, section: str, picture: Path, height: int) -> None:
    """A part of a page as a PNG of 64 colors."""
    with tempfile.TemporaryDirectory() as scratch:
        shot, frame = Path(scratch) / "shot.png", Path(scratch) / "frame.html"
        # In a frame the page scrolls to its section; a screenshot of the page itself would not.
        frame.write_text(
            f'<body style="margin:0"><iframe src="{page.resolve().as_uri()}#{section}" '
            f'width="{WIDTH}" height="{height}" style="border:0"></iframe>'
        )
        shoot(frame.as_uri(), shot, height)
        save_small(shot, picture)


def draw_served(demo: Path, picture: Path) -> None:
    """The page of a running server, with the trace of the hallucination that is clearest to the
    detector."""
    found = read_comparison(demo / "comparison")
    row = int((found.test.risks[found.best.name] * found.test.labels).argmax())
    command = [
        *(sys.executable, "-m", "clew", "serve", str(demo / "comparison" / "detector")),
        *("--port", "0", "--traces", str(demo / "traces_data")),
        *("--scores-file", str(demo / "ground_truth_scores.csv")),
        *("--comparisons", str(demo / "comparison")),
    ]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server,
        tempfile.TemporaryDirectory() as scratch,
    ):
        assert server.stdout is not None
        page = next(filter(None, (re.search(r"page: (\S+)", line) for line in server.stdout)))
        shot = Path(scratch) / "shot.png"
        shoot(f"{page[1]}#answers/{found.test.numbers[row]}", shot, SERVED_HEIGHT)
        server.terminate()
        save_small(shot, picture, colors=160)


def shoot(address: str, shot: Path, height: int) -> None:
    command = [
        *("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
        "--disable-background-networking",
        *(f"--user-data-dir={shot.parent}", f"--window-size={WIDTH},{height}"),
        *(f"--screenshot={shot}", "--virtual-time-budget=20000"),
        address,
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=120)


def save_small(shot: Path, picture: Path, colors: int = 64) -> None:
    with Image.open(shot) as image:
        small = image.convert("RGB").quantize(colors, dither=Image.Dither.NONE)
    small.save(picture, optimize=True)


if __name__ == "__main__":
    demo = Path(sys.argv[1] if len(sys.argv) > 1 else "demo")
    for page, section, picture, height in PICTURES:
        draw(demo / page, section, IMAGES / picture, height)
    draw_served(demo, IMAGES / "serve.png")
