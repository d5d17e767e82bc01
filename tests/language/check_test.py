"""Tests of check.py: what counts as a hard expression, where prose is looked for, and the limits."""

import pathlib
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
import case_results  # noqa: E402
import check  # noqa: E402


def found(name, text):
    return [(number, expression) for number, expression, _ in check.hits(pathlib.PurePosixPath(name), text)]


class Check(unittest.TestCase):
    def test_comments_and_strings_of_cpp(self):
        self.assertEqual(found("base/x.h", "int a;  // Whoever waits\n"), [(1, "begins with Of/What/Who"), (1, "nobody/somebody")])
        self.assertEqual(found("base/x.cpp", 'fail("x is none");\n'), [(1, "is none")])
        self.assertEqual(found("base/x.cpp", "/* one\n * goes on\n */\n"), [(2, "go on")])
        self.assertEqual(found("base/x.cpp", "auto whatever = somebody + is(none);\n"), [])
        self.assertEqual(found("base/x.cpp", 'key("whatever");\n'), [], "a word alone is a value, not a sentence")

    def test_names(self):
        self.assertEqual(found("base/x.h", "int most_bytes = least_bytes;\n"), [(1, "most_/least_")] * 2)
        self.assertEqual(found("base/x.h", "int utmost_bytes;\n"), [])

    def test_scripts_and_docs(self):
        self.assertEqual(found("scripts/x.sh", "a=1 # as it was\n"), [(1, "as it was")])
        self.assertEqual(found("docs/x.md", "It goes on.\n\n    it goes on\n\n`whatever`\n"), [(1, "go on")])

    def test_plain_english_passes(self):
        self.assertEqual(found("base/x.h", "// What if it fails? The caller retries.\n"), [])
        self.assertEqual(found("docs/x.md", "The coordinator evicts a member that lags.\n"), [])

    def test_folders(self):
        folders = {"app/run/x.cpp": "app", "outer_sync/include/isthmus/outer_sync/protocol/coordinator/x.h":
                   "outer_sync/protocol/coordinator", "outer_sync/net/link/x.cpp": "outer_sync/net/link",
                   "outer_sync/core/x.cpp": "outer_sync/core", "README.md": "."}
        for path, folder in folders.items():
            self.assertEqual(check.folder_of(pathlib.PurePosixPath(path)), folder)

    def test_limits(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "base").mkdir()
            (root / "base/x.h").write_text("// Whatever\n", encoding="utf-8")
            counts = check.count(root)
        self.assertEqual(counts, {"base": 1})
        self.assertEqual(check.differences(counts, {"base": 1}), [])
        self.assertIn("at most 0", check.differences(counts, {})[0])
        self.assertIn("fewer than 2", check.differences(counts, {"base": 2})[0])


if __name__ == "__main__":
    case_results.main()
