"""Finds the commands, settings and YAML blocks in a page of the docs. commands.py checks what is found here."""

import dataclasses
import re
import shlex

# Programs of the project. A line of code that begins with another word is output, YAML, Python or C++, or a command of
# another project's program.
OURS = re.compile(r"(?:[\w~.-]*/)*isthmus(?:-coordinator)?|gpu_check\.sh"
                  r"|(?:\./)?(?:build/[\w.-]+|scripts|examples|tests|gpu-kit)/[\w./-]+")
FOREIGN = {"cmake", "curl", "export", "find", "git", "nano/bin/pip", "nano/bin/python", "pip", "pip3", "rsync",
           "source", "ssh", "tar", "tensorboard", "v/bin/pip", "~/isthmus/bin/pip", "bash", "true",
           "nvidia-cuda-mps-control",
           "mkdir", "cat", "ninja", "ctest", "python", "python3", "jq", "mail"}
# These run the command that follows them.
PREFIXES = {"sudo", "exec", "time", "$"}
INTERPRETERS = {"python", "python3", ".venv/bin/python", ".venv/bin/python3", "sh", "bash"}
FENCE = re.compile(r"^(```|~~~)(\w*)")
INLINE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
SETTING = re.compile(r"([a-z_]+(?:\.[a-z_]+)+)=([^\s=][^\s]*)")
CONFIG = re.compile(r"(?:run|model|data|inner|trainer|replicas?|outer|join|network|metrics|dashboard|worker|launch|"
                    r"sites|device|rtt|arms|base|gates):(?:\s|$)")


@dataclasses.dataclass
class Command:
    page: str
    line: int
    words: list
    text: str           # as the page has it, for messages
    inline: bool        # a mention in prose, which may leave out what a command needs
    piped: bool = False  # part of a pipeline


@dataclasses.dataclass
class Block:
    page: str
    line: int
    text: str


@dataclasses.dataclass
class Page:
    commands: list
    yaml: list
    settings: list      # (line, key, value) in prose
    configs: list       # (line, path below configs/) in prose
    foreign: int = 0    # commands of other projects' programs


def split_page(text):
    """The code blocks as (first line, lines), and the prose as (line, text)."""
    blocks, prose, fence, block = [], [], None, None
    for number, line in enumerate(text.split("\n"), 1):
        mark = FENCE.match(line)
        if fence:
            if mark and mark.group(1) == fence:
                fence = block = None
            else:
                block[1].append(line)
        elif mark:
            fence = mark.group(1)
            block = (number + 1, [])
            blocks.append(block)
        elif line.startswith("    ") or (block and not line.strip()):
            if not block:
                block = (number, [])
                blocks.append(block)
            block[1].append(line[4:])
        else:
            block = None
            prose.append((number, line))
    return blocks, prose


def is_open(text):
    """Whether a quotation that begins in this text does not end in it."""
    quote = None
    at = 0
    while at < len(text):
        letter = text[at]
        if letter == "\\" and quote != "'":
            at += 1
        elif quote:
            quote = None if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        at += 1
    return quote is not None


def without_comment(line):
    """The line up to a # that begins a comment: outside quotations, at the beginning or after a blank."""
    for found in re.finditer(r"(?:^|(?<=\s))#", line):
        if not is_open(line[:found.start()]):
            return line[:found.start()].rstrip()
    return line.rstrip()


def first_word(line):
    words = line.split()
    while words and (words[0] in PREFIXES or re.fullmatch(r"[A-Z_]+=\S*", words[0]) or words[0] in ("do", "then")):
        words = words[1:]
    return words[0] if words else ""


def is_command(line):
    word = first_word(line)
    return word == "for" or bool(OURS.fullmatch(word)) or word in FOREIGN | INTERPRETERS


def shell_lines(first, lines):
    """Logical lines of shell in a block as (line, text): continued lines are joined, and a loop is one line."""
    found, at = [], 0
    while at < len(lines):
        start, line = at, without_comment(lines[at])
        at += 1
        if not is_command(line.strip()):
            continue
        while at < len(lines) and (line.endswith(("\\", "|", "&&")) or is_open(line)):
            line = (line[:-1].rstrip() + " " if line.endswith("\\") else line + " ") + (
                lines[at].strip() if is_open(line) else without_comment(lines[at]).strip())
            at += 1
        if first_word(line) == "for":
            while not re.search(r"\bdone\b", line) and at < len(lines):
                line = line[:-1] if line.endswith("\\") else line + " ; "
                line += without_comment(lines[at]).strip()
                at += 1
            line = re.sub(r"\bdo\s*;", "do ", line)
        found.append((first + start, line.strip()))
    return found


def without_loops(line):
    """The line with each `for NAME in WORDS; do BODY; done` replaced by its bodies."""
    loop = re.compile(r"\bfor (\w+) in ([^;]*?)\s*; *do\b(.*?);?\s*\bdone\b")
    while found := loop.search(line):
        name, values, body = found.groups()
        values = values.split() if "$" not in values else ["1"]
        bodies = [re.sub(rf"\$(?:{name}\b|\{{{name}\}})", value, body).strip(" ;") for value in values]
        line = line[:found.start()] + " ; ".join(bodies) + line[found.end():]
    return line


def simple_commands(line):
    """The words of each simple command in a line of shell, and whether it is part of a pipeline."""
    line = re.sub(r"\[(--[^\[\]]*(?:\[[^\]]*\])?[^\[\]]*)\]", r"\1", without_loops(line))
    line = re.sub(r"(?:[A-Za-z]+ )?>&2", "", line)
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;()<>")
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        tokens = list(lexer)
    except ValueError:
        return [(line.split(), False)]
    commands, words, piped, skip = [], [], False, False
    for token in tokens + [";"]:
        if token and set(token) <= set("|&;()<>"):
            if set(token) <= {">"}:
                skip = True
                continue
            if words:
                commands.append((words, piped or token == "|"))
            piped = token == "|"
            words = []
        elif skip:
            skip = False
        else:
            words.append(token)
    return commands


def unwrapped(words):
    """The words without what only starts the program: assignments, sudo, an interpreter."""
    while words and (words[0] in PREFIXES or re.fullmatch(r"[A-Z_]+=.*", words[0])):
        words = words[1:]
    if len(words) > 1 and words[0] in INTERPRETERS:
        script = next((word for word in words[1:] if not word.startswith("-")), "")
        if OURS.fullmatch(script):
            words = words[words.index(script):]
    return words


def read_page(page, text):
    found = Page([], [], [], [])
    blocks, prose = split_page(text)
    for first, lines in blocks:
        content = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
        if content and CONFIG.match(content[0]):
            # Commands may follow in the same block.
            starts = [at for at, line in enumerate(lines) if not line.startswith(" ") and is_command(line)]
            end = starts[0] if starts else len(lines)
            found.yaml.append(Block(page, first, "\n".join(lines[:end]) + "\n"))
            first, lines = first + end, lines[end:]
        for line, shell in shell_lines(first, lines):
            for words, piped in simple_commands(shell):
                add(found, page, line, words, shell, False, piped)
    for line, text in prose:
        for span in INLINE.finditer(text.replace("\\|", "|")):
            code = span.group(1).strip()
            if OURS.fullmatch(first_word(code)) or first_word(code) in INTERPRETERS:
                for words, piped in simple_commands(code):
                    add(found, page, line, words, code, True, piped)
            elif re.fullmatch(r"configs/[\w./-]+", code):
                found.configs.append((line, code))
            else:
                found.settings += [(line, key, value) for key, value in SETTING.findall(code)]
    return found


def add(found, page, line, words, text, inline, piped):
    words = unwrapped(words)
    if not words:
        return
    if OURS.fullmatch(words[0]):
        found.commands.append(Command(page, line, words, text, inline, piped))
    else:
        found.foreign += 1
