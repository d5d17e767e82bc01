#!/usr/bin/env python3
"""links.py [ROOT]: checks the links between the docs.

Fails for a link in a Markdown file of the project to a missing file or heading, and for a path below docs/ that a
source, script, config or doc names and that does not exist; a title after such a path (docs/x.md, "Title") must be a
heading of that page.
"""
import pathlib
import re
import sys

FOLDERS = ("app", "base", "cmake", "configs", "data", "docs", "examples", "outer_sync", "packaging", "python", "quant",
           "scripts", "tests", "trainer")
SOURCES = {".h", ".cpp", ".cu", ".cuh", ".inc", ".py", ".sh", ".cmake", ".yaml", ".txt"}
# These name files that exist only in a test's own tree.
EXEMPT = {"tests/docs/links.py", "tests/docs/links_test.py", "tests/docs/figures_test.py",
          "tests/language/check_test.py"}
CODE = re.compile(r"^(```|~~~).*?^\1|^(?: {4}|\t)[^\n]*$|`[^`\n]*`", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(<?([^()\s>]+)>?(?: \"[^\"]*\")?\)")
HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)
ANCHOR = re.compile(r"<a (?:id|name)=\"([^\"]+)\"")
# Not preceded by a path: share/docs/x.md and https://host/docs/x.md are other files.
PATH = re.compile(r"(?<![\w./-])(?:\.\./)*(docs/[\w./-]*\w\.(?:md|svg|jsonl|json)\b)(?:,\s+(?:/+ *|# *)?(?:section )?\"(\w[^\"\n]*)\")?")


def without_code(text):
    """The text with blanks instead of code, so that lines keep their numbers."""
    return CODE.sub(lambda code: re.sub(r"[^\n]", " ", code.group()), text)


def titles(text):
    return [re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", title) for title in HEADING.findall(re.sub(
        r"^(```|~~~).*?^\1", "", text, flags=re.DOTALL | re.MULTILINE))]


def anchors(text):
    """The anchors of a page, as GitHub makes them from headings."""
    found = set(ANCHOR.findall(text))
    for title in titles(text):
        slug = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        unique, number = slug, 0
        while unique in found:
            number += 1
            unique = f"{slug}-{number}"
        found.add(unique)
    return found


def files(root):
    names = list(root.glob("*.md"))
    for folder in FOLDERS:
        names += (root / folder).rglob("*")
    return [name for name in sorted(names) if name.suffix in SOURCES | {".md"} and name.is_file()
            and name.relative_to(root).as_posix() not in EXEMPT]


def broken_links(page, text, root):
    for link in LINK.finditer(without_code(text)):
        target = link.group(1)
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.is_relative_to(root):
            yield link.start(), f"{target} is outside the project"
        elif not file.exists():
            yield link.start(), f"{target}: there is no such file"
        elif anchor and file.suffix == ".md" and anchor not in anchors(file.read_text(encoding="utf-8")):
            yield link.start(), f"{target}: {path or page.name} has no heading with this anchor"


def broken_paths(text, root):
    for named in PATH.finditer(text):
        path, title = named.groups()
        if not (root / path).is_file():
            yield named.start(), f"{path}: there is no such file"
        elif title and title not in titles((root / path).read_text(encoding="utf-8")):
            yield named.start(), f"{path} has no heading '{title}'"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    wrong, links = [], 0
    for file in files(root):
        text = file.read_text(encoding="utf-8", errors="replace")
        found = []
        if file.suffix == ".md":
            links += len(LINK.findall(without_code(text)))
            found += broken_links(file, text, root)
        # A changelog may name files of older versions.
        if file != root / "CHANGELOG.md":
            found += broken_paths(without_code(text) if file.suffix == ".md" else text, root)
        wrong += [f"{file.relative_to(root)}:{text.count(chr(10), 0, at) + 1}: {reason}" for at, reason in found]
    if not links:
        wrong.append(f"{root} has no links: expected the project's root folder")
    if wrong:
        sys.exit("\n".join(wrong))
    print(f"{links} links")


if __name__ == "__main__":
    main()
