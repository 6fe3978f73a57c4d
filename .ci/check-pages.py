"""Opens HTML pages in headless Chromium and fails on a page that a reader could not use.

Each page is laid out at 1280 and at 420 pixels, in light and in dark colors. A page fails if the console has an error, if
it loads anything from outside, if it has no table or no plot, if a plot has no mark of data or a mark outside of its frame,
if the letters of a plot are too small to read, or if a table, a plot or the page is wider than the window.

Chromium is driven through two pipes (--remote-debugging-pipe), so that the standard library suffices.

Usage: check-pages.py [--screenshots DIR] PAGE...
"""

import argparse
import base64
import json
import os
import pathlib
import select
import shutil
import subprocess
import sys
import tempfile
import time

WIDTHS = (1280, 420)
SCHEMES = ("light", "dark")
# Longest time until Chromium answers a command, in seconds.
TIMEOUT = 30

# Runs in the page and returns what is wrong. Data has one of the page's colors (`--c0` to `--c6`), axes have the color of
# text.
CHECK = r"""
(() => {
  const bad = [], width = window.innerWidth, shown = (node) => node.getClientRects().length > 0;
  const name = (node) => {
    let place = node;
    while (place && !/^(H[1-6]|SUMMARY)$/.test(place.tagName)) place = place.previousElementSibling || place.parentElement;
    return place ? place.textContent : 'the page';
  };
  for (const details of document.querySelectorAll('details')) details.open = true;
  if (document.documentElement.scrollWidth > width)
    bad.push(`the page is ${document.documentElement.scrollWidth} pixels wide`);
  for (const kind of ['table', 'svg']) {
    const all = [...document.querySelectorAll(kind)].filter(shown);
    if (!all.length) bad.push(`there is no ${kind}`);
    for (const node of all) {
      const box = node.getBoundingClientRect();
      const right = Math.max(box.right, box.left + (kind === 'table' ? node.scrollWidth : 0));
      if (right > width + 0.5 || box.left < -0.5) bad.push(`a ${kind} below "${name(node)}" ends at ${right}`);
      if (kind === 'table' && node.rows.length < 2) bad.push(`the table below "${name(node)}" has no row`);
    }
  }
  let marks = 0;
  for (const svg of [...document.querySelectorAll('svg')].filter(shown)) {
    const frame = svg.getBoundingClientRect();
    const isData = (node) => /--c\d/.test((node.getAttribute('fill') || '') + (node.getAttribute('stroke') || ''));
    const data = [...svg.querySelectorAll('circle,rect,polyline,polygon,line,path')].filter(isData);
    const sized = data.filter((node) => { const b = node.getBBox(); return b.width > 0 || b.height > 0; });
    if (!sized.length) bad.push(`the plot below "${name(svg)}" is empty`);
    marks += sized.length;
    for (const node of data) {
      const b = node.getBoundingClientRect();
      if (!(b.left >= frame.left - 2 && b.right <= frame.right + 2 && b.top >= frame.top - 2 && b.bottom <= frame.bottom + 2)) {
        bad.push(`the plot below "${name(svg)}" has a mark outside of its frame`);
        break;
      }
    }
    const scale = frame.width / svg.viewBox.baseVal.width;
    for (const text of svg.querySelectorAll('text')) {
      const size = parseFloat(getComputedStyle(text).fontSize) * scale;
      if (size < 10) { bad.push(`the letters of the plot below "${name(svg)}" are ${size.toFixed(1)} pixels high`); break; }
    }
  }
  return JSON.stringify({ bad: [...new Set(bad)], marks, height: document.documentElement.scrollHeight });
})()
"""


class Browser:
    """A headless Chromium with one blank page."""

    def __init__(self, profile):
        program = shutil.which("chromium") or sys.exit("pages: chromium is not installed")
        here, its = os.pipe(), os.pipe()
        # Chromium reads commands from descriptor 3 and answers on descriptor 4.
        shell = f'exec "$@" 3<&{here[0]} 4>&{its[1]}'
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
        flags += ["--no-first-run", "--disable-background-networking", "--disable-component-update"]
        command = ["bash", "-c", shell, "chromium", program, *flags, "--remote-debugging-pipe", f"--user-data-dir={profile}"]
        self.process = subprocess.Popen(command, pass_fds=(here[0], its[1]), stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(here[0])
        os.close(its[1])
        self.write, self.read = here[1], its[0]
        self.rest, self.events, self.number, self.session = b"", [], 0, None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def message(self):
        """The next message of Chromium."""
        end = time.monotonic() + TIMEOUT
        while b"\0" not in self.rest:
            if not select.select([self.read], [], [], max(0, end - time.monotonic()))[0]:
                sys.exit("pages: chromium does not answer")
            read = os.read(self.read, 1 << 20)
            if not read:
                sys.exit(f"pages: chromium ended with {self.process.wait()}")
            self.rest += read
        text, self.rest = self.rest.split(b"\0", 1)
        return json.loads(text)

    def call(self, method, **parameters):
        """Sends a command and returns its result; events on the way are kept."""
        self.number += 1
        command = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            command["sessionId"] = self.session
        os.write(self.write, json.dumps(command).encode() + b"\0")
        while True:
            message = self.message()
            if message.get("id") == self.number:
                if "error" in message:
                    sys.exit(f"pages: {method}: {message['error']}")
                return message["result"]
            self.events.append(message)

    def open(self, url, width):
        """Loads a page at a width, and waits until it is complete."""
        self.events = []
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.call("Page.navigate", url=url)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self.message())

    def close(self):
        os.close(self.write)
        self.process.terminate()
        self.process.wait()


def complaints(events, url):
    """What the console says, and what the page has loaded beside itself."""
    for event in events:
        method, parameters = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            yield f"exception: {parameters['exceptionDetails'].get('text')}"
        if method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "assert"):
            yield f"console: {parameters['args']}"
        if method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            yield f"console: {parameters['entry']['text']}"
        if method == "Network.requestWillBeSent":
            loaded = parameters["request"]["url"]
            if loaded != url and not loaded.startswith("data:"):
                yield f"loads {loaded[:80]}"


def check(browser, page, screenshots):
    """Lays a page out in every way; returns what is wrong."""
    url, bad, marks = page.resolve().as_uri(), [], 0
    for width in WIDTHS:
        for scheme in SCHEMES:
            features = [{"name": "prefers-color-scheme", "value": scheme}]
            browser.call("Emulation.setEmulatedMedia", features=features)
            browser.open(url, width)
            value = browser.call("Runtime.evaluate", expression=CHECK, returnByValue=True)
            if "exceptionDetails" in value:
                sys.exit(f"pages: the check failed: {value['exceptionDetails']}")
            found = json.loads(value["result"]["value"])
            marks = found["marks"]
            bad += [f"{page.name} at {width}, {scheme}: {text}" for text in [*complaints(browser.events, url), *found["bad"]]]
            if screenshots:
                clip = {"x": 0, "y": 0, "width": width, "height": min(found["height"], 16000), "scale": 1}
                image = browser.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"]
                (screenshots / f"{page.stem}-{width}-{scheme}.png").write_bytes(base64.b64decode(image))
    print(f"pages: {page}: {marks} marks of data, {len(bad)} complaints")
    return bad


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--screenshots", type=pathlib.Path)
    parser.add_argument("pages", nargs="+", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.screenshots:
        arguments.screenshots.mkdir(parents=True, exist_ok=True)
    # The browser may still write into its profile while it ends.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(profile)
        bad = [text for page in arguments.pages for text in check(browser, page, arguments.screenshots)]
        browser.close()
    for text in bad:
        print(f"pages: {text}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
