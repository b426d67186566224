"""A page in a real browser, where there is one."""

import shutil
import subprocess
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
