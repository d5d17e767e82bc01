#!/usr/bin/env python3
"""install_test.py BUILD TORCH: checks a moved installation and where it searches for libtorch. Needs no network."""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import case_results  # noqa: E402

build, torch = (pathlib.Path(sys.argv.pop(1)).resolve() for _ in range(2))
folder = tempfile.TemporaryDirectory()
root = pathlib.Path(folder.name)
tree = root / "moved tree"


def run(*words, env=None):
    """Status and output of the moved tree's `isthmus`. Only `env` can add a Python to its environment."""
    done = subprocess.run([tree / "bin/isthmus", *words], capture_output=True, text=True, timeout=120, cwd=root,
                          env={"PATH": "/nonexistent", **(env or {})})
    return done.returncode, done.stdout + done.stderr


def fake_torch(name, version, cuda="13.0"):
    """Makes a folder like a torch package, but with libraries that cannot be loaded."""
    package = root / name / "torch"
    (package / "lib").mkdir(parents=True)
    for library in ("libtorch_cpu.so", "libtorch_cuda.so"):
        (package / "lib" / library).touch()
    (package / "version.py").write_text(f"__version__ = '{version}'\ncuda: Optional[str] = '{cuda}'\n")
    return package


class Installed(unittest.TestCase):
    def expect_refused(self, outcome, *parts):
        status, output = outcome
        self.assertEqual(status, 2, output)
        for part in (*parts, "pip install 'torch==", "--torch PATH"):
            self.assertIn(part, output)

    def test_without_torch_names_all_places(self):
        self.expect_refused(run("eval", "runs/none"), str(tree / "bin/lib/torch"), str(tree / "lib/torch"),
                            str(root / "torch"), "python3 has no torch")

    def test_verbs_without_a_trainer_need_no_torch(self):
        for words in (("config",), ("certs", "init", "run"), ("help",), ("plan", "--params", "200M", "--step-time", "1s")):
            self.assertEqual(run(*words)[0], 0, run(*words)[1])
        self.assertIn("not found here", run("--version")[1])

    def test_a_folder_without_torch(self):
        self.expect_refused(run("eval", "runs/none", "--torch", str(root)), f"--torch: {root} has no lib/libtorch_cpu.so")

    def test_another_version(self):
        other = fake_torch("other", "2.4.1+cu121")
        self.expect_refused(run("--torch", str(other), "eval", "runs/none"), "has torch 2.4.1+cu121; expected 2.11.*")

    def test_another_cuda(self):
        other = fake_torch("cuda", "2.11.0+cu126", cuda="12.6")
        status, output = run("--torch", str(other), "eval", "runs/none")
        self.assertEqual(status, 2)
        built_for_gpus = "CPU only" not in run("--version")[1]
        self.assertIn("for CUDA 12.6; expected CUDA 13.*" if built_for_gpus else "cannot load", output)

    def test_functions_of_the_cuda_libraries_are_found_when_they_are_loaded(self):
        if "CPU only" in run("--version")[1]:
            self.skipTest("the build has no CUDA")
        driver = root / "driver"
        driver.mkdir()
        subprocess.run(["cc", "-shared", "-o", driver / "libcuda.so.1", "-xc", "/dev/null"], check=True)
        # With LD_BIND_NOW the loader looks up every function at once. No GPU is found, since the driver has no functions.
        status, output = run("--torch", str(torch), "selftest", env={"LD_LIBRARY_PATH": str(driver), "LD_BIND_NOW": "1"})
        self.assertEqual(status, 0, output)

    def test_programs_and_libraries_look_in_the_tree_alone(self):
        binaries = [path for path in tree.rglob("*") if path.is_file() and path.read_bytes()[:4] == b"\x7fELF"]
        self.assertGreater(len(binaries), 10)
        for path in binaries:
            dynamic = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True).stdout
            for entries in re.findall(r"R(?:UN)?PATH\).*\[(.*)\]", dynamic):
                for entry in entries.split(":"):
                    self.assertTrue(entry.startswith("$ORIGIN"), f"{path} searches libraries in '{entry}'")
        for program in ("isthmus", "isthmus-coordinator"):
            lines = subprocess.run(["ldd", tree / "bin" / program], capture_output=True, text=True, check=True).stdout
            for library in (path.name for path in (tree / "lib").glob("lib*.so*")):
                if f"{library} => " in lines:
                    self.assertIn(f"{library} => {tree}/", lines)

    def test_the_build_trees_programs_do_not_look_in_the_current_folder(self):
        for name in ("isthmus", "isthmus-coordinator", "libisthmus_trainer.so"):
            dynamic = subprocess.run(["readelf", "-d", build / name], capture_output=True, text=True, check=True).stdout
            for entries in re.findall(r"R(?:UN)?PATH\).*\[(.*)\]", dynamic):
                self.assertNotIn("", entries.split(":"), f"{name}: {entries}")

    def test_everything_is_there(self):
        for file in ("bin/isthmus-coordinator", "share/bash-completion/completions/isthmus", "share/zsh/site-functions/_isthmus",
                     "share/isthmus/grafana/isthmus.json", "share/doc/isthmus/how-to/two-sites.md", "share/doc/isthmus/CHANGELOG.md",
                     "share/doc/isthmus/LICENSE"):
            self.assertTrue((tree / file).stat().st_size > 0, file)
        done = subprocess.run([tree / "bin/isthmus-coordinator", "--version"], capture_output=True, text=True)
        self.assertIn("protocol", done.stdout)
        config = tree / "share/isthmus/configs/quickstart.yaml"
        (text,) = (line for line in config.read_text().splitlines() if line.startswith("  path: "))
        self.assertTrue((config.parent / text.split()[1]).is_dir(), text)

    def test_a_library_that_cannot_be_loaded(self):
        status, output = run(f"--torch={fake_torch('broken', '2.11.9')}", "eval", "runs/none")
        self.assertEqual(status, 2)
        self.assertIn("cannot load", output)

    def test_doctor_names_the_torch_that_is_missing(self):
        config = root / "tiny.yaml"
        config.write_text(f"run: {{name: tiny, out: {root}}}\ndata: {{path: {config}, tokenizer: bytes}}\n"
                          "network: {insecure: true}\ndevice: cpu\n")
        status, output = run("doctor", str(config), "--json")
        found = [check for check in json.loads(output[output.index("{\n"):])["machines"][0]["checks"] if check["check"] == "device"]
        self.assertEqual([check["level"] for check in found], ["FAIL"], output)
        self.assertNotEqual(status, 0)
        for part in ("training needs torch", str(tree / "lib/torch"), "python3 has no torch"):
            self.assertIn(part, found[0]["says"])
        self.assertIn("pip install 'torch==", found[0]["todo"])

    def test_a_trainer_of_another_build(self):
        trainer = tree / "lib/libisthmus_trainer.so"
        own = trainer.rename(root / "own.so")
        try:
            for build, named in (('const char* isthmus_trainer_build(void) { return "0.0.1, commit other"; }', "0.0.1, commit other"),
                                 ("", "unknown")):
                subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", trainer], text=True, check=True,
                               input=f"{build}\nint isthmus_trainer_main(void) {{ return 77; }}\n")
                status, output = run("eval", "runs/none", "--torch", str(torch))
                self.assertEqual(status, 2, output)
                self.assertIn(f"{trainer} is from build {named}; expected ", output)
        finally:
            own.rename(trainer)

    def test_torch_is_passed_on_to_the_processes_that_it_starts(self):
        for words in (("--torch", str(torch), "selftest"), ("selftest", "--torch", str(torch / "lib"))):
            status, output = run(*words)
            self.assertEqual(status, 0, output)
            self.assertIn("ZeRO-1 changes no bit", output)

    def test_the_trees_own_comes_first_then_the_active_environment(self):
        environment = root / "environment"
        (environment / "bin").mkdir(parents=True)
        python = environment / "bin/python3"
        python.write_text(f"#!/bin/sh\necho '{torch}'\n")
        python.chmod(0o755)
        active = {"VIRTUAL_ENV": str(environment)}
        self.assertIn("the active environment", run("--version", env=active)[1])
        self.assertIn("python3 on PATH", run("--version", env={"PATH": str(environment / "bin")})[1])
        self.expect_refused(run("eval", "none", env={"VIRTUAL_ENV": str(root)}), f"{root}/bin/python3 has no torch")
        own = tree / "lib/torch"
        own.symlink_to(torch)
        try:
            self.assertIn("next to the program", run("--version", env=active)[1])
        finally:
            own.unlink()


if __name__ == "__main__":
    with folder:
        subprocess.run(["cmake", "--install", build, "--component", "programs", "--prefix", root / "first"], check=True,
                       stdout=subprocess.DEVNULL)
        os.rename(root / "first", tree)
        case_results.main()
