"""Tests of run_trees.py on a small tree with tests that pass, fail, skip, crash, hang or report wrong results."""

import os
import pathlib
import signal
import stat
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
import case_results  # noqa: E402

PROGRAM = pathlib.Path(__file__).parent / "run_trees.py"

GOOD = """<testsuites><testsuite name="S"><testcase name="A" classname="S" status="run" result="completed" time="0.1"/>
<testcase name="B" classname="S" status="run" result="completed" time="75.5"/>
<testcase name="DISABLED_C" classname="S" status="notrun" result="suppressed"/></testsuite></testsuites>"""
MIXED = """<testsuites><testsuite name="S"><testcase name="A" classname="S" status="run" result="completed" time="0.1"/>
<testcase name="B" classname="S" status="run" result="skipped"><skipped message="a.cpp:9&#x0A;no GPU">a.cpp:9
no GPU</skipped></testcase>
<testcase name="C" classname="S" status="run" result="skipped"><skipped message="b.cpp:7&#x0A;no GPU"/></testcase>
<testcase name="D" classname="S" status="run" result="completed"><failure message="x">expected 1, not 2</failure>
<failure message="y">expected 3, not 4</failure></testcase></testsuite></testsuites>"""
PYTEST = """<testsuites><testsuite name="pytest" errors="1"><testcase classname="t" name="one" time="0.2"/>
<testcase classname="t" name="two"><skipped type="pytest.skip" message="no sshd here">t.py:5: no sshd here</skipped></testcase>
<testcase classname="t" name="three"><error message="fixture">broken fixture</error></testcase></testsuite></testsuites>"""
CRASH = """[ RUN      ] S.A
[       OK ] S.A (3 ms)
[ RUN      ] S.B
x.cpp:1: Failure
[  FAILED  ] S.B (3 ms)
[ RUN      ] S.C
[  SKIPPED ] S.C (0 ms)
[ RUN      ] S.D
"""


class Trees(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tree = pathlib.Path(folder.name) / "tree"
        self.tree.mkdir()
        self.entries = []

    def add(self, name, script, results=None, properties=""):
        """Adds an entry of ctest: a shell script; $file is the path for its results."""
        program = self.tree / f"{name}.sh"
        program.write_text(f"#!/bin/sh\nfile=${{1#*xml:}} here={self.tree}\n{script}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        option = f' "--gtest_output=xml:{self.tree}/results/{name}.xml"' if results is not None else ""
        if results:
            (self.tree / f"{name}.in").write_text(results)
        self.entries.append(f'add_test({name} "{program}"{option})')
        if properties:
            self.entries.append(f"set_tests_properties({name} PROPERTIES {properties})")

    def run_trees(self, *arguments, trees=None):
        """Returns (passed, failed, skipped), exit status, output."""
        (self.tree / "CTestTestfile.cmake").write_text("\n".join(self.entries))
        done = subprocess.run([sys.executable, "-B", str(PROGRAM), *arguments, *(trees or [str(self.tree)])],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        words = done.stdout.splitlines()[-1].replace(",", "").split()
        self.assertEqual(words[1::2], ["passed", "failed", "skipped"], done.stdout)
        return tuple(map(int, words[::2])), done.returncode, done.stdout

    def test_cases_are_counted_and_not_entries(self):
        self.add("good", 'cp "$here/good.in" "$file"', GOOD)
        self.add("script", "true")
        counts, status, output = self.run_trees()
        self.assertEqual((counts, status), ((3, 0, 0), 0))
        self.assertRegex(output, r"Over 60 s:\n +75.5 s  tree: good S\.B\n")

    def test_failures_and_skips_have_their_words(self):
        self.add("mixed", 'cp "$here/mixed.in" "$file"; exit 1', MIXED)
        counts, status, output = self.run_trees()
        self.assertEqual((counts, status), ((1, 1, 2), 1))
        self.assertEqual(output.count("no GPU"), 1)
        self.assertIn("no GPU: 2 tests, tree: mixed S.B", output)
        self.assertIn("FAILED tree: mixed S.D\nexpected 1, not 2\nexpected 3, not 4\n", output)
        self.assertIn("output):\n  tree: mixed S.D\n", output)

    def test_trees_but_the_first_are_built(self):
        self.add("good", "true")
        program = self.tree.parent / "build.sh"
        program.write_text(f"#!/bin/sh\necho \"asked for $*\"\nmkdir {self.tree.parent}/$2 && cp {self.tree}/*.cmake {self.tree.parent}/$2\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        other = str(self.tree.parent / "other")
        counts, status, output = self.run_trees("--build", str(program), trees=[str(self.tree), other])
        self.assertEqual((counts, status), ((2, 0, 0), 0))
        self.assertEqual(output.count("asked for"), 1)
        self.assertIn("other: asked for --tests other\n", output)
        counts, status, output = self.run_trees("--build", str(program), trees=[str(self.tree), other])
        self.assertEqual((counts, status), ((1, 1, 0), 1), "the second build must fail")
        self.assertIn("FAILED build of other\nsee above", output)

    def test_checks_run_after_the_builds(self):
        self.add("good", "true")
        program = self.tree.parent / "build.sh"
        program.write_text(f"#!/bin/sh\nmkdir {self.tree.parent}/$2 && cp {self.tree}/*.cmake {self.tree.parent}/$2\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        other = self.tree.parent / "other"
        arguments = ["--build", str(program), "--check", "of style", f"sh -c 'echo two words; ls {other}'",
                     "--check", "of spelling", "sh -c 'exit 3'"]
        counts, status, output = self.run_trees(*arguments, trees=[str(self.tree), str(other)])
        self.assertEqual((counts, status), ((2, 1, 0), 1))
        self.assertIn("of style: two words\n", output)
        self.assertIn("of style: CTestTestfile.cmake\n", output)  # the other tree is there
        self.assertIn("output):\n  of spelling\n", output)

    def test_after_ctrl_c_nothing_more_is_built(self):
        self.add("slow", "touch $here/started; sleep 60")
        (self.tree / "CTestTestfile.cmake").write_text("\n".join(self.entries))
        program, built = self.tree.parent / "build.sh", self.tree.parent / "built"
        program.write_text(f"#!/bin/sh\necho $2 >> {built}\nexec sleep 60\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        trees = [str(self.tree), *(str(self.tree.parent / name) for name in ("one", "two"))]
        with subprocess.Popen([sys.executable, "-B", str(PROGRAM), "--build", str(program), *trees], start_new_session=True,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
            while not (built.exists() and (self.tree / "started").exists()):
                self.assertIsNone(run.poll())
                time.sleep(0.05)
            os.killpg(run.pid, signal.SIGINT)
            self.assertNotEqual(run.wait(20), 0)
        self.assertEqual(built.read_text(), "one\n")

    def test_results_of_pytest(self):
        self.add("pytest", 'cp "$here/pytest.in" "$file"; exit 1', PYTEST)
        counts, status, output = self.run_trees()
        self.assertEqual((counts, status), ((1, 1, 1), 1))
        self.assertIn("no sshd here: 1 test, ", output)
        self.assertIn("broken fixture", output)

    def test_a_crash_fails_and_counts_no_unfinished_test(self):
        (self.tree / "said").write_text(CRASH)
        self.add("crash", 'cat "$here/said"; kill -SEGV $$', "")
        counts, status, output = self.run_trees()
        self.assertEqual((counts, status), ((1, 2, 1), 1))
        self.assertRegex(output, r"FAILED tree: crash S\.D\n.*SegFault.* without writing its results")

    def test_results_of_the_run_before_do_not_count(self):
        self.add("crash", "kill -SEGV $$", "")
        (self.tree / "results").mkdir()
        (self.tree / "results/crash.xml").write_text(GOOD)
        self.assertEqual(self.run_trees()[:2], ((0, 1, 0), 1))

    def test_a_truncated_file_is_no_result(self):
        self.add("cut", 'head -c 150 "$here/cut.in" > "$file"', GOOD)
        self.assertEqual(self.run_trees()[:2], ((0, 1, 0), 1))

    def test_a_success_without_results_fails(self):
        self.add("early", "exit 0", "")
        counts, status, output = self.run_trees()
        self.assertEqual((counts, status), ((0, 1, 0), 1))
        self.assertIn("exited with status 0 without writing its results", output)

    def test_results_without_a_test_fail(self):
        self.add("empty", 'echo "<testsuites/>" > "$file"', "")
        self.assertEqual(self.run_trees()[:2], ((0, 1, 0), 1))

    def test_a_bad_exit_after_good_results_fails(self):
        self.add("leak", 'cp "$here/leak.in" "$file"; echo found a leak; exit 23', GOOD)
        counts, status, output = self.run_trees()
        self.assertEqual((counts, status), ((2, 1, 0), 1))
        self.assertRegex(output, r"FAILED tree: leak \(exit\)\n.*although no test of it failed")
        self.assertIn("found a leak", output)

    def test_scripts(self):
        self.add("passes", "true")
        self.add("fails", "echo because; exit 3")
        self.add("skips", "echo no such device; exit 77", properties="SKIP_RETURN_CODE 77")
        self.add("hangs", "exec sleep 50", properties="TIMEOUT 1")
        self.entries.append("add_test(missing /nonexistent/program)")
        counts, status, output = self.run_trees()
        self.assertEqual((counts, status), ((1, 3, 1), 1))
        self.assertIn("no such device: 1 test, tree: skips", output)
        self.assertRegex(output, r"FAILED tree: fails\n.*\nbecause")
        self.assertRegex(output, r"FAILED tree: hangs\nTimeout")
        self.assertRegex(output, r"FAILED tree: missing\n")

    def test_long_entries_run_when_asked_for(self):
        self.add("short", "true")
        self.add("slow", "true", properties='LABELS "long"')
        self.assertEqual(self.run_trees()[0], (1, 0, 0))
        self.assertEqual(self.run_trees("--long")[0], (2, 0, 0))

    def test_trees_run_at_the_same_time(self):
        trees, meet = [], 'touch "$here/../{}.began"; until [ -e "$here/../{}.began" ]; do sleep .1; done'
        for name, other in (("one", "other"), ("other", "one")):
            self.tree, self.entries = self.tree.parent / name, []
            self.tree.mkdir()
            self.add("meets", meet.format(name, other), properties="TIMEOUT 60")
            (self.tree / "CTestTestfile.cmake").write_text("\n".join(self.entries))
            trees.append(str(self.tree))
        self.assertEqual(self.run_trees(trees=trees)[:2], ((2, 0, 0), 0))

    def test_nothing_is_no_success(self):
        self.assertEqual(self.run_trees()[:2], ((0, 1, 0), 1))
        self.add("skips", "exit 77", properties="SKIP_RETURN_CODE 77")
        self.assertEqual(self.run_trees()[:2], ((0, 0, 1), 1))

    def test_a_tree_that_is_not_there_fails(self):
        self.assertEqual(self.run_trees(trees=["/nonexistent/tree"])[:2], ((0, 1, 0), 1))

    def test_a_failed_build_is_a_failure(self):
        self.add("passes", "true")
        counts, status, output = self.run_trees("--failed", "build of asan")
        self.assertEqual((counts, status), ((1, 1, 0), 1))
        self.assertIn("output):\n  build of asan\n", output)


if __name__ == "__main__":
    case_results.main()
