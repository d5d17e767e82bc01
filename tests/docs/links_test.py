"""Tests of links.py: which links and paths it refuses."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
import case_results  # noqa: E402

LINKS = pathlib.Path(__file__).with_name("links.py")
PAGE = "# Page\n\n## A `b`: c's\n\n## Twice\n\n## Twice\n\n<a id=\"old\"></a>\n"


def check(files):
    """The checker's exit status and its messages, for a tree of these files."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            file = pathlib.Path(folder) / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        done = subprocess.run([sys.executable, "-B", LINKS, folder], capture_output=True, text=True)
    return done.returncode, done.stderr.split("\n")[:-1]


class Links(unittest.TestCase):
    def test_good_links_pass(self):
        readme = ("[a](docs/page.md) [b](docs/page.md#a-b-cs) [c](docs/page.md#twice-1) [d](docs/page.md#old) [e](#here)\n"
                  "[f](https://x.example/y.md) `[g](none.md)`\n\n    [h](none.md)\n\n# Here\n")
        self.assertEqual(check({"README.md": readme, "docs/page.md": PAGE,
                                "base/x.cpp": "// docs/page.md, \"Twice\", and share/docs/none.md\n"}), (0, []))

    def test_missing_file_and_anchor(self):
        status, messages = check({"docs/page.md": PAGE + "[a](none.md)\n[b](#none) [c](page.md#twice-2)\n"})
        self.assertEqual(status, 1)
        self.assertEqual([message.split(": ")[0] for message in messages],
                         ["docs/page.md:10", "docs/page.md:11", "docs/page.md:11"])
        self.assertIn("none.md: there is no such file", messages[0])

    def test_link_out_of_the_project(self):
        self.assertEqual(check({"README.md": "[a](../x.md)\n"}),
                         (1, ["README.md:1: ../x.md is outside the project"]))

    def test_paths_in_sources(self):
        files = {"README.md": "[a](docs/page.md)\n", "docs/page.md": PAGE,
                 "base/x.h": "/// See docs/none.md,\n", "app/x.cpp": "\nhelp(\"(docs/page.md, \" \"twice)\");\n",
                 "configs/x.yaml": "# docs/page.md, \"None\"\n", "scripts/x.sh": "x # docs/page.md,\n# \"Thrice\"\n"}
        self.assertEqual(check(files), (1, ["base/x.h:1: docs/none.md: there is no such file",
                                            "configs/x.yaml:1: docs/page.md has no heading 'None'",
                                            "scripts/x.sh:1: docs/page.md has no heading 'Thrice'"]))

    def test_a_folder_without_links_is_refused(self):
        self.assertEqual(check({"README.md": "none\n"})[0], 1)


if __name__ == "__main__":
    case_results.main()
