"""Checks that the sources under a root follow the layers: check.py [ROOT]

A folder uses only the folders below it, only trainer/ uses libtorch, and quant/ uses no sockets. The same rule holds
among the folders inside a larger folder (FOLDERS). The pure folders of outer_sync/ use no sockets, threads, clocks or
random numbers. The link graph enforces only a part of this. This check reads the sources and finds the rest, such as a
relative path into another folder, or a clock in a state machine. The libraries of outer_sync/CMakeLists.txt must fit
the stack in outer_sync/. No source file, tests included, may have more than MAX_LINES lines. No function in an
anonymous namespace may have the name of a function in another source of the same library or program, because a unity
build makes the two overloads of one another. Prints file:line and the rule for each breach, and exits with 1 if it
finds any.
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
    "protocol": ["core"],
    "protocol/coordinator/roster": ["core", "protocol"],
    "protocol/coordinator/steering": ["core", "protocol", "protocol/coordinator/roster"],
    "protocol/coordinator/paths": ["core", "protocol"],
    "protocol/coordinator/forming": ["core", "protocol", "protocol/coordinator/roster", "protocol/coordinator/paths"],
    "protocol/coordinator": ["core", "protocol", "protocol/coordinator/roster", "protocol/coordinator/steering",
                             "protocol/coordinator/forming", "protocol/coordinator/paths"],
    "config": ["core", "protocol"],
    "log": ["core", "protocol"],
    "engine": ["core", "protocol", "config", "log"],
    "plan": ["core", "protocol", "protocol/coordinator/paths", "config"],
    "tls": ["core", "protocol", "config"],
    "net/wire": ["core", "protocol"],
    "net/rate": ["config", "net/wire"],
    "net/mailbox": [],
    "net/link": ["core", "config", "tls", "net/wire", "net/mailbox"],
    "net/mesh": ["core", "protocol", "net/wire", "net/rate", "net/mailbox", "net/link"],
    "net/state_transfer": ["core", "protocol", "net/wire", "net/rate", "net/link", "net/mesh"],
    "net/member/io": ["core", "protocol", "config", "engine", "tls", "net/wire", "net/rate", "net/mailbox", "net/link",
                      "net/mesh", "net/state_transfer"],
    "net/member": ["core", "protocol", "config", "log", "engine", "net/mailbox", "net/member/io"],
    "net/coordinator": ["core", "protocol", "protocol/coordinator", "config", "tls", "net/wire", "net/mailbox", "net/link"],
}
PURE = ("core", "config", "plan", "net/wire", "net/rate",
        *(folder for folder in OUTER_SYNC if folder.startswith("protocol")))
# The same for data/.
DATA = {
    "unicode": [],
    "device": [],
    "queues": [],
    "order": [],
    "ids": [],
    "text": ["unicode"],
    "tokenizer": ["unicode"],
    "store": ["ids", "tokenizer"],
    "tokenize": ["queues", "ids", "text", "tokenizer", "store"],
    "corpus": ["queues", "order", "ids", "text", "tokenizer", "store", "tokenize"],
    "loader": ["device", "queues", "order", "ids", "corpus"],
}
# The same for trainer/.
TRAINER = {
    "config": [],
    "device": ["config"],
    "kernels": ["config"],
    "cuda": ["kernels"],
    "ops": ["kernels", "cuda"],
    "ranks": ["device"],
    "models": ["config", "device", "ops", "ranks"],
    "optimizer": ["config", "kernels", "ops"],
    "replica": ["config", "device", "kernels", "cuda", "ops", "models", "optimizer", "ranks"],
    "checkpoint": ["replica"],
}
# The same for app/.
RUN = ["run/process", "run/output", "run/audit", "run/experiment", "run/metrics", "run/objects"]
APP = {
    "run/process": [],
    "run/output": [],
    "run/audit": [],
    "run/experiment": ["run/process"],
    "run/metrics": ["run/output", "run/experiment"],
    "run/objects": ["run/process", "run/experiment"],
    "participant": [*RUN],
    "command_line": ["run/process", "run/output"],
    "plan": [*RUN, "command_line"],
    "coordinator": [*RUN, "plan"],
    "worker": [*RUN, "participant", "coordinator"],
    "launch": [*RUN, "command_line", "plan", "coordinator", "worker"],
    "doctor": [*RUN, "command_line", "plan", "coordinator", "launch"],
    "bench": [*RUN, "participant", "command_line", "plan", "coordinator", "launch"],
    "compare": [*RUN, "command_line", "plan"],
    "model": [*RUN, "worker", "launch"],
    "audit": [*RUN, "participant", "worker"],
    "cli": [*RUN, "command_line", "plan", "coordinator", "worker", "launch", "doctor", "bench", "compare", "model",
            "audit"],
    "programs": [*RUN, "worker", "cli"],
}
# The same for folders of app/. "" is the sources that lie in no inner folder: no inner folder may include them.
COORDINATOR = {"events": [], "replan": [], "records": [], "dashboard": [], "wandb": [],
               "": ["events", "replan", "records", "dashboard", "wandb"]}
LAUNCH = {
    "processes": [],
    "agent": ["processes"],
    "sites": ["processes", "agent"],
    "schedulers": ["sites"],
    "": ["processes", "agent", "sites", "schedulers"],
}
COMPARE = {
    "statistics": [],
    "arms": ["statistics"],
    "runs": ["statistics", "arms"],
    "report": ["statistics", "arms", "runs"],
    "": ["arms", "runs", "report"],
}
WORKER = {"setup": [], "training": ["setup"], "followers": ["setup"], "": ["setup", "training", "followers"]}
FOLDERS = {"outer_sync": OUTER_SYNC, "data": DATA, "trainer": TRAINER, "app": APP, "app/coordinator": COORDINATOR,
           "app/launch": LAUNCH, "app/compare": COMPARE, "app/worker": WORKER}
# A public header belongs to the inner folder in its path, or else to the folder of its source. These have neither.
PLACES = {
    "data": {"device.h": "device", "document_format.h": "text", "sample_source.h": "order"},
}
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
TARGET = re.compile(r"^isthmus_layer\((outer_sync_\w+)\s([^)]*)\)", re.MULTILINE)
COMMAND = re.compile(r"^( *)(set|set_source_files_properties|add_executable|add_library|nanobind_add_module"
                     r"|isthmus_layer|isthmus_test)\(([^)]+)\)", re.MULTILINE)
ANONYMOUS = re.compile(r"^namespace \{\n(.*?)^\}  // namespace$", re.DOTALL | re.MULTILINE)
# A definition that begins in the first column. (Names in capitals are tests, and hooks of GoogleTest.)
FUNCTION = re.compile(r"^[A-Za-z_\[][^;={}()]*?[\s&*>]([a-z_]\w*)\([^;]*?\)[\w\s:<>,*&-]*\{", re.MULTILINE)
# A source with one of these properties is compiled alone in unity builds too.
ALONE = {"COMPILE_OPTIONS", "SKIP_UNITY_BUILD_INCLUSION"}
SUFFIXES = {".h", ".hpp", ".cpp", ".cc", ".cu", ".cuh", ".inc"}
# The name of a longer file no longer says what it contains.
MAX_LINES = 450


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


def inner_folder(root, path, parent):
    """The inner folder of a parent in FOLDERS that contains a path under the root, or None."""
    if not path.startswith(parent + "/"):
        return None
    name = path.removeprefix(parent + "/").removeprefix(f"include/isthmus/{parent}/")
    folder = max((folder for folder in FOLDERS[parent] if name.startswith(folder + "/")), key=len, default=None)
    folder = folder or PLACES.get(parent, {}).get(name)
    if folder is None and "" in FOLDERS[parent] and "/" not in name:
        folder = ""
    if folder is None and path.startswith(f"{parent}/include/"):
        folder = next(
            (folder for folder in FOLDERS[parent] if (root / parent / folder / name).with_suffix(".cpp").exists()), None)
    return folder


def title(parent, folder):
    return f"{parent}/{folder}/" if folder else f"{parent}/"


def included_path(root, path, include):
    """The path under the root of a quoted include, also of a file that does not exist; None outside the root."""
    beside, layer = (path.parent / include).resolve(), path.relative_to(root).parts[0]
    if beside.exists():
        return beside.relative_to(root).as_posix() if beside.is_relative_to(root) else None
    parts = include.split("/")
    return f"{parts[1]}/include/{include}" if parts[0] == "isthmus" and len(parts) > 2 else f"{layer}/{include}"


def folder_breaches(root, path, include):
    """Breaches of FOLDERS by a quoted include."""
    leads_to = included_path(root, path, include)
    for parent, folders in FOLDERS.items():
        folder = inner_folder(root, path.relative_to(root).as_posix(), parent)
        if folder is None or leads_to is None or not leads_to.startswith(parent + "/"):
            continue
        used = inner_folder(root, leads_to, parent)
        if used is None:
            yield f"{include} is in no folder of {parent}/"
        elif used != folder and used not in folders[folder]:
            allowed = ", ".join(folders[folder]) or "no other folder"
            yield f"{title(parent, folder)} may not use {title(parent, used)} (it may use {allowed})"


def pure_folder(root, path):
    """The pure folder that contains a file, or None."""
    folder = inner_folder(root, path.relative_to(root).as_posix(), "outer_sync")
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
    exempt = EXEMPT.get(f"{pure}/{path.name}", ())
    if SOCKETS.match(include) and (layer == "quant" or (pure and "sockets" not in exempt)):
        yield "no sockets in quant/" if layer == "quant" else f"no sockets in outer_sync/{pure}/"
    if pure and THREADS.match(include) and "threads" not in exempt:
        yield f"no threads in outer_sync/{pure}/"
    if pure and RANDOM.match(include):
        yield f"no <random> in outer_sync/{pure}/: pass a seed or a value"


def breaches(root, path):
    """Line number and rule of each breach in a file."""
    pure = pure_folder(root, path)
    name = path.relative_to(root).as_posix()
    for parent, folders in FOLDERS.items():
        if name.startswith(parent + "/") and inner_folder(root, name, parent) is None:
            yield 1, f"the file is in no folder of {parent}/ ({', '.join(filter(None, folders))})"
    for number, line in enumerate(without_comments(path.read_text(encoding="utf-8")).splitlines(), 1):
        include = INCLUDE.match(line)
        if include:
            for rule in include_breaches(root, path, include.group(1)):
                yield number, rule
            if QUOTED.match(line):
                for rule in folder_breaches(root, path, include.group(1)):
                    yield number, rule
        elif pure and CLOCK_CALL.search(line):
            yield number, f"no clock and no random numbers in outer_sync/{pure}/: pass values"


def listed(arguments, word):
    """The arguments of isthmus_layer after a keyword."""
    found = []
    for argument in arguments.split():
        if argument in ("SOURCES", "USES", "PUBLIC", "PRIVATE", "WITHOUT_LOOPS"):
            taking = argument == word
        elif taking:
            found.append(argument)
    return found


def outer_sync_libraries(root):
    """{library: (its line in outer_sync/CMakeLists.txt, its sources, the libraries that it USES)}."""
    path = root / "outer_sync/CMakeLists.txt"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return {target.group(1): (text.count("\n", 0, target.start()) + 1, listed(target.group(2), "SOURCES"),
                              [used for used in listed(target.group(2), "USES") if used.startswith("outer_sync_")])
            for target in TARGET.finditer(text)}


def build_breaches(root):
    """Line number and rule of each difference between OUTER_SYNC and outer_sync/CMakeLists.txt: one library has all
    sources of a folder, and uses the libraries of the folders that its folders may use."""
    libraries = outer_sync_libraries(root)
    if not libraries:
        return
    place = {}
    for library, (line, files, _) in libraries.items():
        for file in files:
            folder = str(pathlib.PurePosixPath(file).parent)
            if folder not in OUTER_SYNC:
                yield line, f"{library} has {file}, which is in no folder of OUTER_SYNC in tests/layers/check.py"
            elif place.setdefault(folder, library) != library:
                yield line, f"{library} and {place[folder]} both have sources of {folder}/"
    for folder in OUTER_SYNC:
        line, files, _ = libraries.get(place.get(folder), (1, [], []))
        here = {f"{folder}/{source.name}" for source in (root / "outer_sync" / folder).glob("*.cpp")}
        named = {file for file in files if str(pathlib.PurePosixPath(file).parent) == folder}
        for source in sorted(here.symmetric_difference(named)):
            yield line, f"the libraries and the sources in {folder}/ differ in {source}"
    for library, (line, _, uses) in libraries.items():
        folders = [folder for folder, its_library in place.items() if its_library == library]
        needed = {place.get(used) for folder in folders for used in OUTER_SYNC[folder]} - {library, None}
        if set(uses) != needed:
            yield line, f"{library} uses {', '.join(sorted(uses))}; its folders need {', '.join(sorted(needed))}"


def unity_builds(cmake):
    """For each target of a CMakeLists.txt, the C++ sources that a unity build compiles together. A variable has the
    values of all branches; properties that only some builds set (these are indented) do not count."""
    values, alone, builds = {}, set(), []
    for indent, command, arguments in COMMAND.findall(re.sub("#[^\n]*", "", cmake.read_text(encoding="utf-8"))):
        name, *rest = arguments.split()
        words = [value for word in (name, *rest) for value in values.get(word, [word])]
        files = {(cmake.parent / word).resolve() for word in words if word.endswith(".cpp")}
        if command == "set":
            values.setdefault(f"${{{name}}}", []).extend(words[1:])
        elif command != "set_source_files_properties":
            builds.append(files)
        elif not indent and ALONE.intersection(words):
            alone |= files
    return [[path for path in sorted(files - alone) if path.exists()] for files in builds]


def functions_in(path):
    """{function: line number} of the functions in the anonymous namespaces of a source; and all its free functions."""
    text = path.read_text(encoding="utf-8")
    own = {function.group(1): text.count("\n", 0, space.start(1) + function.start(1)) + 1
           for space in ANONYMOUS.finditer(text) for function in FUNCTION.finditer(space.group(1))}
    return own, {function.group(1) for function in FUNCTION.finditer(text)}


def overloads(root):
    """Path, line number and rule of each function that a unity build makes an overload of another source's."""
    for cmake in sorted((*root.glob("*/CMakeLists.txt"), *root.glob("tests/*/CMakeLists.txt"))):
        for build in unity_builds(cmake):
            functions = {path: functions_in(path) for path in build}
            for path, name, line in ((path, *own) for path in build for own in functions[path][0].items()):
                others = [str(other.relative_to(root)) for other in build if other != path and name in functions[other][1]]
                if others:
                    yield path, line, (f"{name}() is also in {', '.join(others)}: in a unity build these are overloads "
                                       "of one another; give one a more specific name")


def sources(root):
    for layer in MAY_USE:
        yield from (path for path in sorted((root / layer).rglob("*")) if path.suffix in SUFFIXES)


def long_files(root):
    """Path and rule of each source file, in the layers and outside, that has more than MAX_LINES lines."""
    for folder in (*MAY_USE, "examples", "python", "scripts", "tests"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in SUFFIXES | {".py"} and path.is_file():
                lines = path.read_bytes().count(b"\n")
                if lines > MAX_LINES:
                    yield path, (f"the file has {lines} lines, more than {MAX_LINES}: split it by subject, so that a "
                                 "reader guesses from a file's name what it contains")


def main(root):
    root = pathlib.Path(root).resolve()
    files = list(sources(root))
    if not files:
        print(f"no sources under {root}")
        return 1
    found = [f"{path.relative_to(root)}:{number}: {rule}" for path in files for number, rule in breaches(root, path)]
    found += [f"outer_sync/CMakeLists.txt:{number}: {rule}" for number, rule in build_breaches(root)]
    found += [f"{path.relative_to(root)}:{MAX_LINES + 1}: {rule}" for path, rule in long_files(root)]
    found += sorted({f"{path.relative_to(root)}:{line}: {rule}" for path, line, rule in overloads(root)})
    print("\n".join(found) or f"{len(files)} files follow the layers")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "."))
