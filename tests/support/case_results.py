"""unittest with its results, one case each, in the file of --junitxml=FILE, which tests/runner/run_trees.py reads."""

import sys
import time
import unittest
import xml.etree.ElementTree as ElementTree


class _Result(unittest.TextTestResult):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.cases = ElementTree.Element("testsuite", name="unittest")
        self.words = {}
        self.begun = time.monotonic()

    def _note(self, test, kind, text):
        self.words.setdefault(test.id(), []).append((kind, text))

    def addError(self, test, err):
        super().addError(test, err)
        self._note(test, "error", self._exc_info_to_string(err, test))
        if not hasattr(test, "_testMethodName"):  # setUpClass or setUpModule: none of its tests begins
            self.stopTest(test)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self._note(test, "failure", self._exc_info_to_string(err, test))

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self._note(test, "failure", f"{subtest}\n{self._exc_info_to_string(err, test)}")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self._note(test, "skipped", reason)

    def startTest(self, test):
        super().startTest(test)
        self.begun = time.monotonic()

    def stopTest(self, test):
        super().stopTest(test)
        suite, _, name = test.id().rpartition(".")
        seconds = f"{time.monotonic() - self.begun:.3f}"
        case = ElementTree.SubElement(self.cases, "testcase", classname=suite, name=name, time=seconds)
        for kind, text in self.words.pop(test.id(), []):
            ElementTree.SubElement(case, kind, message=text).text = text


def main():
    """Takes --junitxml=FILE out of sys.argv; the rest is unittest's."""
    options = [word for word in sys.argv[1:] if word.startswith("--junitxml=")]
    sys.argv = [word for word in sys.argv if word not in options]
    program = unittest.main(exit=False, testRunner=unittest.TextTestRunner(resultclass=_Result, verbosity=2))
    for option in options:
        ElementTree.ElementTree(program.result.cases).write(option.partition("=")[2])
    sys.exit(not program.result.wasSuccessful())
