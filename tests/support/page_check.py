#!/usr/bin/env python3
"""page_check.py URL [--ready EXPRESSION] [--within SELECTOR] [--quiet SECONDS]: checks that everyone can use a page.

Opens the page in Chromium, wide and narrow, light and dark, and reads its accessibility tree: headings, landmarks,
tables, texts of charts, live regions, the keyboard's way, contrasts. Prints each problem; exit status 1 if there is one.
EXPRESSION is JavaScript that is true once the page is complete. SELECTOR limits what is checked to a part of the page.
Tests of the dashboard and of compare's report run it (tests/app/browser.cpp), the docs' site imports it.
"""
import argparse
import fcntl
import json
import os
import pathlib
import select
import subprocess
import sys
import tempfile
import time

CHROMIUM = "/usr/bin/chromium"
LIMIT_S = 100          # for a whole page, on a busy machine
WIDTHS = (1280, 640, 320)  # 640: the same window at a zoom of 200 %
HEIGHT = 6000          # so that all of the page is in view
TEXT_CONTRAST, LINE_CONTRAST = 4.5, 3.0  # WCAG 2, AA

# Functions for the expressions below. A part of the page is `part`.
LIBRARY = """
const part = document.querySelector(SELECTOR);
const all = (selector) => [...part.querySelectorAll(selector)];
const style = (element) => getComputedStyle(element);
const scrolls = (element) => ["auto", "scroll"].includes(style(element).overflowX) && element.scrollWidth > element.clientWidth + 1
  || ["auto", "scroll"].includes(style(element).overflowY) && element.scrollHeight > element.clientHeight + 1;
const unseen = (element) => element !== null && (style(element).clipPath !== "none" || unseen(element.parentElement));
const shown = (element) => element.checkVisibility({ visibilityProperty: true, opacityProperty: true }) && !unseen(element);
const name = (element) => `<${element.localName}${element.id ? ` id=${element.id}` : ""}${
  element.className ? ` class="${element.className}"` : ""}> ${JSON.stringify(element.textContent.trim().slice(0, 40))}`;
// The elements with text of their own, and that text's rectangles.
const texts = () => {
  const out = new Map();
  const walker = document.createTreeWalker(part, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    if (!node.data.trim() || ["SCRIPT", "STYLE", "NOSCRIPT"].includes(element.tagName) || !shown(element)) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    out.set(element, [...(out.get(element) || []), ...range.getClientRects()]);
  }
  return out;
};
"""
CONTRAST = """
const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
const rgba = (text) => {
  canvas.clearRect(0, 0, 1, 1);
  canvas.fillStyle = text;
  canvas.fillRect(0, 0, 1, 1);
  const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
  return [r, g, b, a / 255];
};
const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
const luminance = (colour) => [0.2126, 0.7152, 0.0722].reduce((sum, weight, i) => {
  const part = colour[i] / 255;
  return sum + weight * (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
}, 0);
const contrast = (colour, ground) => {
  const [low, high] = [luminance(over(colour, ground)), luminance(ground)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
};
// Elements from the top down; the page's own ground is the last.
const ground = (stack) => stack.map((element) => rgba(style(element).backgroundColor)).concat([rgba(style(document.body).backgroundColor)])
  .reverse().reduce((below, colour) => over(colour, below), [255, 255, 255, 1]);
const ancestors = (element) => (element === null ? [] : [element, ...ancestors(element.parentElement)]);
const groundAt = (element, x, y) => {
  const stack = document.elementsFromPoint(x, y);
  return ground(stack.includes(element) ? stack.slice(stack.indexOf(element)) : ancestors(element));
};
const found = [];
for (const [element, rectangles] of texts()) {
  if (element.closest("[disabled], .headerlink")) continue;
  for (const { left, top, width, height } of rectangles.slice(0, 4)) {
    for (const x of [left + 1, left + width / 2]) {
      const value = contrast(rgba(style(element).color), groundAt(element, x, top + height / 2));
      if (value < LIMIT - 0.005) found.push(`${name(element)}: contrast ${value.toFixed(2)} of its text, ${style(element).color}`);
    }
  }
}
if (typeof Chart !== "undefined") {
  for (const chart of Object.values(Chart.instances)) {
    const below = ground(ancestors(chart.canvas));
    const check = (what, colour, limit) => {
      if (typeof colour !== "string") return;
      const value = contrast(rgba(colour), below);
      if (value < limit - 0.005) found.push(`chart ${chart.canvas.id}: contrast ${value.toFixed(2)} of ${what}, ${colour}`);
    };
    for (const [axis, scale] of Object.entries(chart.options.scales)) {
      check(`the labels of axis ${axis}`, scale.ticks.color, LIMIT);
      check(`the title of axis ${axis}`, scale.title.color, LIMIT);
    }
    check("the legend", chart.options.plugins.legend.labels.color, LIMIT);
    for (const set of chart.data.datasets) {
      if (!set.borderWidth) continue;
      for (const colour of [set.borderColor].flat()) check(`the line of '${set.label}'`, colour, LINE_LIMIT);
    }
  }
}
return [...new Set(found)];
"""
LAYOUT = """
const found = [];
if (document.documentElement.scrollWidth > innerWidth) found.push(`the page is ${document.documentElement.scrollWidth - innerWidth} px wider than the window`);
const scroller = (element) => element !== null && (["auto", "scroll"].includes(style(element).overflowX) || scroller(element.parentElement));
for (const [element, rectangles] of texts()) {
  if (rectangles.some((at) => at.right > innerWidth + 1 || at.left < -1) && !scroller(element)) found.push(`${name(element)}: its text lies outside the window`);
  if (["hidden", "clip"].includes(style(element).overflowX) && element.scrollWidth > element.clientWidth + 1) found.push(`${name(element)}: its text is cut`);
}
return found;
"""
STRUCTURE = """
const found = [];
if (!document.documentElement.lang) found.push("<html> has no lang");
for (const th of all("th")) if (!th.scope) found.push(`${name(th)}: a heading of a table without scope`);
for (const table of all("table")) if (!table.querySelector("th")) found.push(`${name(table)}: a table without headings`);
for (const element of all("[title]")) {
  if (!element.matches("a, button, iframe, label, input") && !element.textContent.includes(element.title)) found.push(`${name(element)}: only its tooltip says "${element.title}"`);
}
for (const region of all("[aria-live], [role=status], [role=alert], [role=log], output")) {
  if (region.getAttribute("aria-live") !== "polite") found.push(`${name(region)}: a live region must be polite`);
}
if (typeof Chart !== "undefined") {
  for (const chart of Object.values(Chart.instances)) {
    const legend = chart.options.plugins.legend;
    if (legend.display !== false && typeof legend.onClick === "function") found.push(`chart ${chart.canvas.id}: its legend needs a mouse`);
    if (chart.config.type !== "line") continue;
    const lines = chart.data.datasets.filter((set) => set.borderWidth).map((set) => JSON.stringify(set.borderDash || []));
    if (new Set(lines).size < lines.length) found.push(`chart ${chart.canvas.id}: only colour tells its lines apart: ${lines.join(" ")}`);
  }
}
return found;
"""
MOTION = """
const moves = (element) => style(element).animationName !== "none" || style(element).scrollBehavior === "smooth"
  || style(element).transitionDuration.split(",").some((time) => parseFloat(time) > 0.01);
return [...document.getAnimations().map((moving) => `an animation runs: ${moving.animationName || moving.transitionProperty}`),
  ...[part, ...all("*")].filter(moves).map((element) => `${name(element)} moves, although the reader wants less motion`)];
"""
# The elements that a keyboard must reach, marked with a number.
WANTED = """
const wanted = all('a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex="0"]')
  .concat(all("*").filter((element) => scrolls(element) && !element.querySelector("a[href], [tabindex]")))
  .filter((element) => shown(element) && element.getAttribute("tabindex") !== "-1" && !element.closest(".headerlink"));
return [...new Set(wanted)].map((element, i) => { element.dataset.wanted = i; return name(element); });
"""
FOCUSED = """
const element = document.activeElement, own = style(element);
return element === document.body ? null : { wanted: element.dataset.wanted, name: name(element),
  visible: own.outlineStyle !== "none" && parseFloat(own.outlineWidth) > 0 || own.boxShadow !== "none" };
"""
WATCH = """
window.spoken = [];
for (const region of document.querySelectorAll("[aria-live], [role=status], [role=alert], [role=log], output")) {
  new MutationObserver(() => spoken.push(region.textContent)).observe(region, { childList: true, subtree: true, characterData: true });
}
return [];
"""


class Browser:
    """Chromium, asked over the pipes of its DevTools protocol."""

    def __init__(self, folder):
        pipes = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for pair in (os.pipe(), os.pipe()) for end in pair]
        for_browser = (pipes[0], pipes[3])
        self.output, self.input = pipes[1], pipes[2]
        self.log = pathlib.Path(folder) / "page_check.log"

        def give_pipes():
            os.dup2(for_browser[0], 3)
            os.dup2(for_browser[1], 4)

        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                 "--disable-background-networking", "--hide-scrollbars", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
                 f"--user-data-dir={folder}/page_check", "--remote-debugging-pipe", "about:blank"],
                preexec_fn=give_pipes, pass_fds=(3, 4), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        for end in for_browser:
            os.close(end)
        self.end, self.rest, self.number, self.events, self.session = time.monotonic() + LIMIT_S, b"", 0, [], None
        self.loaded = 0  # the number of events that are of pages before
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Accessibility", "Log"):
            self.ask(f"{domain}.enable")

    def close(self):
        """Ends Chromium; its processes then leave the folder alone."""
        self.session = None
        try:
            self.ask("Browser.close")
            self.process.wait(20)
        except (OSError, SystemExit, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        os.close(self.output)
        os.close(self.input)

    def message(self):
        while b"\0" not in self.rest:
            left = self.end - time.monotonic()
            more = os.read(self.input, 1 << 20) if left > 0 and select.select([self.input], [], [], left)[0] else b""
            if not more:
                raise SystemExit(f"Chromium did not answer within {LIMIT_S} s:\n{self.log.read_text()[-2000:]}"
                                 "\nno Chromium? scripts/setup.sh --tests installs it")
            self.rest += more
        text, _, self.rest = self.rest.partition(b"\0")
        return json.loads(text)

    def ask(self, method, **parameters):
        self.number += 1
        request = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            request["sessionId"] = self.session
        left = json.dumps(request).encode() + b"\0"
        while left:
            left = left[os.write(self.output, left):]
        while (answer := self.message()).get("id") != self.number:
            self.events.append(answer)
        if "error" in answer:
            raise SystemExit(f"Chromium refuses {method}: {answer['error']['message']}")
        return answer["result"]

    def until(self, event):
        while not any(one.get("method") == event for one in self.events[self.loaded:]):
            self.events.append(self.message())

    def run(self, code, within="body"):
        """The value of a function's body of JavaScript."""
        library = LIBRARY.replace("SELECTOR", json.dumps(within))
        result = self.ask("Runtime.evaluate", expression=f"(() => {{ {library} {code} }})()", returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise SystemExit(f"a check failed in the page: {json.dumps(result['exceptionDetails'])[:1500]}")
        return result["result"].get("value")

    def subtree(self, within):
        """The accessibility tree of a part of the page."""
        part = self.ask("Runtime.evaluate", expression=f"document.querySelector({json.dumps(within)})")["result"]["objectId"]
        return self.ask("Accessibility.queryAXTree", objectId=part)["nodes"]

    def open(self, url, width, dark, ready):
        self.loaded = len(self.events)
        self.ask("Emulation.setFocusEmulationEnabled", enabled=True)
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=HEIGHT, deviceScaleFactor=1, mobile=False)
        self.ask("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce"}])
        failed = self.ask("Page.navigate", url=url).get("errorText")
        if failed:
            raise SystemExit(f"{url}: {failed}")
        self.until("Page.loadEventFired")
        self.run(f"return new Promise((done) => {{ const look = () => ({ready}) ? done(true) : setTimeout(look, 50); look(); }});")
        self.run("for (const details of all('details')) details.open = true;")


def roles(tree, *names):
    return [node for node in tree if not node.get("ignored") and node["role"]["value"] in names]


def text(node, key="name"):
    return node.get(key, {}).get("value", "").strip()


def level(node):
    return next(entry["value"]["value"] for entry in node["properties"] if entry["name"] == "level")


def check_tree(tree, part):
    """Problems of a page's accessibility tree, and of the names in the part of it that is checked."""
    found = [] if text(tree[0]) else ["the page has no title"]
    headings = [(level(node), text(node)) for node in roles(tree, "heading")]
    if [depth for depth, _ in headings].count(1) != 1 or headings[0][0] != 1:
        found.append(f"expected one h1, before all other headings: {headings}")
    found += [f"h{below} '{words}' follows an h{above}" for (above, _), (below, words) in zip(headings, headings[1:]) if below > above + 1]
    found += [f"an h{depth} is empty" for depth, words in headings if not words]
    if len(roles(tree, "main")) != 1:
        found.append(f"expected one main part, found {len(roles(tree, 'main'))}")
    found += [f"a {node['role']['value']} has no name" for node in roles(
        part, "table", "region", "navigation", "button", "link", "checkbox", "radio", "image", "img", "progressbar",
        "DisclosureTriangle") if not text(node)]
    return found


def check_charts(browser, tree):
    """Each canvas must be an image, and its description must have the newest figures."""
    count = browser.run("return all('canvas').length")
    charts = [node for node in roles(tree, "image", "img") if text(node, "description")]
    found = [f"chart '{text(node)}' is described without its newest figures: {text(node, 'description')}"
             for node in charts if not any(letter.isdigit() for letter in text(node, "description"))]
    return found if len(charts) >= count else [*found, f"{count} charts, but {len(charts)} images with a description"]


def check_keyboard(browser, within):
    wanted, reached, found = browser.run(WANTED, within), set(), []
    for _ in range(3 * len(wanted) + 200):
        for kind in ("rawKeyDown", "keyUp"):
            browser.ask("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
        focused = browser.run(FOCUSED, within)
        if focused is None or focused.get("wanted") in reached:
            if len(reached) == len(wanted) or focused is None and reached:
                break
            continue
        if focused.get("wanted") is not None:
            reached.add(focused.get("wanted"))
            if not focused["visible"]:
                found.append(f"{focused['name']}: has no visible focus")
    return found + [f"{words}: the Tab key does not reach it" for i, words in enumerate(wanted) if str(i) not in reached]


def check_page(browser, url, ready="true", within="body", quiet=0.0):
    """All problems of a page, as lines."""
    found, grounds = [], []
    browser.end = time.monotonic() + LIMIT_S
    for width in WIDTHS:
        for dark in (False, True):
            browser.open(url, width, dark, ready)
            where = f"{width} px, {'dark' if dark else 'light'}: "
            problems = browser.run(LAYOUT, within)
            if width == WIDTHS[0]:
                grounds.append(browser.run("return style(document.body).backgroundColor"))
                problems += browser.run(CONTRAST.replace("LINE_LIMIT", str(LINE_CONTRAST)).replace("LIMIT", str(TEXT_CONTRAST)), within)
            found += [where + problem for problem in problems]
    if len(set(grounds)) < 2:
        found.append(f"the page has no dark colours: its ground is {grounds}")
    tree = browser.ask("Accessibility.getFullAXTree")["nodes"]
    found += check_tree(tree, browser.subtree(within)) + check_charts(browser, tree)
    found += browser.run(STRUCTURE, within) + browser.run(MOTION, within) + check_keyboard(browser, within)
    if quiet:
        browser.run(WATCH, within)
        browser.run(f"return new Promise((done) => setTimeout(done, {1000 * quiet}))")
        found += [f"a screen reader would read again within {quiet} s: {words}" for words in browser.run("return spoken")]
    found += [f"the console has: {event['params']}" for event in browser.events
              if event.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded")]
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("url")
    parser.add_argument("--ready", default="true")
    parser.add_argument("--within", default="body")
    parser.add_argument("--quiet", type=float, default=0)
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        browser = Browser(folder)
        try:
            found = check_page(browser, flags.url, flags.ready, flags.within, flags.quiet)
        finally:
            browser.close()
    if found:
        sys.exit("\n".join(found))


if __name__ == "__main__":
    main()
