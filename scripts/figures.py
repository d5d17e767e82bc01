#!/usr/bin/env python3
"""Lists how often the code behind the docs' figures has changed since they were measured.

    scripts/figures.py [--check] [ROOT]

A page with figures has a comment near its top, <!-- figures of: FOLDER... -->, that names the source folders on which
they depend. For each commit that such a page names, as 7 to 12 hex digits with a letter and a number among them, this
prints how many later commits changed these folders, under their present names. --check fails for a commit that is not
in the history (it skips that in a shallow clone and outside a git checkout), for a folder that does not exist, and for
a page of results with a table of figures and no commit between that table's heading and the next one.
"""
import pathlib
import re
import subprocess
import sys

RESULTS = ("docs/gpu.md", "docs/learning.md", "docs/learning/*.md", "docs/results/*.md")
DEPENDS = re.compile(r"^<!-- figures of: ([^>]*?) *-->$", re.MULTILINE)
COMMIT = re.compile(r"(?<![\w/#-])(?=\d*[a-f])(?=[a-f]*\d)[0-9a-f]{7,12}(?![\w-])")
CODE = re.compile(r"^(```|~~~).*?^\1|^(?: {4}|\t)[^\n]*$", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^#{1,6} ", re.MULTILINE)
FIGURE = re.compile(r"[*(]*[+-]?\d*\.?\d")


def without_code(text):
    """The text with blanks instead of blocks of code, so that lines keep their numbers."""
    return CODE.sub(lambda code: re.sub(r"[^\n]", " ", code.group()), text)


def commits(text):
    """The commits that a page names, in its order."""
    return list(dict.fromkeys(COMMIT.findall(without_code(text))))


def folders(text):
    """The source folders of a page's figures; None if the page has no figures."""
    found = DEPENDS.search(text)
    return found and found.group(1).split()


def git(root, *arguments):
    done = subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def no_history(root):
    """The reason why this checkout does not show which commits exist; None if it does."""
    shallow = git(root, "rev-parse", "--is-shallow-repository")
    if shallow is None or pathlib.Path(git(root, "rev-parse", "--show-toplevel")).resolve() != root:
        return f"{root} is not a git checkout"
    return "this clone is shallow" if shallow == "true" else None


def has_figures(row):
    """Whether a row of a table has a figure and no link to the place of its figures."""
    return "](" not in row and any(FIGURE.match(cell.strip()) for cell in row.split("|")[2:])


def tables_without_commit(text):
    """The lines of the tables with figures in a section that names no commit."""
    text = without_code(text)
    starts = [0] + [heading.start() for heading in HEADING.finditer(text)] + [len(text)]
    for start, end in zip(starts, starts[1:]):
        if COMMIT.search(text[start:end]):
            continue
        line, in_table = text.count("\n", 0, start), False
        for row in text[start:end].split("\n"):
            line += 1
            if re.match(r"\| *:?-", row):
                in_table, table = True, line - 1
            elif not row.startswith("|"):
                in_table = False
            elif in_table and has_figures(row):
                yield table
                in_table = False


def check(root, pages):
    """The faults of the pages; prints why a part was not checked."""
    skipped = no_history(root)
    results = [page for pattern in RESULTS for page in sorted(root.glob(pattern))]
    for page in results:
        name, text = page.relative_to(root), page.read_text(encoding="utf-8")
        if folders(text) is None:
            yield f"{name}: expected <!-- figures of: FOLDER... --> near the top: the sources its figures depend on"
        for line in tables_without_commit(text):
            yield f"{name}:{line}: this table's section names no commit; say at which one it was measured"
    for name, text in pages.items():
        for folder in folders(text):
            if not (root / folder).exists():
                yield f"{name}: figures of {folder}: there is no such folder"
        for commit in [] if skipped else commits(text):
            if git(root, "merge-base", "--is-ancestor", commit, "HEAD") is None:
                yield f"{name}: {commit} is not in the history; name the commit that was measured"
    if not pages:
        yield f"{root} has no page with figures: expected the project's root folder"
    if skipped:
        print(f"{skipped}: did not check that the commits exist")


def main():
    arguments = [argument for argument in sys.argv[1:] if argument != "--check"]
    root = pathlib.Path(arguments[0] if arguments else ".").resolve()
    texts = {page.relative_to(root): page.read_text(encoding="utf-8")
             for page in [*root.glob("*.md"), *sorted(root.glob("docs/**/*.md"))]}
    pages = {name: text for name, text in texts.items() if folders(text) is not None}
    if "--check" in sys.argv:
        if wrong := list(check(root, pages)):
            sys.exit("\n".join(wrong))
        print(f"{sum(len(commits(text)) for text in pages.values())} commits on {len(pages)} pages")
        return
    for name, text in pages.items():
        for commit in commits(text):
            counts = [f"{git(root, 'rev-list', '--count', f'{commit}..HEAD', '--', folder) or '?'} commits to {folder}"
                      for folder in folders(text)]
            print(f"{name}: {commit}: {', '.join(counts)} since", flush=True)


if __name__ == "__main__":
    main()
