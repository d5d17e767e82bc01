"""Checks that the sources under a root keep to the layers: check.py [ROOT]

A folder uses only the folders below it, libtorch stays in trainer/, quant/ knows no sockets, and the outer loop's
protocol and methods know neither sockets nor threads, clocks or chance. The link graph enforces a part of this; the
rest (a relative path into another folder, a clock in a state machine) is found here, by reading the sources.
Prints file:line and the rule for each breach, and exits 1 if there is any.
"""

import pathlib
import re
import sys

MAY_USE = {
    "base": [],
    "quant": ["base"],
    "data": ["base"],
    "outer_sync": ["base", "quant"],
    "trainer": ["base", "quant", "data", "outer_sync"],
    "app": ["base", "quant", "data", "outer_sync", "trainer"],
}
# The coordinator, the reduce-only member and replay are built without libtorch too, so app/ keeps out of it as well.
LIBTORCH = re.compile(r"(torch|ATen|c10)/")
SOCKETS = re.compile(
    r"(boost/)?asio(\.hpp|/)|sys/(socket|epoll|select|un|poll)\.h|(netinet|arpa)/|(poll|netdb)\.h|openssl/ssl\.h"
)
THREADS = re.compile(r"(thread|mutex|shared_mutex|condition_variable|future|semaphore|stop_token|pthread\.h)$")
RANDOM = re.compile(r"random$")
CLOCK_CALL = re.compile(r"[Cc]lock(_type)?::now\b|\b(clock_gettime|gettimeofday|random_device|rand)\b|std::time\b")

INCLUDE = re.compile(r'\s*#\s*include\s*[<"]([^>"]+)[>"]')
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
SUFFIXES = {".h", ".hpp", ".cpp", ".cc", ".cu", ".cuh", ".inc"}


def without_comments(text):
    """The text with each comment replaced by its line breaks, so that line numbers stay."""
    return COMMENT.sub(lambda comment: "\n" * comment.group().count("\n"), text)


def included_layer(root, path, include):
    """The layer that an include leads to; None for a system or a third party's header."""
    layer = path.relative_to(root).parts[0]
    for folder in (path.parent, root / layer):
        target = (folder / include).resolve()
        if target.exists() and target.is_relative_to(root):
            return target.relative_to(root).parts[0]
    parts = [part for part in pathlib.PurePosixPath(include).parts if part not in ("..", "isthmus")]
    return parts[0] if len(parts) > 1 and parts[0] in MAY_USE else None


def is_pure(path_in_layer):
    """Whether a path of outer_sync/ is in protocol/ or methods/, as a source or as a public header."""
    return any(part in ("protocol", "methods") for part in path_in_layer.parts[:-1])


def include_breaches(root, path, include):
    relative = path.relative_to(root)
    layer, in_layer = relative.parts[0], pathlib.PurePath(*relative.parts[1:])
    used = included_layer(root, path, include)
    if used in MAY_USE and used != layer and used not in MAY_USE[layer]:
        allowed = ", ".join(MAY_USE[layer]) or "no other folder"
        yield f"{layer}/ may not use {used}/ (it may use {allowed})"
    if LIBTORCH.match(include) and layer != "trainer":
        yield "libtorch is used in trainer/ alone"
    pure = layer == "outer_sync" and is_pure(in_layer)
    if SOCKETS.match(include) and (pure or layer == "quant"):
        yield "no sockets in quant/, outer_sync/protocol/ and outer_sync/methods/"
    if pure and THREADS.match(include):
        yield "no threads in outer_sync/protocol/ and outer_sync/methods/"
    if pure and RANDOM.match(include):
        yield "no <random> in outer_sync/protocol/ and outer_sync/methods/: chance comes in as a seed or a value"
    if pure and "transport/" in include:
        yield "outer_sync/protocol/ and outer_sync/methods/ know nothing of transport/"


def breaches(root, path):
    """Line number and rule of each breach in one file."""
    relative = path.relative_to(root)
    pure = relative.parts[0] == "outer_sync" and is_pure(pathlib.PurePath(*relative.parts[1:]))
    for number, line in enumerate(without_comments(path.read_text(encoding="utf-8")).splitlines(), 1):
        include = INCLUDE.match(line)
        if include:
            for rule in include_breaches(root, path, include.group(1)):
                yield number, rule
        elif pure and CLOCK_CALL.search(line):
            yield number, "no clock and no chance in outer_sync/protocol/ and outer_sync/methods/: they come in as values"


def sources(root):
    for layer in MAY_USE:
        yield from (path for path in sorted((root / layer).rglob("*")) if path.suffix in SUFFIXES)


def main(root):
    root = pathlib.Path(root).resolve()
    files = list(sources(root))
    if not files:
        print(f"no sources under {root}")
        return 1
    found = [f"{path.relative_to(root)}:{number}: {rule}" for path in files for number, rule in breaches(root, path)]
    print("\n".join(found) or f"{len(files)} files keep to the layers")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "."))
