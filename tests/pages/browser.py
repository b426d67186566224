"""A page in a real browser, where there is one."""

import html
import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium here: install the package chromium"
)


def open_page(page: Path, *flags: str) -> tuple[str, str]:
    """The document as the browser built it, and what it had to complain about."""
    done = subprocess.run(
        [
            str(CHROMIUM),
            *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
            *("--disable-dev-shm-usage", "--enable-logging=stderr", "--log-level=0"),
            *(f"--user-data-dir={page.parent / 'profile'}", *flags, "--dump-dom", page.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    )
    complaints = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return done.stdout, "\n".join(complaints)


_MEASURE = """
<script>
  addEventListener("load", () => {
    const root = document.documentElement, main = document.querySelector("main");
    const style = getComputedStyle(main), edge = main.getBoundingClientRect().left;
    const margin = edge + parseFloat(style.paddingLeft);
    const parts = [...document.querySelectorAll("main section > *, main table, main .scroll")];
    const crossing = parts.filter((part) => part.getBoundingClientRect().left < margin - 1);
    document.body.dataset.layout = JSON.stringify({
      window: root.clientWidth,
      content: root.scrollWidth,
      crossing: crossing.map((part) => part.outerHTML.slice(0, 60)),
    });
  });
</script>
"""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Widths in pixels; `crossing` are the parts that begin left of the text's margin."""

    window: int
    content: int
    crossing: list[str]

    @property
    def fits(self) -> bool:
        return self.content <= self.window and not self.crossing


def measure_layout(page: Path, *, width: int) -> Layout:
    """How the page is laid out in a window of `width` pixels, at least 500."""
    copy = page.with_name(f"{page.stem}-{width}.html")
    text = page.read_text(encoding="utf-8").replace("</body>", f"{_MEASURE}</body>")
    copy.write_text(text, encoding="utf-8")
    document, complaints = open_page(copy, f"--window-size={width},2000")
    found = re.search(r'data-layout="([^"]*)"', document)
    assert complaints == "" and found
    return Layout(**json.loads(html.unescape(found[1])))
