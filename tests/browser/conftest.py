"""A real Chromium without a window, one for all tests of this folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from helpers import MARK, missing


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A driver. It is started without this test's mark: it outlives the test."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    driver = shutil.which("chromedriver")
    if chromium is None or driver is None:
        missing("chromium and chromedriver are not installed")
    selenium = pytest.importorskip("selenium.webdriver")
    options = selenium.ChromeOptions()
    options.binary_location = chromium
    for word in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1200,900"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    environment = {name: value for name, value in os.environ.items() if name != MARK}
    started = selenium.Chrome(options, selenium.ChromeService(driver, env=environment))
    yield started
    started.quit()
