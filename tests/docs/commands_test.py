"""Tests of commands.py: which commands it finds, and which mistakes it refuses."""

import pathlib
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
sys.path.insert(0, str(pathlib.Path(__file__).parent))
import case_results  # noqa: E402
import command_spec  # noqa: E402
import command_text  # noqa: E402
import commands  # noqa: E402

HELP = """### isthmus plan
predict.

    isthmus plan --step-time TEXT [OPTIONS] [config]

| option | value | default | meaning |
| --- | --- | --- | --- |
| `config` | TEXT |  | experiment |
| `--step-time` | TEXT |  | time of a step (required) |
| `--vocab` | INT in [2 - 100] |  | size |
| `--codec` | {zstd,lz4} | zstd | codec |
| `--json` |  |  | print JSON |

### isthmus ctl drain
drain.

| option | value | default | meaning |
| --- | --- | --- | --- |
| `names` | TEXT |  | names (required) |
"""
VERBS = command_spec.read_verbs(HELP)


def words(text):
    return [command.words for command in command_text.read_page("a.md", text).commands]


def errors(line):
    call, wrong = command_spec.parse(line.split(), VERBS)
    return wrong or command_spec.missing(call, VERBS)


class Text(unittest.TestCase):
    def test_blocks_and_prose(self):
        page = ("a `isthmus top` b\n\n    isthmus plan a  # b\n    output isthmus plan\n\n"
                "```bash\nsudo isthmus data show x\n```\n")
        found = command_text.read_page("a.md", page)
        self.assertEqual([(command.line, command.words, command.inline) for command in found.commands],
                         [(3, ["isthmus", "plan", "a"], False), (7, ["isthmus", "data", "show", "x"], False),
                          (1, ["isthmus", "top"], True)])

    def test_continued_lines_keep_the_first_line(self):
        found = command_text.read_page("a.md", "\n    isthmus plan a \\\n        --set b=c   # d\n")
        self.assertEqual([(command.line, command.words) for command in found.commands],
                         [(2, ["isthmus", "plan", "a", "--set", "b=c"])])

    def test_pipes_lists_and_output(self):
        page = ("    echo; isthmus a\n    isthmus a && isthmus b > c\n    cat d |\n      isthmus e -\n"
                "    source <(isthmus f g)\n")
        found = command_text.read_page("a.md", page)
        self.assertEqual([(command.words[1:], command.piped) for command in found.commands],
                         [(["a"], False), (["b"], False), (["e", "-"], True), (["f", "g"], False)])

    def test_loops_are_written_out(self):
        self.assertEqual(words("    for h in 1 2; do\n      isthmus a --b $h \\\n        c\n    done\n"),
                         [["isthmus", "a", "--b", "1", "c"], ["isthmus", "a", "--b", "2", "c"]])

    def test_options_in_brackets_count(self):
        self.assertEqual(words("    isthmus a [--set b=[1,2]] [--c]\n"), [["isthmus", "a", "--set", "b=[1,2]", "--c"]])

    def test_interpreters_and_assignments(self):
        self.assertEqual(words("    X=1 .venv/bin/python -B tests/a.py --b\n    python3 -c 'isthmus x\n    y'\n"),
                         [["tests/a.py", "--b"]])

    def test_yaml_ends_where_commands_begin(self):
        found = command_text.read_page("a.md", "    # a\n    run: {name: b}\n\n    isthmus c\n")
        self.assertEqual((found.yaml[0].text, words("    run: {}\n    isthmus c\n")),
                         ("# a\nrun: {name: b}\n\n", [["isthmus", "c"]]))

    def test_settings_in_prose(self):
        self.assertEqual(command_text.read_page("a.md", "use `--set outer.merge=alpha`\n").settings,
                         [(1, "outer.merge", "alpha")])


class Spec(unittest.TestCase):
    def test_good_calls(self):
        for line in ("plan my.yaml --step-time 500ms --vocab 7 --json", "plan --step-time=1s --codec lz4",
                     "ctl drain a b", "ctl", "--version", "plan --step-time T --vocab N"):
            self.assertEqual(errors(line), [], line)

    def test_mistakes(self):
        for line, part in {"plann": "no verb 'plann'", "ctl dran": "no verb 'ctl dran'",
                           "plan --stp 1": "no option --stp", "plan": "--step-time",
                           "plan --step-time 1s a b": "no place for 'b'", "ctl drain": "names",
                           "plan --step-time": "has no value", "plan --step-time 1s --vocab 1": "expected INT in",
                           "plan --step-time 1s --vocab x": "expected a number", "--verzion": "no option --verzion",
                           "plan --step-time 1s --codec gzip": "expected one of zstd, lz4"}.items():
            self.assertIn(part, " ".join(errors(line)), line)


class Scripts(unittest.TestCase):
    def problems(self, line):
        """The checker's messages for this line of a page, in a small project."""
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name, text in {"scripts/a.sh": "#!/bin/sh\n", "tests/bench/b.py": "'--case'\n",
                               "scripts/setup.sh": "--tests\n", "configs/c.yaml": "",
                               "CMakePresets.json": '"name": "release"',
                               "tests/base/CMakeLists.txt": "isthmus_test(base USES base)"}.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text, encoding="utf-8")
            (root / "scripts/setup.sh").chmod(0o755)
            checker = commands.Checker({"isthmus": "", "isthmus-coordinator": ""}, {"isthmus": VERBS}, root, None)
            checker.page("a.md", f"    {line}\n")
        return " ".join(checker.wrong)

    def test_good(self):
        self.assertEqual(self.problems("scripts/setup.sh --tests"), "")
        self.assertEqual(self.problems("python3 tests/bench/b.py --case 1 configs/c.yaml"), "")

    def test_mistakes(self):
        for line, part in {"\n`configs/d.yaml`": "a.md:2: configs/d.yaml\n    there is no such file",
                           "scripts/none.sh": "a.md:1: scripts/none.sh\n    scripts/none.sh: there is no such file",
                           "scripts/setup.sh --test-all": "does not know --test-all",
                           "scripts/a.sh": "is not executable",
                           "sh scripts/a.sh": "no group of tests/docs/commands.py has scripts/a.sh",
                           "python3 tests/bench/b.py configs/d.yaml": "configs/d.yaml: there is no such file",
                           "scripts/setup.sh --test": "does not know --test;",
                           "build/release/bench/bench_none": "there is no such file",
                           "build/release/tests/none/test_none": "there is no such file",
                           "build/relase/tests/base/test_base": "there is no such file",
                           "isthmus plann": "a.md:1: isthmus plann\n    there is no verb 'plann'",
                           "isthmus plan": "'plan' needs --step-time"}.items():
            self.assertIn(part, self.problems(line), line)


class Groups(unittest.TestCase):
    def test_a_verb_is_in_one_group(self):
        self.assertEqual(commands.RUN & set(commands.REASONS), set())


if __name__ == "__main__":
    case_results.main()
