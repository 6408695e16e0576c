"""A headless Chromium for tests of pages, driven by Playwright; without one, tests that need it are skipped."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

VARIABLE = "FINDTTA_CHROMIUM"  # names the executable, if it is not on the path
_NAMES = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome-headless-shell",
    "chrome",
)
_FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-quic",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
)  # fmt: skip


def find_chromium() -> str | None:
    """Return the executable of the system's Chromium or Chrome, or None."""
    return os.environ.get(VARIABLE) or next((path for name in _NAMES if (path := shutil.which(name))), None)


@contextmanager
def launched() -> Iterator[Any]:
    """Launch a browser for the block, or skip the test if Playwright or a Chromium is missing.

    Yields:
        A ``playwright.sync_api.Browser``; use it in a fixture of module scope, since launching takes a second.
    """
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    executable = find_chromium()
    if executable is None:
        pytest.skip(f"no Chromium: install one, or name it in ${VARIABLE}")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=list(_FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def page(browser: Any, **options: Any) -> Iterator[Any]:
    """Open an empty tab for the block; after it, nothing may have gone wrong in the tab.

    Args:
        browser: What :func:`launched` gives.
        **options: Of the tab: ``viewport={"width": 1280, "height": 900}``, ``color_scheme="dark"``,
            ``java_script_enabled=False``, ... (see Playwright's ``Browser.new_context``).

    Yields:
        A ``playwright.sync_api.Page`` with two more attributes: ``complaints``, errors of scripts and messages on
        the console (the block may clear those that it expects), and ``requests``, the addresses it asked for.
    """
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
    context.set_default_timeout(120_000)  # on a busy machine
    try:
        tab = context.new_page()
        tab.complaints, tab.requests = [], []
        tab.on("pageerror", lambda error: tab.complaints.append(str(error)))
        tab.on("console", lambda message: tab.complaints.append(message.text))
        tab.on("request", lambda request: tab.requests.append(request.url))
        yield tab
        assert tab.complaints == []
    finally:
        context.close()
