"""tests/support/page_check.py finds what is wrong with a page, and nothing else."""

import pathlib
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
import case_results  # noqa: E402
import page_check  # noqa: E402

PAGE = """<!doctype html><html lang="en"><head><title>A page</title><style>
:root { color-scheme: light dark; --ink: #222; --ground: #fff; }
@media (prefers-color-scheme: dark) { :root { --ink: #eee; --ground: #111; } }
body { color: var(--ink); background: var(--ground); }
.unseen { position: absolute; width: 1px; overflow: hidden; clip-path: inset(50%); }
</style></head><body><main>
<h1>One</h1><h2>Two</h2><p role="status" aria-live="polite" id="status">ready</p>
<table aria-label="Figures"><tr><th scope="col">a</th></tr><tr><td>1</td></tr></table>
<canvas role="img" aria-label="Loss" aria-describedby="ends"></canvas><p class="unseen" id="ends">It ends at 2.5.</p>
<button>Stop</button>
</main></body></html>"""
FAULTS = [
    (' lang="en"', "", "<html> has no lang"), ("<title>A page</title>", "", "the page has no title"),
    ("h2>", "h3>", "h3 'Two' follows an h1"), ("h2>", "h1>", "expected one h1"), ("main>", "div>", "expected one main part"),
    (' scope="col"', "", "without scope"), (' aria-label="Figures"', "", "a table has no name"),
    ("ends at 2.5", "falls", "without its newest figures"), (' aria-label="Loss"', "", "a image has no name"),
    ("polite", "assertive", "must be polite"), ("<button", "<button style='outline: none'", "no visible focus"),
    ("Stop</button>", "</button>", "a button has no name"),
    ("--ink: #222", "--ink: #999", "1280 px, light: <h1>"), ("--ground: #111", "--ground: #777", "contrast"),
    ("--ground: #111", "--ground: #fff; --ink: #222", "no dark colours"),
    ("<h2>", "<h2 style='width: 500px'>", "320 px, light: the page is"),
    ("<h2>", "<h2 style='width: 9px; overflow: hidden'>", "its text is cut"),
    ("<td>1", "<td><i title='one'></i>", 'only its tooltip says "one"'),
    ("</style>", "h1 { transition: color 1s; }</style>", "moves, although"),
    ("</main>", "<script>setInterval(() => status.textContent = Date.now(), 300);"
     "const status = document.getElementById('status');</script></main>", "would read again"),
    ("</main>", "<script>nonsense()</script></main>", "the console has"),
]


class PageCheck(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        cls.addClassCleanup(cls.folder.cleanup)
        cls.browser = page_check.Browser(cls.folder.name)
        cls.addClassCleanup(cls.browser.close)

    def found(self, text):
        page = pathlib.Path(self.folder.name) / "page.html"
        page.write_text(text, encoding="utf-8")
        return page_check.check_page(self.browser, page.as_uri(), quiet=0.7 if "setInterval" in text else 0)

    def test_a_good_page_has_no_problems(self):
        self.assertEqual(self.found(PAGE), [])

    def test_faults_are_found_together(self):
        """On as few pages as possible: each page has all faults that are left and fit it."""
        left = FAULTS
        while left:
            page, here = PAGE, []
            for old, new, what in left:
                if old in page:
                    page = page.replace(old, new)
                    here.append(what)
            left = [fault for fault in left if fault[2] not in here]
            found = "\n".join(self.found(page))
            for what in here:
                with self.subTest(what=what):
                    self.assertIn(what, found)

    @case_results.long
    def test_each_fault_is_found(self):
        for old, new, what in FAULTS:
            with self.subTest(what=what):
                self.assertIn(old, PAGE)
                found = self.found(PAGE.replace(old, new))
                self.assertIn(what, "\n".join(found))


if __name__ == "__main__":
    case_results.main()
