"""Chromium as the browser tests use it, and pages that remember what went wrong in them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SCREENSHOTS = ROOT / "build" / "screenshots"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
INSTALL = (
    "Chromium is not here: apt-get install chromium (Debian, Ubuntu), "
    "or python -m playwright install chromium"
)
# Nothing but the pages under test: no updates, no first-run pages, no GPU process.
ARGUMENTS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --force-color-profile=srgb"
).split()
# The slowest step that these tests wait for is a kernel that compiles on a loaded machine.
TIMEOUT_MS = 60_000


def executable(playwright: Any) -> str | None:
    """The browser of ``FUSION_ADVISOR_CHROMIUM``, of PATH, or playwright's own."""
    named = os.environ.get("FUSION_ADVISOR_CHROMIUM")
    own = playwright.chromium.executable_path
    found = [named, *(shutil.which(name) for name in NAMES), own]
    return next((path for path in found if path and Path(path).exists()), None)


@contextmanager
def launched() -> Iterator[Any]:
    """A headless browser; skips the test, with what to install, where there is none."""
    import pytest
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = executable(playwright)
        if path is None:
            pytest.skip(INSTALL)
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


@dataclass
class Watched:
    """What a page logged as an error, threw, or asked of the network."""

    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def watch(self, page: Any) -> None:
        page.on("pageerror", lambda error: self.errors.append(f"thrown: {error} {error.stack}"))
        page.on("console", self._note)
        page.on("request", lambda request: self.requests.append(request.url))

    def _note(self, message: Any) -> None:
        if message.type == "error":
            place = message.location.get("url", "")
            self.errors.append(f"{message.text} ({place})")


def screenshot(page: Any, name: str) -> Path:
    """A picture of the page in ``build/screenshots``."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    path = SCREENSHOTS / f"{name}.png"
    page.screenshot(path=str(path))
    return path
