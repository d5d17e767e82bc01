"""Counts expressions that make the project's English hard to read: check.py [ROOT] [--list [FOLDER]]

Reads comments and string literals of the sources, the comments of scripts and configs, and the docs. The count per
folder must not be above the one in limits.json beside this file, and limits.json must not be higher than needed:
`check.py --update` lowers it. `--list` prints file:line, the expression and the line.
"""

import argparse
import json
import pathlib
import re
import sys

# Each of these made a reader read a sentence twice. What to write instead is in CONTRIBUTING.md.
EXPRESSIONS = {
    "begins with Of/What/Who": r"(?:^|[.:;!?] )(?:Of (?:one|those|this|what|all|an?|the|both|each|its|his|who)|What(?! if)|Whoever|Who|Whose)\b",
    "is none": r"\b(?:is|are|was) none\b",
    "that cannot be": r"\bcannot be[.;,\"]|\bcannot be$",
    "somewhen": r"\bsomewhen\b",
    "begin as a noun": r"\b(?:the|its|a|each) begin\b",
    "in place of": r"\bin place of\b",
    "beside": r"\bbeside\b",
    "so many": r"\bso many\b",
    "as it was": r"\bas (?:it|they) (?:was|were)\b",
    "go on": r"\b(?:go|goes|went|going) on\b",
    "is said": r"\b(?:is|are|was|were) said\b|\bsays so\b",
    "takes the state": r"\b(?:take|takes|took|taken|taking) the state\b",
    "for people": r"\bfor people\b",
    "no more": r"\b(?:good|counts?|is|are) no more\b",
    "whatever": r"\bwhatever\b",
    "nobody/somebody": r"\b(?:nobody|somebody|whoever|whom|whose)\b",
    "one that/those that": r"\b(?:one|those|him|them) (?:who|that)\b",
    "who as a relative": r"\b(?:who|whom) (?:is|are|has|have|was|were|does|do|will|can|may|takes?|gives?|comes?|asks?|joins?|leaves?|trains?)\b",
    "where there is none": r"\bwhere (?:there )?(?:is|are) (?:none|nothing)\b",
    "stands for a state": r"\b(?:stands|stood|stand) (?:nowhere|there|at|where|in)\b",
    "say/tell/hear for messages": r"\b(?:tells?|told|hears?|heard)\b",
}
NAMES = {"most_/least_": r"\b(?:most|least)_[a-z]\w*"}
FOUND = {name: re.compile(pattern, 0 if name.startswith("begins") else re.IGNORECASE) for name, pattern in EXPRESSIONS.items()}
FOUND_NAMES = {name: re.compile(pattern) for name, pattern in NAMES.items()}
FOLDERS = ("app", "base", "cmake", "configs", "data", "docs", "examples", "outer_sync", "packaging", "python", "quant",
           "scripts", "tests", "trainer")
EXEMPT = {pathlib.Path("CHANGELOG.md"), pathlib.Path("CONTRIBUTING.md")}
CODE = {".h", ".cpp", ".cu", ".cuh", ".inc"}
HASH = {".py", ".sh", ".cmake", ".yaml", ".txt"}
TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|R"\w*\(.*?\)\w*"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'', re.DOTALL)
FENCE = re.compile(r"^(```|~~~).*?^\1|^    .*?$", re.DOTALL | re.MULTILINE)


def blank(text):
    return re.sub(r"[^\n]", " ", text)


def prose(path, text):
    """Line number and text of each piece of prose in a file."""
    if path.suffix in CODE:
        for token in TOKEN.finditer(text):
            word, line = token.group(), text.count("\n", 0, token.start()) + 1
            if word.startswith(("//", "/*")):
                for number, part in enumerate(word.split("\n"), line):
                    yield number, part.lstrip("/*< ")
            elif not word.startswith("'") and " " in word:
                yield line, word.strip('"')
    elif path.suffix in HASH:
        for number, line in enumerate(text.split("\n"), 1):
            comment = re.search(r"(?:^|\s)#+ ?(.*)|\"\"\"(.*)|\"([^\"]* [^\"]*)\"", line)
            if comment:
                yield number, next(group for group in comment.groups() if group is not None)
    elif path.suffix == ".md":
        for number, line in enumerate(FENCE.sub(lambda fence: blank(fence.group()), text).split("\n"), 1):
            yield number, re.sub(r"`[^`]*`", "`", line)


def hits(path, text):
    """Line number, expression and line of each hit in a file."""
    for number, line in prose(path, text):
        for name, found in FOUND.items():
            for _ in found.finditer(line):
                yield number, name, line.strip()
    if path.suffix in CODE:
        code = TOKEN.sub(lambda token: blank(token.group()), text)
        for number, line in enumerate(code.split("\n"), 1):
            for name, found in FOUND_NAMES.items():
                for hit in found.finditer(line):
                    yield number, name, hit.group()


def folder_of(path):
    """A folder of the root, or of outer_sync/, which is the largest."""
    parts = [part for part in path.parts[:-1] if part not in ("include", "isthmus")]
    if not parts:
        return "."
    if parts[0] != "outer_sync":
        return parts[0]
    parts = [part for place, part in enumerate(parts) if place == 0 or part != "outer_sync"]
    return "/".join(parts[: 3 if len(parts) > 1 and parts[1] in ("net", "protocol") else 2])


def files(root):
    """All texts of the project, as paths below the root."""
    names = list(root.glob("*.md"))
    for folder in FOLDERS:
        names += (root / folder).rglob("*")
    for file in sorted(names):
        path = file.relative_to(root)
        if path.suffix in CODE | HASH | {".md"} and path not in EXEMPT and "language" not in path.parts and file.is_file():
            yield path


def all_hits(root):
    for path in files(root):
        for number, expression, line in hits(path, (root / path).read_text(encoding="utf-8", errors="replace")):
            yield path, number, expression, line


def count(root):
    counts = {}
    for path, *_ in all_hits(root):
        folder = folder_of(path)
        counts[folder] = counts.get(folder, 0) + 1
    return counts


def differences(counts, limits):
    """A sentence for each folder whose count is not its limit."""
    found = []
    for folder in sorted(limits.keys() | counts.keys()):
        here, limit = counts.get(folder, 0), limits.get(folder, 0)
        if here > limit:
            found.append(f"{folder}: {here} hard expressions, at most {limit}: see check.py --list {folder}")
        elif here < limit:
            found.append(f"{folder}: {here} hard expressions, fewer than {limit}: run tests/language/check.py --update")
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root", nargs="?", default=".", type=pathlib.Path)
    parser.add_argument("--list", nargs="?", const="", metavar="FOLDER")
    parser.add_argument("--update", action="store_true")
    arguments = parser.parse_args()
    limits_file = pathlib.Path(__file__).with_name("limits.json")
    if arguments.list is not None:
        for path, number, expression, line in all_hits(arguments.root):
            if str(path).startswith(arguments.list):
                print(f"{path}:{number}: {expression}: {line[:140]}")
        return 0
    counts = count(arguments.root)
    if arguments.update:
        limits_file.write_text(json.dumps(counts, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        return 0
    found = differences(counts, json.loads(limits_file.read_text(encoding="utf-8")))
    print("\n".join(found) or f"{sum(counts.values())} hard expressions, none new")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
