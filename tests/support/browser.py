"""A real browser, driven over a pipe of its own, if there is one: pages are loaded in it, measured and pictured."""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DEADLINE_S = 60.0

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

_WIDEST = """
(() => {
  const inside = (each) => { // what scrolls, or is not shown, makes the page no wider
    for (let up = each; up; up = up.parentElement) {
      const style = getComputedStyle(up);
      if (style.overflowX !== "visible" || style.display === "none") return true;
    }
    return false;
  };
  const right = [...document.body.querySelectorAll("*")].filter((each) => !inside(each))
    .map((each) => [each.getBoundingClientRect().right, each.outerHTML.slice(0, 80)]);
  const over = right.filter(([edge]) => edge > innerWidth + 0.5);
  return JSON.stringify({over, scrolls: document.documentElement.scrollWidth - innerWidth});
})()
"""


@dataclass
class Browser:
    """One page of a browser; what went wrong in it, and what it asked the network for."""

    _to: int
    _from: int
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    _session: str = ""
    _rest: bytes = b""
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _loaded: int = 0

    def open(self, page: Path, *, width: int, height: int = 900, dark: bool = False) -> None:
        """Load a page in a window of this width, with everything unfolded."""
        if not self._session:
            target = self.do("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.do("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.do(f"{domain}.enable")
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.do("Emulation.setEmulatedMedia", features=scheme)
        self.do("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        before = self._loaded
        self.do("Page.navigate", url=page.as_uri())
        self._until(lambda: self._loaded > before)

    def value(self, expression: str) -> Any:
        """What an expression of JavaScript comes to in the page; what a promise of it does."""
        found = self.do("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        return found["result"].get("value")

    def too_wide(self) -> list[str]:
        """What stands out of the window on its right, with everything unfolded."""
        self.value("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        self.value(
            "document.querySelectorAll('.step').forEach((each) => { each.style.contentVisibility = 'visible'; })"
        )
        found = json.loads(self.value(_WIDEST))
        return [f"{edge:.0f}: {html}" for edge, html in found["over"]] + (
            [f"the page scrolls by {found['scrolls']}"] if found["scrolls"] > 0 else []
        )

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """Write what is seen into a file."""
        data = self.do("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))

    def do(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command of the DevTools protocol, and wait for what it returns."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        found: list[dict[str, Any]] = []

        def is_answered() -> bool:
            return bool(found)

        self._answer = number, found
        self._until(is_answered)
        assert "error" not in found[0], found[0]
        result: dict[str, Any] = found[0]["result"]
        return result

    _answer: tuple[int, list[dict[str, Any]]] = (0, [])

    def _until(self, holds: Any) -> None:
        end = time.monotonic() + DEADLINE_S
        while not holds():
            ready, _, _ = select.select([self._from], [], [], max(end - time.monotonic(), 0))
            assert ready, "the browser does not answer"
            *whole, self._rest = (self._rest + os.read(self._from, 1 << 20)).split(b"\0")
            for each in whole:
                self._hear(json.loads(each))

    def _hear(self, message: dict[str, Any]) -> None:
        if message.get("id") == self._answer[0]:
            self._answer[1].append(message)
        params = message.get("params", {})
        match message.get("method"):
            case "Page.loadEventFired":
                self._loaded += 1
            case "Runtime.exceptionThrown" | "Runtime.consoleAPICalled":
                self.complaints.append(json.dumps(params)[:500])
            case "Log.entryAdded":
                self.complaints.append(json.dumps(params["entry"])[:500])
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])


@contextmanager
def browser(home: Path) -> Iterator[Browser]:
    """A browser with a home of its own, for as long as the block lasts."""
    assert CHROMIUM is not None
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()

    # It reads from descriptor 3 and writes to 4.
    script = 'exec 3<&"$1" 4>&"$2"; shift 2; exec "$@"'
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe"]
    flags += ["--no-first-run", "--disable-extensions", "--disable-background-networking", f"--user-data-dir={home}"]
    process = subprocess.Popen(
        ["bash", "-c", script, "bash", str(to_read), str(from_write), CHROMIUM, *flags],
        pass_fds=[to_read, from_write],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={"PATH": os.environ["PATH"], "HOME": str(home), "TZ": "UTC"},
    )
    os.close(to_read)
    os.close(from_write)
    try:
        yield Browser(to_write, from_read)
    finally:
        os.close(to_write)  # which ends it
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(from_read)
