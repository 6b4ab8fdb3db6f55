"""A headless Chromium: what a page shows, what it asked for, what it complained of."""

import base64
import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

import pytest
from selenium import webdriver
from selenium.common.exceptions import (
    ElementClickInterceptedException,
    ElementNotInteractableException,
    NoSuchElementException,
    StaleElementReferenceException,
)
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

T = TypeVar("T")
NOT_YET = (
    ElementClickInterceptedException,
    NoSuchElementException,
    StaleElementReferenceException,
    ElementNotInteractableException,
)

Theme = Literal["light", "dark"]
WAIT_SECONDS = 20.0
PHONE, DESKTOP = (390, 844), (1440, 900)

needs_browser = pytest.mark.skipif(
    not (shutil.which("chromium") and shutil.which("chromedriver")),
    reason="chromium and chromedriver are not installed (Debian: chromium, chromium-driver)",
)


class Browser:
    """One window. `url` is the origin that it may talk to."""

    def __init__(self, driver: webdriver.Chrome, url: str) -> None:
        self.driver = driver
        self.url = url

    def open(self, path: str) -> None:
        """Load a page of the daemon."""
        self.driver.get(self.url + path)

    def look(self, width: int, height: int, theme: Theme) -> None:
        """Show pages in that size, in pixels, and that theme, as a phone or a desktop would."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        features = [{"name": "prefers-color-scheme", "value": theme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def find(self, selector: str) -> WebElement:
        """The element of that selector, once it is there."""
        return self.until(lambda: self.driver.find_element(By.CSS_SELECTOR, selector))

    def text(self, selector: str) -> str:
        """What that element says now."""
        return self.until(lambda: self.find(selector).text)

    def click(self, selector: str) -> None:
        """Click it, once it can be clicked."""

        def act() -> bool:
            self.find(selector).click()
            return True

        self.until(act)

    def script(self, code: str, *arguments: Any) -> Any:
        """Run a function body in the page."""
        return self.driver.execute_script(code, *arguments)

    def picture_of(self, first: str, last: str) -> bytes:
        """A PNG of the cards from the one of the first selector to the one of the last."""
        places = self.script(
            "return arguments[0].map((one) => {"
            "const box = document.querySelector(one).closest('.card').getBoundingClientRect();"
            "return {x: box.x + scrollX, y: box.y + scrollY, width: box.width, end: box.bottom"
            " + scrollY}})",
            [first, last],
        )
        start, end = places
        clip = {
            "x": start["x"] - 8,
            "y": start["y"] - 8,
            "width": start["width"] + 16,
            "height": end["end"] - start["y"] + 16,
            "scale": 1,
        }
        options = {"format": "png", "clip": clip, "captureBeyondViewport": True}
        answer = self.driver.execute_cdp_cmd("Page.captureScreenshot", options)
        return base64.b64decode(answer["data"])

    def until(self, look: Callable[[], T], seconds: float = WAIT_SECONDS) -> T:
        """What `look` answers, once that is something; elements may come and go meanwhile."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with suppress(*NOT_YET):
                if found := look():
                    return found
            time.sleep(0.05)
        raise AssertionError(f"not seen in {seconds} s; the console says {self.complaints()}")

    def complaints(self) -> list[str]:
        """What the console holds since the last time, errors and warnings."""
        return [str(entry["message"]) for entry in self._log("browser")]

    def asked(self) -> list[str]:
        """The addresses that were asked for since the last time."""
        found = []
        for entry in self._log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                found.append(str(message["params"]["request"]["url"]))
        return found

    def _log(self, name: str) -> list[dict[str, Any]]:
        driver: Any = self.driver  # whose logs have no types
        return list(driver.get_log(name))

    def strangers(self) -> list[str]:
        """Of these, the ones that are not of the daemon."""
        home = urlsplit(self.url).netloc
        return [url for url in self.asked() if urlsplit(url).netloc != home]


@contextmanager
def browser(url: str, downloads: Path) -> Iterator[Browser]:
    """A window on the daemon at `url`; downloads land in that folder."""
    options = Options()
    options.binary_location = str(shutil.which("chromium"))
    for flag in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "disable-gpu"):
        options.add_argument(f"--{flag}")
    options.add_argument("--disable-background-networking")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    options.add_experimental_option("prefs", {"download.default_directory": str(downloads)})
    driver = webdriver.Chrome(options, Service(str(shutil.which("chromedriver"))))
    try:
        yield Browser(driver, url)
    finally:
        driver.quit()
