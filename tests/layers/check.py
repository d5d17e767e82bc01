"""Checks that the sources under a root follow the layers: check.py [ROOT]

A folder uses only the folders below it, only trainer/ uses libtorch, and quant/ uses no sockets. outer_sync/ is a stack
of folders with the same rule; its pure folders use no sockets, threads, clocks or random numbers. The link graph
enforces only a part of this. This check reads the sources and finds the rest, such as a relative path into another
folder, or a clock in a state machine. The stack must be that of outer_sync/CMakeLists.txt. Prints file:line and the
rule for each breach, and exits with 1 if it finds any.
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
# The folders of outer_sync/ from the bottom up, each with the folders that it may use. These must precede it in the
# table, so that there is no cycle.
OUTER_SYNC = {
    "core": [],
    "methods": ["core"],
    "protocol": ["core"],
    "protocol/coordinator": ["core", "protocol"],
    "config": ["core", "protocol"],
    "log": ["core", "methods", "protocol"],
    "engine": ["core", "methods", "protocol", "config", "log"],
    "plan": ["core", "methods", "protocol", "config"],
    "tls": ["core", "protocol", "config"],
    "net/wire": ["core", "protocol"],
    "net/rate": ["config", "net/wire"],
    "net/link": ["core", "config", "tls", "net/wire"],
    "net/mesh": ["core", "protocol", "net/wire", "net/rate", "net/link"],
    "net/state_transfer": ["core", "protocol", "net/wire", "net/rate", "net/link", "net/mesh"],
    "net/member": ["core", "protocol", "config", "log", "engine", "tls", "net/wire", "net/rate", "net/link", "net/mesh",
                   "net/state_transfer"],
    "net/coordinator": ["core", "protocol", "protocol/coordinator", "config", "tls", "net/wire", "net/link"],
}
PURE = ("core", "methods", "protocol", "protocol/coordinator", "config", "plan", "net/wire", "net/rate")
# Addresses are parsed with inet_pton; buffers return to a pool on any thread.
EXEMPT = {"core/address.cpp": ("sockets",), "core/buffer_pool.h": ("threads",)}
# The coordinator, the reducer and replay are also built without libtorch, so app/ must not use it either.
LIBTORCH = re.compile(r"(torch|ATen|c10)/")
SOCKETS = re.compile(
    r"(boost/)?asio(\.hpp|/)|sys/(socket|epoll|select|un|poll)\.h|(netinet|arpa)/|(poll|netdb)\.h|openssl/ssl\.h"
)
THREADS = re.compile(r"(thread|mutex|shared_mutex|condition_variable|future|semaphore|stop_token|pthread\.h)$")
RANDOM = re.compile(r"random$")
CLOCK_CALL = re.compile(r"[Cc]lock(_type)?::now\b|\b(clock_gettime|gettimeofday|random_device|rand)\b|std::time\b")

INCLUDE = re.compile(r'\s*#\s*include\s*[<"]([^>"]+)[>"]')
QUOTED = re.compile(r'\s*#\s*include\s*"')
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
TARGET = re.compile(r"^isthmus_layer\(outer_sync_(\w+)\s([^)]*)\)", re.MULTILINE)
SUFFIXES = {".h", ".hpp", ".cpp", ".cc", ".cu", ".cuh", ".inc"}


def without_comments(text):
    """Replaces each comment by its line breaks, which keeps line numbers."""
    return COMMENT.sub(lambda comment: "\n" * comment.group().count("\n"), text)


def included_layer(root, path, include):
    """The layer of an included file; None for headers of the system or third parties."""
    layer = path.relative_to(root).parts[0]
    for folder in (path.parent, root / layer):
        target = (folder / include).resolve()
        if target.exists() and target.is_relative_to(root):
            return target.relative_to(root).parts[0]
    parts = [part for part in pathlib.PurePosixPath(include).parts if part not in ("..", "isthmus")]
    return parts[0] if len(parts) > 1 and parts[0] in MAY_USE else None


def in_stack(path):
    """A path in outer_sync/ without the prefix of public headers."""
    return path.removeprefix("include/isthmus/outer_sync/")


def stack_folder(path):
    """The folder of the stack that contains a path in outer_sync/, or None."""
    return max((folder for folder in OUTER_SYNC if path.startswith(folder + "/")), key=len, default=None)


def included_in_stack(root, path, include):
    """The file of a quoted include in outer_sync/, as a path in outer_sync/; None if it is elsewhere."""
    beside, here = (path.parent / include).resolve(), root / "outer_sync"
    if beside.exists():
        return in_stack(beside.relative_to(here).as_posix()) if beside.is_relative_to(here) else None
    if include.startswith("isthmus/outer_sync/"):
        return include.removeprefix("isthmus/outer_sync/")
    return None if include.startswith("isthmus/") else include


def stack_breaches(root, path, include):
    """Breaches of the stack in outer_sync/ by a quoted include."""
    folder = stack_folder(in_stack(path.relative_to(root / "outer_sync").as_posix()))
    leads_to = included_in_stack(root, path, include)
    if folder is None or leads_to is None:
        return
    used = stack_folder(leads_to)
    if used is None:
        yield f"{include} is in no folder of outer_sync/"
    elif used != folder and used not in OUTER_SYNC[folder]:
        allowed = ", ".join(OUTER_SYNC[folder]) or "no other folder"
        yield f"outer_sync/{folder}/ may not use outer_sync/{used}/ (it may use {allowed})"


def pure_folder(root, path):
    """The pure folder that contains a file, or None."""
    relative = path.relative_to(root)
    if relative.parts[0] != "outer_sync":
        return None
    folder = stack_folder(in_stack(path.relative_to(root / "outer_sync").as_posix()))
    return folder if folder in PURE else None


def include_breaches(root, path, include):
    layer = path.relative_to(root).parts[0]
    used = included_layer(root, path, include)
    if used in MAY_USE and used != layer and used not in MAY_USE[layer]:
        allowed = ", ".join(MAY_USE[layer]) or "no other folder"
        yield f"{layer}/ may not use {used}/ (it may use {allowed})"
    if LIBTORCH.match(include) and layer != "trainer":
        yield "only trainer/ may use libtorch"
    pure = pure_folder(root, path)
    exempt = EXEMPT.get(in_stack(path.relative_to(root / layer).as_posix()), ()) if pure else ()
    if SOCKETS.match(include) and (layer == "quant" or (pure and "sockets" not in exempt)):
        yield "no sockets in quant/" if layer == "quant" else f"no sockets in outer_sync/{pure}/"
    if pure and THREADS.match(include) and "threads" not in exempt:
        yield f"no threads in outer_sync/{pure}/"
    if pure and RANDOM.match(include):
        yield f"no <random> in outer_sync/{pure}/: pass a seed or a value"


def breaches(root, path):
    """Line number and rule of each breach in a file."""
    pure = pure_folder(root, path)
    in_outer_sync = path.relative_to(root).parts[0] == "outer_sync"
    if in_outer_sync and stack_folder(in_stack(path.relative_to(root / "outer_sync").as_posix())) is None:
        yield 1, f"the file is in no folder of outer_sync/ ({', '.join(OUTER_SYNC)})"
    for number, line in enumerate(without_comments(path.read_text(encoding="utf-8")).splitlines(), 1):
        include = INCLUDE.match(line)
        if include:
            for rule in include_breaches(root, path, include.group(1)):
                yield number, rule
            if in_outer_sync and QUOTED.match(line):
                for rule in stack_breaches(root, path, include.group(1)):
                    yield number, rule
        elif pure and CLOCK_CALL.search(line):
            yield number, f"no clock and no random numbers in outer_sync/{pure}/: pass values"


def listed(arguments, word):
    """The arguments of isthmus_layer after a keyword."""
    found = []
    for argument in arguments.split():
        if argument in ("SOURCES", "USES", "PUBLIC", "PRIVATE"):
            taking = argument == word
        elif taking:
            found.append(argument)
    return found


def build_breaches(root):
    """Line number and rule of each difference between OUTER_SYNC and outer_sync/CMakeLists.txt."""
    path = root / "outer_sync/CMakeLists.txt"
    if not path.exists():
        return
    text = path.read_text(encoding="utf-8")
    targets = {folder.replace("/", "_"): folder for folder in OUTER_SYNC}
    built = set()
    for target in TARGET.finditer(text):
        name, arguments, line = target.group(1), target.group(2), text.count("\n", 0, target.start()) + 1
        if name not in targets:
            yield line, f"outer_sync_{name} is no folder of outer_sync/"
            continue
        folder = targets[name]
        built.add(folder)
        uses = {targets.get(used.removeprefix("outer_sync_")) for used in listed(arguments, "USES")
                if used.startswith("outer_sync_")}
        if uses != set(OUTER_SYNC[folder]):
            yield line, f"outer_sync_{name} USES other folders than tests/layers/check.py has for {folder}/"
        there = {f"{folder}/{source.name}" for source in (root / "outer_sync" / folder).glob("*.cpp")}
        for source in sorted(there.symmetric_difference(listed(arguments, "SOURCES"))):
            yield line, f"outer_sync_{name} and the sources in {folder}/ differ in {source}"
    for folder in OUTER_SYNC:
        if folder not in built:
            yield 1, f"no target builds {folder}/"


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
    found += [f"outer_sync/CMakeLists.txt:{number}: {rule}" for number, rule in build_breaches(root)]
    print("\n".join(found) or f"{len(files)} files follow the layers")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "."))
