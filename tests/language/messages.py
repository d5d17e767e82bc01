#!/usr/bin/env python3
"""Lists every message that a user can meet, and checks how it is written: messages.py [ROOT] [--list [FOLDER]]

Reads the calls in the sources that throw an Error or print a line, and joins the string literals of each; `{}` stands
for a value, and `|` for a choice. `--list` prints file:line and text, so that each new message can be read once as its reader will: without
the code around it. RULES says what a message must be; what cannot be checked is in CONTRIBUTING.md.
"""

import argparse
import pathlib
import re
import sys

FOLDERS = ("app", "base", "data", "outer_sync", "quant", "trainer", "python/src")
# Calls that take a message. `Error(ErrorKind::network, text)` is one of them.
CALL = re.compile(r"(?<![\w:])(?:\w+::)*(Error|config_error|data_error|network_error|fail|refuse|refuse_transfer|"
                  r"say|say_error|say_note|note|add_note|complain|report|warn|broken)\s*\((?!\s*\))")
LITERAL = re.compile(r'R"(\w*)\((.*?)\)\1"|"((?:\\.|[^"\\\n])*)"', re.DOTALL)
FORMAT = re.compile(r"\{(?:\d+)?(?::[^{}]*)?\}")
ESCAPES = {"\\n": " ", "\\t": " ", '\\"': '"', "\\\\": "\\"}

# Words in two cases that are names, not C++ types.
NAMES = {"AdamW", "GeForce", "GitHub", "JSONLines", "KiB", "LayerNorm", "MiB", "GiB", "TiB", "NaN", "OpenSSL", "PyTorch",
         "RMSNorm", "SentencePiece", "SwiGLU", "TensorBoard", "Gbit", "Mbit", "LocalSGD", "SparseLoCo", "DiLoCo", "ZeRO",
         "ProxyJump", "EiB", "PiB",
         "DistributedDataParallel", "ByteLevel", "TemplateProcessing", "RobertaProcessing", "BertProcessing"}
RULES = [
    ("begins with a capital letter", re.compile(r"^[A-Z][a-z]+\b(?!['.])")),
    ("ends with a period", re.compile(r"(?<!\.\.)\.$")),
    ("ends with an exclamation mark", re.compile(r"(?<!\(\?)!$")),
    ("has two spaces in a row", re.compile(r"\S  \S")),
    ("names C++", re.compile(r"\w::\w|\bstd\b|\bnullptr\b|\bassert|\bexception\b(?! of)|\b\w+_\b(?!\*)")),
    ("names a type", re.compile(r"\b[A-Z][a-z]+[A-Z]\w*\b")),
    ("says nothing", re.compile(r"^(?:\{\} ?)?(?:failed|error|invalid|bad|wrong|unexpected|not allowed|impossible)$", re.I)),
    ("blames", re.compile(r"\b(?:illegal|you must|you forgot|stupid|nonsense|oops|sorry|please)\b", re.I)),
]


def end_of(text, begin):
    """The index after the parenthesis that closes the one before `begin`."""
    depth, at = 1, begin
    while at < len(text) and depth:
        literal = LITERAL.match(text, at)
        if literal:
            at = literal.end()
            continue
        if text[at] == "'" and re.match(r"'(?:\\.|[^'\\])'", text[at:]):
            at += len(re.match(r"'(?:\\.|[^'\\])'", text[at:])[0])
            continue
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(text[at], 0)
        at += 1
    return at


def without_comments(text):
    """The same text with comments blanked, so that positions stay."""
    part = re.compile(r'R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
    return part.sub(lambda m: re.sub(r"[^\n]", " ", m[0]) if m[0].startswith("/") else m[0], text)


def text_of(arguments):
    """The literals of a call as one text; {} stands for all else between them."""
    out, at = "", 0
    for literal in LITERAL.finditer(arguments):
        between = arguments[at:literal.start()]
        if out and re.search(r"[?:]\s*$", between):
            out += "|" if between.strip() == ":" else "{}"  # a choice of two texts
        elif re.search(r"\w", re.sub(r"\b(?:fmt::format|std::string|ErrorKind::\w+|throw|Error|return)\b", "", between)):
            out += "{}" if out and not out.endswith("{}") else ""
        raw = literal[2] if literal[2] is not None else literal[3]
        out += re.sub(r"\\.", lambda m: ESCAPES.get(m[0], m[0]), raw)
        at = literal.end()
    return re.sub(r"\s+", " ", FORMAT.sub("{}", out)).strip()


def messages(path, text):
    text = without_comments(text)
    end = 0
    for call in CALL.finditer(text):
        if call.start() < end:  # inside another message
            continue
        begin = call.end()
        close = end_of(text, begin)
        arguments = text[begin:close - 1]
        if call[1] == "Error" and not arguments.lstrip().startswith("ErrorKind"):
            continue
        message = text_of(arguments)
        if " " in message:
            end = close
            yield path, text.count("\n", 0, call.start()) + 1, message


def sources(root, folder=None):
    for name in ([folder] if folder else FOLDERS):
        base = root / name
        files = [base] if base.is_file() else sorted(base.rglob("*"))
        yield from (file for file in files if file.suffix in (".cpp", ".h", ".cu"))


def broken_rules(message):
    for what, rule in RULES:
        found = [word for word in rule.findall(message) if word not in NAMES]
        if found:
            yield what


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", nargs="?", type=pathlib.Path, default=pathlib.Path(__file__).parents[2])
    parser.add_argument("--list", nargs="?", const="", metavar="FOLDER")
    options = parser.parse_args()
    wrong, count = [], 0
    for file in sources(options.root, options.list):
        for path, line, message in messages(file.relative_to(options.root), file.read_text(encoding="utf-8")):
            count += 1
            if options.list is not None:
                print(f"{path}:{line}: {message}")
            wrong += [f"{path}:{line}: {what}: {message}" for what in broken_rules(message)]
    if options.list is None:
        print(f"{count} messages")
    if not count:
        sys.exit(f"{options.root} has no messages; expected the project's root folder")
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
