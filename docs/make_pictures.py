"""Draws docs/images from the pages of the demo in headless Chromium: `make demo pictures`."""

import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

IMAGES = Path(__file__).with_name("images")
WIDTH = 1200
# Page of the demo, the section that the picture starts with, the picture and its height in pixels.
PICTURES = (
    ("comparison/report.html", "methods", "comparison.png", 775),
    ("answer-4.html", "", "answer.png", 600),
)


def draw(page: Path, section: str, picture: Path, height: int) -> None:
    """A part of a page as a PNG of 64 colors."""
    with tempfile.TemporaryDirectory() as scratch:
        shot, frame = Path(scratch) / "shot.png", Path(scratch) / "frame.html"
        # In a frame the page scrolls to its section; a screenshot of the page itself would not.
        frame.write_text(
            f'<body style="margin:0"><iframe src="{page.resolve().as_uri()}#{section}" '
            f'width="{WIDTH}" height="{height}" style="border:0"></iframe>'
        )
        command = [
            *("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            *(f"--user-data-dir={scratch}", f"--window-size={WIDTH},{height}"),
            *(f"--screenshot={shot}", "--virtual-time-budget=4000"),
            frame.as_uri(),
        ]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        with Image.open(shot) as image:
            small = image.convert("RGB").quantize(64, dither=Image.Dither.NONE)
    small.save(picture, optimize=True)


if __name__ == "__main__":
    demo = Path(sys.argv[1] if len(sys.argv) > 1 else "demo")
    for page, section, picture, height in PICTURES:
        draw(demo / page, section, IMAGES / picture, height)
