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


def long(test):
    """Marks a test that runs only with --long."""
    test.is_long = True
    return test


class _Loader(unittest.TestLoader):
    """The tests that are marked with `long`, or the others."""

    def __init__(self, want_long):
        super().__init__()
        self.want_long = want_long

    def getTestCaseNames(self, testCaseClass):
        names = super().getTestCaseNames(testCaseClass)
        return [name for name in names if hasattr(getattr(testCaseClass, name), "is_long") == self.want_long]


def main():
    """Takes --junitxml=FILE and --long out of sys.argv; the rest is unittest's."""
    results = [word for word in sys.argv[1:] if word.startswith("--junitxml=")]
    loader = _Loader("--long" in sys.argv)
    sys.argv = [word for word in sys.argv if word not in results and word != "--long"]
    runner = unittest.TextTestRunner(resultclass=_Result, verbosity=2)
    program = unittest.main(exit=False, testRunner=runner, testLoader=loader)
    for option in results:
        ElementTree.ElementTree(program.result.cases).write(option.partition("=")[2])
    sys.exit(not program.result.wasSuccessful())
