#!/usr/bin/env python3
"""commands.py ISTHMUS COORDINATOR [ROOT]: checks every command in README.md, CONTRIBUTING.md and docs/.

Each command of ours must name a verb, options, keys, values and files that exist. Those that need no other machine, no
GPU and no long training run, in a folder with one tiny run; REASONS says why each other one does not. A command that
fits neither fails. docs/cli.md, config.md and metrics.md are made by the program, whose own tests compare them.
"""
import collections
import os
import pathlib
import re
import signal
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).parent))
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
import command_spec  # noqa: E402
import command_text  # noqa: E402
from command_live import Live  # noqa: E402
from command_live import VERBS as LIVE  # noqa: E402
from command_room import Room  # noqa: E402
from columns import too_wide  # noqa: E402
from command_spec import PLACEHOLDER  # noqa: E402

LIMIT = 540  # seconds
GENERATED = {"docs/cli.md", "docs/config.md", "docs/metrics.md"}
RUN = {"", "certs init", "certs invite", "certs issue", "certs revoke", "completion", "config", "data ledger",
       "data show", "data tokenize", "data tune", "eval", "export", "fetch", "help", "plan", "replay", "sample", "trace",
       "bench loader"}
# Verbs that only get checked, and why.
REASONS = {
    "ctl": "a group of verbs",
    "bench outer": "takes minutes", "compare": "trains many runs", "launch": "trains for minutes or longer",
    "selftest": "takes minutes",
    "coordinator": "needs other machines", "doctor": "needs other machines", "join": "needs other machines",
    "worker": "needs other machines", "tether": "only for launch", "init": "has tests of its own",
    "audit": "has tests of its own",
    "bench": "a group of verbs", "certs": "a group of verbs", "data": "a group of verbs",
}
# Programs and scripts that only get checked: the first pattern that fits decides.
PROGRAM_REASONS = [
    (r"build/.*/tests/.*|tests/.*_test\.py", "a test"),
    (r"build/.*bench/.*|tests/bench/.*|tests/chaos/.*|tests/python/(overhead|versions)\.py", "takes minutes"),
    (r"(gpu-kit/)?gpu_check\.sh|scripts/gpu_(kit|check)\.sh", "needs a GPU"),
    (r"examples/two_sites/.*|tests/wan_lab/.*", "needs root"),
    (r"examples/.*|tests/run\.sh|scripts/(setup|package|release|compilers|pinned|tidy)\.sh", "builds or trains"),
    (r"scripts/(simulate_nightly\.sh|mutate_protocol\.sh|tune_replanner\.py)", "takes minutes"),
    (r"scripts/draw_.*|scripts/(carry_stability|codec_shrinkage|learned_levels)\.py", "draws from long runs"),
    (r"scripts/docs_site\.sh", "has a test of its own"), (r"scripts/screenshots\.sh", "trains for minutes"),
    (r"scripts/format\.sh|tests/(language|layers|docs|support)/.*\.py", "a check of the source"),
    (r"build/\w+", "a folder"),
]
# Output for programs, or text of a model: may be wider than a terminal.
WIDE = re.compile(r"config|completion|sample|--(json|markdown|metrics|render)(=.*)?")
# Added so that a measurement or a text is short.
SHORTER = {"bench loader": ["--seconds", "0.1"], "data tune": ["--sample", "1"], "sample": ["--tokens", "4"]}
SECTION = re.compile(r"(run|model|data|inner|trainer|replica|outer|join|network|object_store|metrics|dashboard|worker|launch|sites)"
                     r"\.")


class Checker:
    def __init__(self, programs, verbs, root, room):
        self.programs, self.verbs = programs, verbs  # by name
        self.root, self.room, self.live = root, room, Live(room)
        self.wrong, self.seen = [], {}
        self.ran, self.checked, self.mentions, self.reasons = 0, 0, 0, collections.Counter()

    def report(self, page, line, text, what):
        self.wrong.append(f"{page}:{line}: {text}\n    {what}")

    def page(self, name, text):
        page = command_text.read_page(name, text)
        for command in page.commands:
            base = pathlib.PurePosixPath(command.words[0]).name
            ours = base in self.programs and not command.words[0].startswith(("scripts/", "tests/", "examples/"))
            problems = self.program_call(command, base) if ours else self.script(command)
            for problem in problems:
                self.report(name, command.line, command.text, problem)
        for block in page.yaml:
            self.yaml_block(block)
        for line, path in page.configs:
            if not (self.root / path).exists():
                self.report(name, line, path, "there is no such file; correct the path")
        lines = collections.defaultdict(list)
        for line, key, value in page.settings:
            if SECTION.match(key):
                lines[line].append((key, value))
        for line, settings in lines.items():
            for problem in self.settings("configs/quickstart.yaml", [f"{key}={value}" for key, value in settings]):
                self.report(name, line, ", ".join(f"{key}={value}" for key, value in settings), problem)
        return len(page.commands) + len(page.yaml)

    # Commands of isthmus and isthmus-coordinator.

    def program_call(self, command, base):
        if len(command.words) == 1:
            self.mentions += 1
            return []
        verbs = self.verbs[base]
        call, wrong = command_spec.parse(command.words[1:], verbs)
        if wrong:
            return wrong
        lacks = command_spec.missing(call, verbs)
        if lacks and not command.inline:
            return [f"'{call.verb}' needs {', '.join(lacks)}; see `{base} {call.verb} --help`"]
        self.checked += 1
        problems = self.files(command.words[1:]) + self.call_settings(call)
        if problems:
            return problems
        reason = self.reason(call, lacks, command)
        if reason:
            self.reasons[reason] += 1
            return []
        if call.verb in LIVE:
            self.live.add(command, call, self.programs[base])
            return []
        if call.verb not in RUN and not call.values("--render"):
            return [f"no group of tests/docs/commands.py has '{call.verb}': add it to RUN, or to REASONS with a reason"]
        return self.run(command, call, base)

    def reason(self, call, lacks, command):
        if call.verb in REASONS and not call.values("--render"):
            return REASONS[call.verb]
        if lacks or (command.inline and call.verb and not call.positionals and not call.options):
            return "only named"
        if command.inline and call.verb in LIVE and not self.config_of(call) and call.verb != "attach":
            return "only named"
        if call.verb.startswith("certs") and any(PLACEHOLDER.fullmatch(word) for word in call.positionals):
            return "a name is left open"
        return None

    def config_of(self, call):
        """The config that the call names first, or None."""
        return next((self.room.mapped(word) for word in call.positionals[:1]
                     if self.room.mapped(word).endswith(".yaml")), None)

    def files(self, words):
        """Files of the project that the words name."""
        return [f"{word}: there is no such file" for word in words
                if re.match(r"(configs|examples|scripts|tests)/", word) and not (self.root / word).exists()]

    def call_settings(self, call):
        changes = [word for word in call.positionals if "=" in word] if call.verb == "ctl set" else []
        settings, file = call.values("--set") + changes, self.config_of(call)
        if call.verb == "compare":
            return self.comparison(call, file)
        if call.verb == "join" or (not file and not settings):
            return []
        if file and file.startswith("certs/"):  # `join` makes it
            return []
        if file and not (self.room.folder / file).exists():
            return [f"{file}: the test has no such file; correct the name, or add it to tests/docs/command_room.py"]
        return self.settings(file or "configs/quickstart.yaml", settings,
                             [word for name in call.values("--name")[:1] if call.verb == "worker" and "eu" in name
                              for word in ("--name", name)])

    def settings(self, file, settings, more=()):
        """The error of `isthmus config` for this config with these settings; a placeholder's key alone is checked."""
        words, problems = [], []
        for setting in settings:
            key, _, value = setting.partition("=")
            if PLACEHOLDER.fullmatch(value) or value in ("FILE", ""):
                problems += [] if PLACEHOLDER.fullmatch(key) else self.output(["config", "--explain", key])
            else:
                words += ["--set", self.room.mapped(setting)]
        return problems or self.output(["config", file, *words, *more])

    def comparison(self, call, file):
        if not file:
            return []
        words = [word for name, value in call.options if name in ("--set", "--size", "--certify") and
                 not str(value).endswith("=FILE") for word in (name, value) if word]
        problems = self.output(["compare", file, "--no-run", *words])
        return [problem for problem in problems if "nothing has been run yet" not in problem]

    def output(self, words, program=None, stdin=None, writes=False):
        """The program's error, or nothing; a call that writes nothing is made once."""
        key = (program, stdin, *words)
        if writes or key not in self.seen:
            done = self.room.call(words, program, stdin)
            self.seen[key] = [] if done.returncode == 0 else [
                f"`isthmus {' '.join(words)}` ended with status {done.returncode}: {done.stderr.strip()[-600:]}"]
            if not any(map(WIDE.fullmatch, words)):
                self.seen[key] += [f"`isthmus {' '.join(words)}` prints a line of {len(line)} columns: {line}"
                                   for line in too_wide(done.stdout)]
        return self.seen[key]

    def run(self, command, call, base):
        words = [self.room.mapped(word) for word in command.words[1:]]
        if call.values("--render"):
            words = ["cluster.yaml" if word == "CONFIG" else word for word in command.words[1:]]
        words += SHORTER.get(call.verb, [])
        if call.verb.startswith("certs"):
            words = command.words[1:]
            authority = f"certs/{call.positionals[0]}"
            if call.verb == "certs init":
                self.room.remove(authority)
            elif not (self.room.folder / authority).exists():
                self.output(["certs", "init", call.positionals[0]], writes=True)
        outputs = call.values("--out")
        writes = bool(outputs) or call.verb.startswith("certs")
        for out in outputs:
            self.room.remove(self.room.mapped(out))
        self.ran += 1
        stdin = (self.room.folder / "more.jsonl").read_text(encoding="utf-8") if command.piped else None
        return [f"{problem}; correct the command, or map what it names in tests/docs/command_room.py"
                for problem in self.output(words, self.programs[base], stdin, writes)]

    # Scripts, tests and other programs of the project.

    def script(self, command):
        path = command.words[0].removeprefix("./")
        self.checked += 1
        file = self.source(path)
        if file is None:
            return [f"{path}: there is no such file; correct the path"]
        if len(command.words) == 1 and command.inline:
            self.mentions += 1
            self.checked -= 1
            return []
        if file.suffix in (".sh", ".py") and not command.inline and not os.access(file, os.X_OK) and (
                command.text.startswith(path)):
            return [f"{path} is not executable; `chmod +x {path}`, or name its interpreter"]
        problems = self.files(command.words[1:])
        text = "".join(part.read_text(encoding="utf-8", errors="replace") for part in (
            file.parent.glob("*.[ch]*") if file.suffix == ".cpp" else [file]))
        passed_on = '"$@"' in text or "arguments[@]" in text
        known = self.verbs["isthmus"]
        for word in command.words[1:]:
            option = word.split("=")[0]
            named = re.search(re.escape(option) + r"(?![\w-])", text)
            if option.startswith("--") and not option.startswith("--gtest") and not named and not (
                    passed_on and option in {**known["launch"].options, **known["bench outer"].options}):
                problems.append(f"{path} does not know {option}; read its help, and correct the option")
        settings = [value for option, value in zip(command.words, command.words[1:]) if option == "--set"]
        if passed_on and settings:
            problems += self.settings("configs/quickstart.yaml", settings)
        reason = next((reason for pattern, reason in PROGRAM_REASONS if re.fullmatch(pattern, path)), None)
        if reason is None:
            return [*problems, f"no group of tests/docs/commands.py has {path}: add it to PROGRAM_REASONS"]
        self.reasons[reason] += 1
        return problems

    def source(self, path):
        """The file in the project that this is, or is made from."""
        name = pathlib.PurePosixPath(path)
        if "gpu_check" in name.name:
            return self.root / "scripts" / "gpu_check.sh"
        if name.parts[0] != "build":
            return self.root / path if (self.root / path).exists() else None
        presets = (self.root / "CMakePresets.json").read_text(encoding="utf-8")
        if len(name.parts) > 1 and f'"name": "{name.parts[1]}"' not in presets and name.parts[1] != "logs":
            return None
        if name.name.startswith("test_"):
            target = re.compile(rf"isthmus_test\({re.escape(name.name.removeprefix('test_'))}\b")
            return next((file for file in self.root.joinpath("tests").rglob("CMakeLists.txt")
                         if target.search(file.read_text(encoding="utf-8"))), None)
        if len(name.parts) == 2 or name.name in self.programs:
            return self.root / "CMakeLists.txt"
        return next(self.root.joinpath("tests").rglob(f"{name.name}.cpp"), None)

    # YAML.

    def yaml_block(self, block):
        self.checked += 1
        # "us: ..." stands for what the reader knows already.
        text = "\n".join(line for line in block.text.split("\n") if not re.fullmatch(r"\s*[\w.-]+: \.\.\.\s*", line))
        if re.search(r"^(rtt|other_rtt):", text, re.MULTILINE):
            file, words = "block-links.yaml", ["plan", "my.yaml", "--links", "block-links.yaml", "--step-time", "500ms"]
        elif re.search(r"^(arms|gates):", text, re.MULTILINE):
            # The page shows a file of configs/compare; here it lies next to the folder runs.
            text = text.replace("../quickstart.yaml", "configs/quickstart.yaml")
            if not re.search(r"^base:|\bruns:", text, re.MULTILINE):
                text += "base: configs/quickstart.yaml\n"
            file, words = "block-compare.yaml", ["compare", "block-compare.yaml", "--no-run"]
        else:
            file, words = "block.yaml", ["config", "block.yaml"]
            if not re.search(r"^data\b", text, re.MULTILINE):
                words += ["--set", "data.path=data/corpus"]
        (self.room.folder / file).write_text(text, encoding="utf-8")
        done = self.room.call(words)
        if done.returncode and "nothing has been run yet" not in done.stderr:
            self.report(block.page, block.line, "a block of YAML",
                        f"`isthmus {words[0]}` refuses it, correct the key or value: {done.stderr.strip()}")


def pages(root):
    names = [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").rglob("*.md"))]
    return [name for name in names if name.relative_to(root).as_posix() not in GENERATED and name.is_file()]


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    program, coordinator = (str(pathlib.Path(word).resolve()) for word in sys.argv[1:3])
    root = pathlib.Path(sys.argv[3] if len(sys.argv) > 3 else ".").resolve()
    # So that the live run is stopped and the folder removed; ctest kills it later, without a chance for that.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped by SIGTERM"))
    signal.signal(signal.SIGALRM, lambda *_: sys.exit(f"not done within {LIMIT} s"))
    signal.alarm(LIMIT)
    with tempfile.TemporaryDirectory() as folder:
        room = Room(folder, root, program)
        room.train()
        room.diagnose()
        programs = {"isthmus": program, "isthmus-coordinator": coordinator}
        verbs = {name: command_spec.load_verbs(path) for name, path in programs.items()}
        checker = Checker(programs, verbs, root, room)
        found = sum(checker.page(page.relative_to(root).as_posix(), page.read_text(encoding="utf-8"))
                    for page in pages(root))
        checker.ran += checker.live.run(
            lambda command, what: checker.report(command.page, command.line, command.text, what))
    if not found:
        checker.wrong.append(f"{root} has no commands: expected the project's root folder")
    print(f"{checker.checked} commands and blocks of YAML checked, {checker.ran} of them run, "
          f"{checker.mentions} programs and paths named")
    for reason, number in checker.reasons.most_common():
        print(f"  not run: {number:3} {reason}")
    if checker.wrong:
        sys.exit("\n".join(checker.wrong))


if __name__ == "__main__":
    main()
