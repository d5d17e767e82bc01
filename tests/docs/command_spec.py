"""Verbs, options and positionals of the built programs, read from their help, and checks of commands against them."""

import dataclasses
import re
import subprocess

HIDDEN = {"tether", "give-model"}  # started at sites by launch, and by export, eval and sample; no help lists them
GLOBAL = {"--help": False, "-h": False, "--version": False, "--torch": True}  # option: takes a value
RANGE = re.compile(r"(?:INT|UINT|FLOAT) in \[(\S+) - (\S+)\]")
# A word in capitals, three points, or a variable stands for a value.
PLACEHOLDER = re.compile(r"[A-Z][A-Z_]*|\.\.\.|.*\.\.\.|\$.*|KEY=VALUE")


@dataclasses.dataclass
class Verb:
    options: dict       # option: what value it takes, "" for a flag
    positionals: list   # (name, required, value)
    required: list      # options


@dataclasses.dataclass
class Call:
    verb: str
    options: list       # (option, value or None)
    positionals: list

    def values(self, option):
        return [value for name, value in self.options if name == option]


def read_verbs(markdown):
    """The verbs in the output of `help --markdown`."""
    verbs = {}
    for section in re.split(r"^### isthmus (?=[a-z])", markdown, flags=re.MULTILINE)[1:]:
        title, _, body = section.partition("\n")
        verb = Verb({}, [], [])
        for name, value, meaning in re.findall(r"^\| `([^`]+)` \| ([^|]*) \| [^|]* \| (.*) \|$", body, re.MULTILINE):
            needed = meaning.endswith("(required)")
            if name.startswith("-"):
                verb.options[name] = value.strip()
                verb.required += [name] if needed else []
            else:
                verb.positionals.append((name, needed, value.strip()))
        verbs[title.strip()] = verb
    return verbs


def load_verbs(program):
    done = subprocess.run([program, "help", "--markdown"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{program} help --markdown ended with status {done.returncode}: {done.stderr}")
    return read_verbs(done.stdout)


def parse(words, verbs):
    """The call that these words make, without the program, and a list of what is wrong with it."""
    groups = {name.split()[0] for name in verbs if " " in name}
    if not words or words[0].startswith("-"):
        wrong = [f"there is no option {word}" for word in words if word.split("=")[0] not in GLOBAL]
        return Call("", [(word, None) for word in words], []), wrong
    verb, rest = words[0], words[1:]
    if verb in HIDDEN:
        return Call(verb, [], []), []
    if verb in groups:
        if not rest:
            return Call(verb, [], []), []
        verb, rest = f"{verb} {rest[0]}", rest[1:]
    if verb not in verbs:
        return None, [f"there is no verb '{verb}'; `isthmus help` lists all"]
    known, call, wrong = verbs[verb], Call(verb, [], []), []
    while rest:
        word, rest = rest[0], rest[1:]
        if not word.startswith("--"):
            call.positionals.append(word)
            continue
        name, equals, value = word.partition("=")
        if name not in known.options and name not in GLOBAL:
            wrong.append(f"'{verb}' has no option {name}; `isthmus {verb} --help` lists all")
            continue
        if not known.options.get(name, "TEXT" if GLOBAL.get(name) else ""):
            call.options.append((name, None))
            continue
        if not equals:
            if not rest:
                wrong.append(f"{name} has no value")
                continue
            value, rest = rest[0], rest[1:]
        call.options.append((name, value))
        wrong += value_errors(name, value, known.options.get(name, "TEXT"))
    if not any(name.endswith("...") or name in ("names", "verb", "sources", "assignments")
               for name, _, _ in known.positionals) and len(call.positionals) > len(known.positionals):
        wrong.append(f"'{verb}' has no place for '{call.positionals[len(known.positionals)]}'")
    for (name, _, kind), value in zip(known.positionals, call.positionals):
        wrong += value_errors(name, value, kind)
    return call, wrong


def value_errors(name, value, kind):
    if PLACEHOLDER.fullmatch(value):
        return []
    if kind.startswith("{"):
        allowed = kind.strip("{}").split(",")
        return [] if value in allowed else [f"{name} is '{value}'; expected one of {', '.join(allowed)}"]
    if kind.split(" ")[0] in ("INT", "UINT", "FLOAT"):
        try:
            number = float(value)
        except ValueError:
            return [f"{name} is '{value}'; expected a number"]
        limits = RANGE.fullmatch(kind)
        if limits and not float(limits[1]) <= number <= float(limits[2]):
            return [f"{name} is {value}; expected {kind}"]
    return []


def missing(call, verbs):
    """Names of required options and positionals that the call lacks."""
    known = verbs.get(call.verb)
    if not known:
        return []
    given = {name for name, _ in call.options}
    lacks = [name for name in known.required if name not in given]
    needed = [name for name, required, _ in known.positionals if required]
    return lacks + needed[len(call.positionals):]
