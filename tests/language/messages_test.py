"""Tests of messages.py: which messages it finds in a source, and which rules they break."""

import pathlib
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
import case_results  # noqa: E402
import messages  # noqa: E402


def found(text):
    return [(line, message) for _, line, message in messages.messages(pathlib.PurePosixPath("base/x.cpp"), text)]


class Messages(unittest.TestCase):
    def test_literals_of_a_call_are_one_text(self):
        self.assertEqual(found('\nthrow Error(ErrorKind::data, "cannot read " + path + ": it is "\n  "a folder");'),
                         [(2, "cannot read {}: it is a folder")])
        self.assertEqual(found('config_error(fmt::format("{} is {:.2f}; expected {}", key, value, "a (b"));'),
                         [(1, "{} is {}; expected {}a (b")])
        self.assertEqual(found('say(good ? "it is good" : "it is bad");'), [(1, "it is good|it is bad")])

    def test_only_messages_are_found(self):
        self.assertEqual(found('// fail("in a comment");\nname("two words");\nsay("word");\nError(const char* what);'), [])
        self.assertEqual(found('options.say("in a member");'), [(1, "in a member")])

    def test_rules(self):
        for message, rule in {"Cannot read x": "begins with a capital letter", "cannot read x.": "ends with a period",
                              "the OuterConfig is wrong": "names a type", "std::bad_alloc in x": "names C++",
                              "please try again": "blames", "{} failed": "says nothing"}.items():
            self.assertEqual(list(messages.broken_rules(message)), [rule], message)
        for message in ("TLS failed: {}", "{} is 5; expected 6", "pass --data PATH, or ...", "SentencePiece reads no {}"):
            self.assertEqual(list(messages.broken_rules(message)), [], message)


if __name__ == "__main__":
    case_results.main()
