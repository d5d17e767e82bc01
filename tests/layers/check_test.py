"""Tests of check.py: each breach on a small tree, and similar sources that are allowed."""

import contextlib
import io
import pathlib
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
import case_results  # noqa: E402
import check  # noqa: E402


def run_on(files):
    """Output and exit status of check.py on a tree of {path: text}."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            path = pathlib.Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            status = check.main(folder)
        return output.getvalue(), status


def a_source(layer):
    """A source in the lowest folder of a layer."""
    return "/".join([layer, *list(check.FOLDERS.get(layer, ()))[:1], "x.cpp"])


def a_header(layer):
    return "/".join(["isthmus", layer, *list(check.FOLDERS.get(layer, ()))[:1], "x.h"])


class Check(unittest.TestCase):
    def breaks(self, path, text, line, words, **others):
        output, status = run_on({path: text, **others})
        self.assertEqual(status, 1, output)
        self.assertEqual(len(output.splitlines()), 1, output)
        self.assertTrue(output.startswith(f"{path}:{line}: "), output)
        self.assertIn(words, output)

    def keeps(self, files):
        output, status = run_on(files)
        self.assertEqual(status, 0, output)

    def test_each_layer_and_every_layer_it_may_not_use(self):
        for layer, allowed in check.MAY_USE.items():
            for used in check.MAY_USE:
                text = f'#include <vector>\n#include "{a_header(used)}"\n'
                if used == layer or used in allowed:
                    self.keeps({a_source(layer): text})
                else:
                    self.breaks(a_source(layer), text, 2, f"{layer}/ may not use {used}/")

    def test_each_inner_folder_and_every_folder_it_may_not_use(self):
        files, expected = {}, []
        for parent, folders in check.FOLDERS.items():
            layer, _, inside = parent.partition("/")
            for folder, allowed in folders.items():
                for used in folders:
                    name = used.replace("/", "_") or "top"
                    own = {"/".join(filter(None, (parent, folder, f"{name}.cpp"))):
                           "/".join(filter(None, (inside, used, "x.h")))}
                    if not inside:
                        public = f"{parent}/include/isthmus/{parent}/{folder}/{name}.h"
                        own[public] = f"isthmus/{parent}/{used}/x.h"
                    for path, include in own.items():
                        files[path] = f'\n#include "{include}"\n'
                        if used != folder and used not in allowed:
                            folders_named = f"{check.title(parent, folder)} may not use {check.title(parent, used)}"
                            expected.append(f"{path}:2: {folders_named}")
        output, status = run_on(files)
        self.assertEqual(status, 1)
        self.assertEqual(sorted(line.split(" (it may")[0] for line in output.splitlines()), sorted(expected))

    def test_the_inner_folders_have_no_cycle(self):
        for parent, folders in check.FOLDERS.items():
            below = []
            for folder, allowed in folders.items():
                self.assertLessEqual(set(allowed), set(below), f"{parent}/{folder}")
                below.append(folder)

    def test_a_public_header_belongs_to_the_folder_that_has_its_source(self):
        header = "data/include/isthmus/data/batches.h"
        self.keeps({header: '#include "isthmus/data/words.h"\n', "data/loader/batches.cpp": "",
                    "data/include/isthmus/data/words.h": "", "data/corpus/words.cpp": ""})
        self.breaks(header, '#include "isthmus/data/words.h"\n', 1, "data/corpus/ may not use data/loader/",
                    **{"data/corpus/batches.cpp": "", "data/include/isthmus/data/words.h": "", "data/loader/words.cpp": ""})
        self.breaks(header, "", 1, "in no folder")
        self.keeps({f"data/include/isthmus/data/{name}": "" for name in check.PLACES["data"]})

    def test_a_relative_path_to_a_folder_above(self):
        above = {"outer_sync/engine/loop.h": ""}
        include = '#include "../engine/loop.h"\n'
        self.breaks("outer_sync/core/x.cpp", include, 1, "may not use outer_sync/engine/", **above)

    def test_a_file_in_no_folder_and_an_include_that_leads_to_none(self):
        self.breaks("outer_sync/x.cpp", "int x;\n", 1, "in no folder")
        self.breaks("outer_sync/net/x.cpp", "int x;\n", 1, "in no folder")
        self.breaks("data/x.cpp", "int x;\n", 1, "in no folder of data/")
        self.breaks("data/order/x.cpp", '#include "x.h"\n', 1, "in no folder of data/")
        self.breaks("outer_sync/core/x.cpp", '#include "isthmus/outer_sync/lane.h"\n', 1, "in no folder")
        self.breaks("outer_sync/core/x.cpp", '#include "isthmus/outer_sync/transport/lane.h"\n', 1, "in no folder")

    def test_the_libraries_fit_that_stack(self):
        folders = list(check.OUTER_SYNC)
        lower, upper = folders[:2], folders[2:]  # core and protocol in one library, each other folder in its own

        def library(name, sources, uses):
            return "\n".join([f"isthmus_layer({name}", "  SOURCES", *(f"    {folder}/x.cpp" for folder in sources),
                              " ".join(["  USES base", *uses]) + ")", ""])

        def name(folder):
            return "outer_sync_lower" if folder in lower else f"outer_sync_{folder.replace('/', '_')}"

        def built(change=lambda text: text):
            text = library("outer_sync_lower", lower, []) + "".join(
                library(name(folder), [folder], sorted({name(used) for used in check.OUTER_SYNC[folder]}))
                for folder in upper)
            return {"outer_sync/CMakeLists.txt": change(text), **{f"outer_sync/{folder}/x.cpp": "" for folder in folders}}

        def differs(change, words):
            output, status = run_on(built(change))
            self.assertEqual(status, 1, output)
            self.assertTrue(output.startswith("outer_sync/CMakeLists.txt:"), output)
            self.assertIn(words, output)

        self.keeps(built())
        base = "log/x.cpp\n  USES base"
        differs(lambda text: text.replace(base, base + " outer_sync_engine"), "outer_sync_log uses outer_sync_engine")
        differs(lambda text: text.replace(base + " outer_sync_lower", base), "need outer_sync_lower")
        differs(lambda text: text.replace("log/x.cpp\n", "log/y.cpp\n"), "differ in log/x.cpp")
        differs(lambda text: text.replace("    log/x.cpp\n", "    logs/x.cpp\n"), "in no folder")
        differs(lambda text: text.replace("    log/x.cpp\n", "    log/x.cpp\n    core/z.cpp\n"), "both have sources of core/")
        differs(lambda text: text.replace("    core/x.cpp\n", ""), "differ in core/x.cpp")

    def test_a_relative_path_into_another_layer(self):
        header = {"app/model/model.h": ""}
        self.breaks("quant/x.cpp", '#include "../app/model/model.h"\n', 1, "quant/ may not use app/", **header)
        self.breaks("quant/x.cpp", '#include "app/model/model.h"\n', 1, "quant/ may not use app/", **header)

    def test_a_folder_of_the_same_name_inside_a_layer_is_its_own(self):
        self.keeps({"base/x.cpp": '#include "data/x.h"\n', "base/data/x.h": ""})

    def test_libtorch_outside_the_trainer(self):
        for include in ("torch/torch.h", "ATen/ATen.h", "c10/util/Exception.h"):
            self.breaks(a_source("app"), f"#include <{include}>\n", 1, "libtorch")
            self.keeps({a_source("trainer"): f"#include <{include}>\n"})

    def test_sockets(self):
        for include in ("asio.hpp", "asio/ip/tcp.hpp", "sys/socket.h", "netinet/in.h", "poll.h"):
            text = f"\n#include <{include}>\n"
            self.breaks("quant/x.cu", text, 2, "no sockets")
            for folder in check.PURE:
                self.breaks(f"outer_sync/{folder}/x.cpp", text, 2, "no sockets")
                self.breaks(f"outer_sync/include/isthmus/outer_sync/{folder}/x.h", text, 2, "no sockets")
            self.keeps({"outer_sync/net/link/x.cpp": text})
        self.keeps({"outer_sync/core/address.cpp": "#include <arpa/inet.h>\n"})

    def test_threads_clocks_and_chance_in_what_is_pure(self):
        for folder in check.PURE:
            path = f"outer_sync/{folder}/x.cpp"
            self.breaks(path, "#include <mutex>\n", 1, "no threads")
            self.breaks(path, "#include <thread>\n", 1, "no threads")
            self.breaks(path, "#include <random>\n", 1, "no <random>")
            self.breaks(path, "auto t = std::chrono::steady_clock::now();\n", 1, "no clock")
            self.breaks(path, "auto t = Clock::now();\n", 1, "no clock")
            self.breaks(path, '#include "isthmus/outer_sync/net/link/lane.h"\n', 1, "net/link/")
        self.keeps({"outer_sync/net/link/x.cpp": "#include <mutex>\nauto t = Clock::now();\n"})
        self.keeps({"outer_sync/include/isthmus/outer_sync/core/buffer_pool.h": "#include <mutex>\n"})

    def test_what_is_no_breach(self):
        self.keeps(
            {
                "outer_sync/protocol/x.cpp": "// steady_clock::now()\n/*\n#include <thread>\n*/\n"
                "#include <chrono>\nstd::chrono::nanoseconds now;\nint operand = clock.now_ns;\n",
                "base/torchlight.h": '#include "isthmus/base/random.h"\n',
            }
        )

    def test_functions_that_a_unity_build_makes_overloads(self):
        def source(text, before="", after=""):
            return f"{before}namespace isthmus {{\nnamespace {{\n\n{text}\n\n}}  // namespace\n{after}}}\n"

        def built(target, first, second, cmake="base/CMakeLists.txt"):
            folder = cmake.removesuffix("CMakeLists.txt")
            return {cmake: target, folder + "a.cpp": first, folder + "b.cpp": second, "base/c.cpp": ""}

        def overloads(files, places):
            output, status = run_on(files)
            self.assertEqual(status, 1, output)
            self.assertEqual([line.split(": ")[0] for line in output.splitlines()], places)
            for line in output.splitlines():
                self.assertRegex(line, r": put\(\) is also in \S+\.cpp: .* a more specific name$")

        layer = "isthmus_layer(base\n  SOURCES a.cpp  # (the first)\n    b.cpp\n  USES x)\n"
        one = source("void put(int x) {\n}")
        other = source("int x = 5;\n\nstd::string put(const X& x = {}) { return x; }")
        places = ["base/a.cpp:4", "base/b.cpp:6"]
        overloads(built(layer, one, other), places)
        branches = "set(all a.cpp)\nif(X)\n  set(all b.cpp)\nendif()\nadd_executable(x ${all})\n"
        overloads(built(branches, one, other), places)
        for function in ("template <class T>\nvoid put(T x) {\n}", "[[noreturn]] void put(\n    int x) {\n}",
                         "std::vector<int>\nput() {\n}", "auto put() -> int {\n}", "const X* put(int x) noexcept {\n}"):
            line = source(function)[:source(function).index("put")].count("\n") + 1
            overloads(built(layer, source(function), other), [f"base/a.cpp:{line}", "base/b.cpp:6"])
        for test in ("isthmus_test(x SOURCES a.cpp b.cpp)", "  add_executable(x a.cpp\n    b.cpp)"):
            overloads(built(test, one, other, "tests/x/CMakeLists.txt"), ["tests/x/a.cpp:4", "tests/x/b.cpp:6"])

        self.keeps(built("isthmus_layer(x SOURCES a.cpp)\nisthmus_layer(y SOURCES b.cpp)\n", one, other))
        self.keeps(built(layer, one + one.replace("(int x)", "()"), source("int put_in(int x) {\n}")))
        for apart in (source("void put(int x);"), source("const Layout put({{0, 1}}, 2);"), source("int x = put(5);"),
                      source("class X {\n  void put(int x) {}\n};"), source("void X::put(int x) {\n}"),
                      source("// calls put() {")):
            self.keeps(built(layer, one, apart))
        for shared in (source("", after="void put(int x) {\n}\n"), source("", before="void put(int x) {\n}\n")):
            overloads(built(layer, one, shared), places[:1])
            self.keeps(built(layer, shared, shared))
        alone = "set_source_files_properties(b.cpp PROPERTIES {})\n"
        self.keeps(built(layer + alone.format("COMPILE_OPTIONS -O3"), one, other))
        self.keeps(built(layer + alone.format("SKIP_UNITY_BUILD_INCLUSION ON"), one, other))
        overloads(built(layer + alone.format("SKIP_PRECOMPILE_HEADERS ON"), one, other), places)
        overloads(built(f"{layer}if(X)\n  {alone.format('COMPILE_OPTIONS -O3')}endif()\n", one, other), places)

    def test_files_that_are_too_long(self):
        line = "\n"
        for path in ("base/x.cpp", "base/include/isthmus/base/x.h", "quant/x.cu", "tests/base/x_test.cpp",
                     "python/isthmus/x.py", "scripts/x.py"):
            self.keeps({path: line * check.MAX_LINES, "base/y.cpp": ""})
            too_long = line * (check.MAX_LINES + 1)
            self.breaks(path, too_long, check.MAX_LINES + 1, "split it by subject", **{"base/y.cpp": ""})
        self.keeps({"tests/x.json": line * (check.MAX_LINES + 1), "base/y.cpp": ""})

    def test_an_empty_tree_is_no_success(self):
        self.assertEqual(run_on({})[1], 1)


if __name__ == "__main__":
    case_results.main()
