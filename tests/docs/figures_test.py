"""Tests of scripts/figures.py: which pages it refuses, and which changes it counts."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
import case_results  # noqa: E402

FIGURES = pathlib.Path(__file__).parents[2] / "scripts" / "figures.py"
TABLE = "| case | speed |\n| --- | --- |\n| one | 2.5 MB/s |\n"


class Figures(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name).resolve()

    def write(self, name, text):
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(text, encoding="utf-8")

    def git(self, *arguments):
        return subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b.example", "-C", self.root, *arguments],
                              capture_output=True, text=True, check=True).stdout.strip()

    def commit(self):
        """A commit of all files; its name in 12 digits, a letter and a number among them."""
        self.git("add", "-A")
        for number in range(100):
            self.git("commit", "--quiet", "--allow-empty", "-m", f"commit {number}")
            name = self.git("rev-parse", "HEAD")[:12]
            if not name.isdigit() and not name.isalpha():
                return name
        raise AssertionError("no name with a letter and a number")

    def run_script(self, *arguments):
        done = subprocess.run([sys.executable, "-B", FIGURES, *arguments, self.root], capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    def page(self, text, name="docs/results/page.md"):
        self.write(name, "# Page\n\n<!-- figures of: net -->\n\n" + text)

    def start(self):
        self.git("init", "--quiet")
        self.write("net/x.cpp", "1\n")
        return self.commit()

    def test_a_table_with_its_commit_passes_and_its_changes_are_counted(self):
        measured = self.start()
        self.page(f"## Speed\nAt {measured}:\n\n{TABLE}")
        self.write("net/x.cpp", "2\n")
        self.commit()
        self.assertEqual(self.run_script("--check"), (0, "1 commits on 1 pages\n"))
        self.assertEqual(self.run_script(), (0, f"docs/results/page.md: {measured}: 1 commits to net since\n"))

    def test_a_table_without_a_commit_in_its_section(self):
        measured = self.start()
        self.page(f"At {measured}.\n\n## Speed\n\n    {measured}\n\n{TABLE}\n## Later\n{measured}\n")
        self.assertEqual(self.run_script("--check"), (1, "docs/results/page.md:11: this table's section names no commit; "
                                                         "say at which one it was measured\n"))

    def test_tables_without_figures_and_other_pages_need_none(self):
        self.start()
        self.page("| page | about |\n| --- | --- |\n| [a](b.md) | 3 times |\n| c | words |\n")
        self.page(TABLE, "docs/page.md")
        self.assertEqual(self.run_script("--check")[0], 0)

    def test_an_unknown_commit_and_an_unknown_folder(self):
        self.start()
        self.page("At 0123abc.\n")
        self.write("docs/gpu.md", "# GPUs\n\n<!-- figures of: nets -->\n")
        status, text = self.run_script("--check")
        self.assertEqual(status, 1)
        self.assertIn("docs/results/page.md: 0123abc is not in the history", text)
        self.assertIn("docs/gpu.md: figures of nets: there is no such folder", text)

    def test_a_page_of_results_names_its_folders(self):
        self.start()
        self.page("")
        self.write("docs/learning/a.md", "# A\n")
        self.assertIn("docs/learning/a.md: expected <!-- figures of: ", self.run_script("--check")[1])

    def test_without_history_only_tables_are_checked(self):
        self.write("net/x.cpp", "1\n")
        self.page(f"At 0123abc.\n\n{TABLE}")
        status, text = self.run_script("--check")
        self.assertEqual(status, 0, text)
        self.assertIn("is not a git checkout: did not check that the commits exist", text)


if __name__ == "__main__":
    case_results.main()
