"""Hooks of mkdocs.yml, which scripts/docs_site.sh builds. The pages are written for a forge, where links lead into the
whole tree. In the site, README.md becomes isthmus.md, and files outside docs/ to which a page links become pages below
tree/. The navigation has the pages that docs/README.md lists, and the first use of a term on a page links to the
glossary."""
import html
import pathlib
import posixpath
import re
import sys

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "tests/docs"))
import links  # noqa: E402

FRONT = "isthmus.md"
LANGUAGES = {".yaml": "yaml", ".sh": "bash", ".py": "python", ".h": "cpp", ".cpp": "cpp", ".json": "json"}
# These pages are printed by the program, as a table alone.
PRINTED = {
    "config.md": "# Config keys\n\nAll keys of a config, with their defaults: the output of `isthmus config`.\n\n",
    "metrics.md": "# Metrics\n\nAll metrics that a process serves: the output of `isthmus help --metrics`.\n\n",
}
# Terms that are also everyday words: links on them would be noise.
EVERYDAY = {"site", "merge", "frozen", "result", "round", "in flight", "commit", "chain", "member", "seal", "reference",
            "lost", "evicted", "catch up", "operator", "link", "path", "delay", "owner", "drain", "agent", "view"}
TABS = {"Learn": "Start", "How to": "How-to"}
ROW = re.compile(r"^\| ([^|]+) \| (.+) \|$", re.MULTILINE)
NO_TERMS_IN = {"a", "code", "pre", "h1", "h2", "h3", "h4", "th", "svg"}


def navigation(index):
    """mkdocs' `nav` from the text of docs/README.md: a tab for each heading, a section for each row in bold, and one for
    each list of pages behind a colon. A page that several tables list is in the last of them."""
    tabs, tables = [], re.split(r"^## ", index, flags=re.MULTILINE)[1:]
    for number, table in enumerate(tables):
        later = {target for other in tables[number + 1:] for target in pages(other)}
        kind = re.match(r"[^:\n]+", table).group()
        top = group = [{"All pages": "README.md"}, {"What Isthmus is": FRONT}] if number == 0 else []
        for row in re.findall(r"^\| .+ \|$", table, re.MULTILINE):
            if title := re.match(r"\| \*\*(.+)\*\* \|", row):
                group = []
                top.append({title.group(1): group})
                continue
            listed = [page for page in pages(row) if page not in later]
            name = re.search(r"\| \[(.+?)\]\(\S+\): \[", row)
            group += [{name.group(1).capitalize(): listed}] if name else listed
        tabs.append({TABS.get(kind, kind): top})
    return tabs


def pages(text):
    """The pages to which a text links, each once."""
    return list(dict.fromkeys(target.partition("#")[0] for target in links.LINK.findall(text) if "#" != target[0]))


def on_config(config):
    config.nav = navigation((ROOT / "docs/README.md").read_text(encoding="utf-8"))
    return config


def source(page):
    """The path below the root of the file from which a page of the site is made."""
    if page == FRONT:
        return "README.md"
    if not page.startswith("tree/"):
        return "docs/" + page
    path = page.removeprefix("tree/")
    candidates = (path, path.removesuffix(".md"), posixpath.dirname(path))
    return next(candidate for candidate in candidates if (ROOT / candidate).exists())


def place(path):
    """The page of the site for a file or folder below the root."""
    if path == "README.md":
        return FRONT
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if (ROOT / path).is_dir():
        return f"tree/{path}/README.md"
    return f"tree/{path}" if path.endswith(".md") else f"tree/{path}.md"


def targets(text, path):
    """(begin, end, path below the root, anchor) of each link to another file, in the text of the file at `path`."""
    for link in links.LINK.finditer(links.without_code(text)):
        target, _, anchor = link.group(1).partition("#")
        if target and not re.match(r"[a-z]+:", target):
            yield *link.span(1), posixpath.normpath(posixpath.join(posixpath.dirname(path), target)), anchor


def content(path):
    """The text of a page of the site, before its links are adapted."""
    file = ROOT / path
    if file.is_dir():
        names = sorted(entry.name for entry in file.iterdir() if entry.is_file())
        return f"# {path}\n\n" + "".join(f"- [{name}]({name})\n" for name in names)
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".md":
        return text
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"# {path}\n\n{fence}{LANGUAGES.get(file.suffix, 'text')}\n{text.rstrip()}\n{fence}\n"


def on_files(files, *, config):
    """Adds the pages of files outside docs/, and of those to which these link."""
    known = {"docs/" + file.src_uri for file in files}
    todo = ["README.md", *sorted(path for path in known if path.endswith(".md"))]
    while todo:
        path = todo.pop()
        if path not in known:
            known.add(path)
            files.append(File.generated(config, place(path), content=content(path)))
        # A link of a listed folder's page is relative to the folder.
        base = path + "/README.md" if (ROOT / path).is_dir() else path
        todo += [target for *_, target, _ in targets(content(path), base)
                 if target not in known and (ROOT / target).exists()]
    return files


def on_page_markdown(markdown, *, page, **_):
    """Makes links lead to pages of the site. Sources are not searched."""
    here, path = page.file.src_uri, source(page.file.src_uri)
    if here.startswith("tree/"):
        page.meta["search"] = {"exclude": True}
    base = path + "/README.md" if (ROOT / path).is_dir() else path
    for begin, end, target, anchor in reversed(list(targets(markdown, base))):
        if (ROOT / target).exists():
            link = posixpath.relpath(place(target), posixpath.dirname(here) or ".")
            markdown = markdown[:begin] + link + ("#" + anchor if anchor else "") + markdown[end:]
    return PRINTED.get(here, "") + markdown


def terms():
    """{term in lower case: (its anchor in the glossary, meaning)}."""
    found = {}
    for names, meaning in ROW.findall((ROOT / "docs/glossary.md").read_text(encoding="utf-8")):
        for name in names.split(", "):
            if name not in EVERYDAY and names != "term" and not names.startswith("-"):
                found[name.lower()] = (anchor_of(names), re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", meaning))
    return found


def anchor_of(names):
    return "term-" + re.sub(r"\W+", "-", names.lower())


def on_page_content(text, *, page, **_):
    here = page.file.src_uri
    text = with_named_tables(text)
    if here == "glossary.md":
        return re.sub(r"<tr>\n<td>([^<]+)</td>", lambda row: f'<tr>\n<td id="{anchor_of(row.group(1))}">{row.group(1)}</td>',
                      text)
    return text if here.startswith("tree/") else with_terms(text, here)


def with_named_tables(text):
    """The page with the heading above it as the name of each table, and its headings marked as those of columns, for
    screen readers."""
    heading = None

    def marked(tag):
        nonlocal heading
        heading = tag.group(1) or heading
        if tag.group() == "<table":
            return f'<table aria-labelledby="{heading}"' if heading else tag.group()
        return '<th scope="col"' if tag.group() == "<th" else tag.group()

    return re.sub(r'<h[1-6] id="([^"]+)"|<table\b|<th\b', marked, text)


def with_terms(text, here):
    """The page with a link to the glossary at the first use of each term, outside of links, code and headings."""
    unused = terms()
    glossary = posixpath.relpath("glossary.html", posixpath.dirname(here) or ".")
    pattern = re.compile(r"\b(" + "|".join(sorted(map(re.escape, unused), key=len, reverse=True)) + r")(s?)\b", re.IGNORECASE)

    def linked(use):
        term = use.group(1).lower()
        # H is a term, h is not.
        if term not in unused or (len(term) == 1 and use.group(1) != term.upper()):
            return use.group()
        anchor, meaning = unused.pop(term)
        return f'<a class="term" href="{glossary}#{anchor}" title="{html.escape(meaning)}">{use.group()}</a>'

    inside, out = [], []
    for part in re.split(r"(<[^>]+>)", text):
        tag = re.match(r"<(/?)(\w+)", part)
        if tag and tag.group(2) in NO_TERMS_IN:
            inside = inside[:-1] if tag.group(1) else [*inside, tag.group(2)]
        out.append(part if tag or inside or part.startswith("<") else pattern.sub(linked, part))
    return "".join(out)
