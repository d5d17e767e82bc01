"""The documentation as a site: scripts/docs_site.sh builds it without a warning, every page has the elements that its
Markdown asks for, and a browser that reaches no network shows pages, opened as files, with their pictures and search."""

import base64
import html.parser
import importlib.util
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
import case_results  # noqa: E402
import page_check  # noqa: E402

ROOT = pathlib.Path(__file__).parents[2]
LACKS = [name for name in ("material", "markdown_it") if importlib.util.find_spec(name) is None]
COMPARED = ("table", "tr", "ul", "ol", "li", "pre", "code", "h2", "h3", "p", "img")
PRINTED = ("config.md", "metrics.md")  # the site adds a heading and a sentence
PROBE = """<script>
const report = (value) => {
  const pre = document.createElement("pre");
  pre.id = "seen";
  pre.textContent = btoa(String.fromCharCode(...new TextEncoder().encode(JSON.stringify(value))));
  document.body.append(pre);
};
addEventListener("load", () => { %s });
</script></body>"""
LOOK = """
const texts = (selector) => [...document.querySelectorAll(selector)].map((found) => found.textContent.trim());
document.querySelector('label[title="Dark"]').click();
report({
  title: document.title, tabs: texts(".md-tabs__link"), sections: texts(".md-nav--primary .md-nav__link"),
  pictures: [...document.querySelectorAll("article img")].map((img) => [img.getAttribute("src"), img.naturalWidth, img.alt]),
  dark: [document.body.dataset.mdColorScheme, getComputedStyle(document.querySelector("article img")).colorScheme],
  loaded: performance.getEntriesByType("resource").map((entry) => entry.name),
  too_wide: document.documentElement.scrollWidth - innerWidth,
  terms: [...document.querySelectorAll("a.term")].map((term) => [term.getAttribute("href"), term.title]),
});"""
SEARCH = """
const results = () => [...document.querySelectorAll(".md-search-result__item a")].map((found) => found.textContent);
const observer = new MutationObserver(() => look());
const look = () => {
  if (results().length) { observer.disconnect(); report(results()); }
};
observer.observe(document.body, { childList: true, subtree: true });
look();"""


class Elements(html.parser.HTMLParser):
    """Counts the elements of a page."""

    def __init__(self, text):
        super().__init__()
        self.counts = dict.fromkeys(COMPARED, 0)
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag in self.counts:
            self.counts[tag] += 1


@unittest.skipIf(LACKS, f"{sys.prefix} has no {', '.join(LACKS)}: scripts/setup.sh --tests installs it")
class Site(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.temporary.cleanup)
        cls.site = pathlib.Path(cls.temporary.name) / "site"
        done = subprocess.run([ROOT / "scripts/docs_site.sh", cls.site], capture_output=True, text=True)
        if done.returncode or "WARNING" in done.stdout + done.stderr:
            raise AssertionError(f"scripts/docs_site.sh: status {done.returncode}\n{done.stdout}{done.stderr}")
        cls.printed = done.stdout

    def seen(self, page, probe, width, query=""):
        """Opens a page as a file, and returns the value that the probe reports."""
        copy = (self.site / page).with_name("probed.html")
        copy.write_text((self.site / page).read_text(encoding="utf-8").replace("</body>", PROBE % probe), encoding="utf-8")
        done = subprocess.run(
            ["/usr/bin/chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             f"--user-data-dir={self.temporary.name}/browser", "--enable-logging=stderr", f"--window-size={width},2000",
             "--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=30000", "--dump-dom", copy.as_uri() + query],
            capture_output=True, encoding="utf-8", errors="replace", timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr + "\nno Chromium? scripts/setup.sh --tests installs it")
        self.assertNotIn("CONSOLE", done.stderr, "the browser's console has messages")
        found = re.search(r'<pre id="seen">([^<]*)</pre>', done.stdout)
        self.assertIsNotNone(found, f"{page}: the page's scripts did not finish\n{done.stderr[-2000:]}")
        return json.loads(base64.b64decode(found.group(1)))

    def check_page(self, page, width, title, picture):
        seen = self.seen(page, LOOK, width)
        self.assertEqual(seen["title"], f"{title} - Isthmus")
        self.assertEqual(seen["tabs"], ["Start", "How-to", "Reference", "Explanation"])
        self.assertIn(title, seen["sections"])
        self.assertIn(picture, [source for source, *_ in seen["pictures"]])
        for source, pixels, described in seen["pictures"]:
            self.assertGreater(pixels, 0, f"{source} did not load")
            self.assertGreater(len(described), 10, f"{source} needs a text that describes it")
        self.assertEqual(seen["dark"], ["slate", "dark"])
        self.assertEqual([name for name in seen["loaded"] if not name.startswith("file://")], [])
        self.assertLessEqual(seen["too_wide"], 0, "the page scrolls sideways")
        glossary = (self.site / "glossary.html").read_text(encoding="utf-8")
        self.assertGreater(len(seen["terms"]), 3)
        for target, meaning in seen["terms"]:
            self.assertIn(f'id="{target.partition("#")[2]}"', glossary)
            self.assertGreater(len(meaning), 10)

    def test_script_names_the_file_to_open(self):
        self.assertIn(f"file://{self.site}/index.html", self.printed)
        self.assertTrue((self.site / "index.html").is_file())

    def test_explanation_in_a_wide_window(self):
        self.check_page("how-it-works.html", 1280, "How it works", "pictures/fragments.svg")

    def test_front_page_on_a_phone(self):
        self.check_page("isthmus.html", 500, "What Isthmus is", "pictures/far-sites.svg")

    def test_everyone_can_use_a_page_and_the_index(self):
        self.check_use("how-it-works.html", "index.html")

    @case_results.long
    def test_everyone_can_use_the_longest_page(self):
        self.check_use("config.html")

    def check_use(self, *pages):
        browser = page_check.Browser(self.temporary.name)
        self.addCleanup(browser.close)
        for page in pages:
            with self.subTest(page=page):
                self.assertEqual(page_check.check_page(browser, (self.site / page).as_uri(), within="article"), [])
                tree = browser.ask("Accessibility.getFullAXTree")["nodes"]
                self.assertGreater(len(page_check.roles(tree, "navigation")), 0)

    def test_search_finds_pages_without_a_server(self):
        found = self.seen("index.html", SEARCH, 1280, "?q=stochastic")
        self.assertIn("Numerics", " ".join(found))

    def test_pages_have_the_elements_of_their_markdown(self):
        from markdown_it import MarkdownIt  # as forges read Markdown; the site's reader has other rules for lists

        reader = MarkdownIt("commonmark", {"html": True}).enable("table")
        pages = {path.relative_to(ROOT / "docs"): path for path in (ROOT / "docs").rglob("*.md")}
        pages[pathlib.Path("isthmus.md")] = ROOT / "README.md"
        for page, path in sorted(pages.items()):
            file = page.with_name("index.html") if page.name == "README.md" else page.with_suffix(".html")
            article = re.search(r"<article.*</article>", (self.site / file).read_text(encoding="utf-8"), re.DOTALL).group()
            wanted = Elements(reader.render(path.read_text(encoding="utf-8"))).counts
            if page.as_posix() in PRINTED:
                wanted["p"], wanted["code"] = wanted["p"] + 1, wanted["code"] + 1
            with self.subTest(page=page.as_posix()):
                self.assertEqual(Elements(article).counts, wanted)


@unittest.skipIf(LACKS, f"{sys.prefix} has no {', '.join(LACKS)}: scripts/setup.sh --tests installs it")
class Hooks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        sys.path.insert(0, str(ROOT / "scripts"))
        cls.addClassCleanup(sys.path.remove, str(ROOT / "scripts"))
        cls.hooks = importlib.import_module("docs_site_hooks")

    def test_navigation_is_made_from_the_tables_of_the_index(self):
        index = """# Index
## Learn: a walk
| question | page |
| --- | --- |
| in two tables | [b](b.md) |
| here only | [a](a.md) |
## Reference: look it up
| what | page |
| --- | --- |
| **Group** | |
| a part of a page | [b](b.md#part), [c](c.md) |
| a page and those below it | [d](d.md): [e](d/e.md) |
"""
        self.assertEqual(self.hooks.navigation(index), [
            {"Start": [{"All pages": "README.md"}, {"What Isthmus is": "isthmus.md"}, "a.md"]},
            {"Reference": [{"Group": ["b.md", "c.md", {"D": ["d.md", "d/e.md"]}]}]}])

    def test_the_first_use_of_a_term_is_linked(self):
        text = "<h2>Chunks</h2><p><code>chunk</code> Chunks, a chunk, h and H</p>"
        linked = self.hooks.with_terms(text, "how-to/doctor.md")
        self.assertEqual(re.sub(r' title="[^"]*"', "", linked),
                         '<h2>Chunks</h2><p><code>chunk</code> <a class="term" href="../glossary.html#term-chunk">Chunks</a>, '
                         'a chunk, h and <a class="term" href="../glossary.html#term-h-sync-interval">H</a></p>')

    def test_tables_are_named_by_the_heading_above(self):
        self.assertEqual(self.hooks.with_named_tables('<h2 id="a">A</h2><table>\n<thead><tr><th>b</th>'),
                         '<h2 id="a">A</h2><table aria-labelledby="a">\n<thead><tr><th scope="col">b</th>')

    def test_files_of_the_tree_have_a_page(self):
        for path in ("README.md", "docs/how-to/doctor.md", "CONTRIBUTING.md", "scripts/pinned.sh", "configs/recipes"):
            self.assertEqual(self.hooks.source(self.hooks.place(path)), path)


if __name__ == "__main__":
    case_results.main()
