#!/usr/bin/env python3
"""compatibility.py SOURCE_FOLDER [PAGE]: checks that docs/compatibility.md has every version that the
sources define."""
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
page = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else root / "docs/compatibility.md"
LAYERS = ("base", "quant", "data", "outer_sync", "trainer", "app", "python")
CONSTANT = r"\bconstexpr\s+[\w:]+\s+({})\s*=\s*(\d+)\s*;"
# Every constant with such a name needs a row.
ANY_CONSTANT = re.compile(CONSTANT.format(r"\w*(?:version|protocol)"))
ROW = re.compile(r"^\| (?P<what>[^|]+) \| `(?P<name>\w+)` \| (?P<version>[^|]+) \| `(?P<file>[^`|]+)` \|$", re.M)

rows = list(ROW.finditer(page.read_text(encoding="utf-8")))
wrong = [] if rows else [f"{page} has no table of rows `| what | `constant` | version | `file` |`"]
listed = set()
for row in rows:
    what, name, version, file = row["what"], row["name"], row["version"].strip(), row["file"]
    listed.add((file, name))
    source = root / file
    found = re.findall(CONSTANT.format(re.escape(name)), source.read_text(encoding="utf-8")) if source.is_file() else []
    if not source.is_file():
        wrong.append(f"row '{what}': {file} does not exist")
    elif len(found) != 1:
        wrong.append(f"row '{what}': {file} defines {name} {len(found)} times; expected `constexpr TYPE {name} = N;` once")
    elif found[0][1] != version:
        wrong.append(f"row '{what}': the page says {version}; {name} is {found[0][1]} in {file}")

for layer in LAYERS:
    for source in sorted(path for path in (root / layer).rglob("*") if path.suffix in (".h", ".cpp")):
        file = source.relative_to(root).as_posix()
        wrong += [f"{file} defines {name} = {version}, but the table has no row for it: add one"
                  for name, version in ANY_CONSTANT.findall(source.read_text(encoding="utf-8"))
                  if (file, name) not in listed]

if wrong:
    sys.exit(f"{page} differs from the sources:\n" + "\n".join(wrong))
print(f"{len(rows)} versions")
