"""A test of check.py: each breach on a small tree of its own, beside what looks like one and is none."""

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
    """What check.py says, and its exit status, on a tree of {path: text}."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            path = pathlib.Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            status = check.main(folder)
        return output.getvalue(), status


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
                text = f'#include <vector>\n#include "isthmus/{used}/x.h"\n'
                if used == layer or used in allowed:
                    self.keeps({f"{layer}/x.cpp": text})
                else:
                    self.breaks(f"{layer}/x.cpp", text, 2, f"{layer}/ may not use {used}/")

    def test_a_relative_path_into_another_layer(self):
        header = {"trainer/model.h": ""}
        self.breaks("data/x.cpp", '#include "../trainer/model.h"\n', 1, "data/ may not use trainer/", **header)
        self.breaks("data/x.cpp", '#include "trainer/model.h"\n', 1, "data/ may not use trainer/", **header)

    def test_a_folder_of_the_same_name_inside_a_layer_is_its_own(self):
        self.keeps({"base/x.cpp": '#include "data/x.h"\n', "base/data/x.h": ""})

    def test_libtorch_outside_the_trainer(self):
        for include in ("torch/torch.h", "ATen/ATen.h", "c10/util/Exception.h"):
            self.breaks("app/x.cpp", f"#include <{include}>\n", 1, "libtorch")
            self.keeps({"trainer/x.cpp": f"#include <{include}>\n"})

    def test_sockets(self):
        for include in ("asio.hpp", "asio/ip/tcp.hpp", "sys/socket.h", "netinet/in.h", "poll.h"):
            text = f"\n#include <{include}>\n"
            self.breaks("quant/x.cu", text, 2, "no sockets")
            self.breaks("outer_sync/protocol/x.cpp", text, 2, "no sockets")
            self.breaks("outer_sync/include/isthmus/outer_sync/methods/x.h", text, 2, "no sockets")
            self.keeps({"outer_sync/transport/x.cpp": text})

    def test_threads_clocks_and_chance_in_the_state_machines(self):
        for path in ("outer_sync/protocol/x.cpp", "outer_sync/methods/x.cpp"):
            self.breaks(path, "#include <mutex>\n", 1, "no threads")
            self.breaks(path, "#include <thread>\n", 1, "no threads")
            self.breaks(path, "#include <random>\n", 1, "no <random>")
            self.breaks(path, "auto t = std::chrono::steady_clock::now();\n", 1, "no clock")
            self.breaks(path, "auto t = Clock::now();\n", 1, "no clock")
            self.breaks(path, '#include "isthmus/outer_sync/transport/lane.h"\n', 1, "transport/")
        self.keeps({"outer_sync/transport/x.cpp": "#include <mutex>\nauto t = Clock::now();\n"})

    def test_what_is_no_breach(self):
        self.keeps(
            {
                "outer_sync/protocol/x.cpp": "// steady_clock::now()\n/*\n#include <thread>\n*/\n"
                "#include <chrono>\nstd::chrono::nanoseconds now;\nint operand = clock.now_ns;\n",
                "base/torchlight.h": '#include "isthmus/base/random.h"\n',
            }
        )

    def test_an_empty_tree_is_no_success(self):
        self.assertEqual(run_on({})[1], 1)


if __name__ == "__main__":
    case_results.main()
