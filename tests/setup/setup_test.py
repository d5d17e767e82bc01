"""Failures of scripts/setup.sh: the message, the remaining files, and that the next run succeeds."""

import fcntl
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import unittest

sys.path[:0] = [str(pathlib.Path(__file__).parent), str(pathlib.Path(__file__).parents[1] / "support")]
import case_results  # noqa: E402
from machine import Debian, Machine, namespaces  # noqa: E402


def wait_for(condition, what):
    end = time.monotonic() + 60
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not happen within a minute")
        time.sleep(0.005)


class Setup(unittest.TestCase):
    def setUp(self):
        self.machine = Machine()
        self.addCleanup(self.machine.close)

    def succeeds(self, *arguments, prefix=()):
        status, output = self.machine.run(*arguments, prefix=prefix)
        self.assertEqual(status, 0, output)
        self.assertTrue(self.machine.installed("torch") and (self.machine.venv / "corpus/torch.h").is_file(), output)
        self.assertFalse((self.machine.checkout / "build/downloads").exists(), output)
        return output

    def fails(self, *words, arguments=(), prefix=()):
        """The output of a run that must fail with all these words."""
        status, output = self.machine.run(*arguments, prefix=prefix)
        self.assertEqual(status, 1, output)
        for word in words:
            self.assertIn(str(word), output)
        self.assertFalse((self.machine.checkout / "build/downloads").exists(), output)
        return output

    def namespaces(self, *options):
        prefix = namespaces(*options)
        if prefix is None:
            self.skipTest(f"unshare {' '.join(options)} is not allowed here")
        return prefix


class Network(Setup):
    @case_results.long
    def test_a_second_run_needs_none(self):
        self.succeeds("--tests")
        self.machine.index.close()
        self.assertEqual(self.succeeds("--tests"), "")
        self.assertEqual(self.succeeds().count("..."), 0)

    def test_none(self):
        self.machine.index.close()
        self.fails("error: this step failed: downloading --no-deps torch==2.11.0 tiny==1.0",
                   f"The package index could not be reached, or does not have this package: {self.machine.index.url}/simple.",
                   "run this again")
        self.machine.environment["PIP_RETRIES"] = "1"
        self.fails("The network or the server failed, or the connection broke: ", "Connection refused")

    @case_results.long
    def test_a_download_that_breaks_off(self):
        index = self.machine.index
        self.succeeds()
        index.broken.add("files/tests_need-1.0-py3-none-any.whl")
        self.fails("error: this step failed: downloading tests-need==1.0", "Usually the connection broke",
                   arguments=["--tests"])
        self.assertTrue(self.machine.installed("torch"))
        index.broken.clear()
        index.requests.clear()
        self.assertNotIn("anew", self.succeeds("--tests"))
        self.assertTrue(self.machine.installed("tests_need"))

    def test_no_such_version(self):
        self.machine.index.add_wheel("torch", "2.10.0", {})
        output = self.fails("No matching distribution found for torch==2.11.0", "from versions: 2.10.0")
        self.assertNotIn("The network", output)


class CutOff(Setup):
    @case_results.long
    def test_an_install_is_made_anew_whatever_pip_takes_for_installed(self):
        prefix = self.namespaces("--pid", "--fork", "--mount-proc", "--kill-child=KILL")
        files = {f"tiny/{number}.py": b"" for number in range(4000)}
        self.machine.index.add_wheel("tiny", "1.0", files)
        process = self.machine.start(prefix=prefix)
        wait_for(lambda: self.machine.installed("tiny"), "the install of tiny")
        process.kill()
        process.communicate()
        self.assertTrue(list(self.machine.venv.glob("lib/python3*/site-packages/tiny-1.0.dist-info/METADATA")))
        self.assertIn("making .venv anew: an install into it did not finish", self.succeeds())
        site = next(self.machine.venv.glob("lib/python3*/site-packages"))
        self.assertEqual(len(list((site / "tiny").glob("*.py"))), len(files))


    @case_results.long
    def test_a_removal_that_was_cut_off_is_gone_on_with(self):
        """The interpreter is removed first, so that an incomplete environment is recognised."""
        self.succeeds()
        (self.machine.venv / "isthmus-unfinished").touch()
        rm = self.machine.folder / "stand-in/rm"
        rm.parent.mkdir()
        real = shutil.which("rm")
        rm.write_text(f'#!/bin/sh\ncase "$*" in *.venv) exit 1 ;; esac\nexec {real} "$@"\n')
        rm.chmod(0o755)
        path = self.machine.environment["PATH"]
        self.machine.environment["PATH"] = f"{rm.parent}:{path}"
        self.fails("error: this step failed: making .venv")
        self.machine.environment["PATH"] = path
        (self.machine.venv / "isthmus-unfinished").unlink()  # it may be removed before the rest
        self.assertTrue(self.machine.installed("torch"))
        self.assertIn("making .venv anew: its Python (now none)", self.succeeds())


class FullDisk(Setup):
    def on_a_small_disk(self, megabytes, *words):
        """A run on a disk of this size fails with these words; the next run, on a larger disk, succeeds."""
        prefix = self.namespaces("--mount")
        machine, disk = self.machine, self.machine.folder / "disk"
        disk.mkdir()
        script = (f"mount -t tmpfs -o size={megabytes}m tmpfs {disk} && cp -r {machine.checkout} {disk} && "
                  f"{{ {disk}/checkout/scripts/setup.sh --setup-only; echo status $? >&2; "
                  f"mount -o remount,size=400m {disk} && {disk}/checkout/scripts/setup.sh --setup-only && "
                  f"ls {disk}/checkout/.venv/corpus/torch.h; }}")
        done = subprocess.run([*prefix, "sh", "-c", script], env=machine.environment, text=True, timeout=120,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        first, _, second = done.stdout.partition("status 1\n")
        self.assertEqual(done.returncode, 0, done.stdout)
        for word in (*words, "A disk is full. Free now: ", f" on {disk}", "run this again"):
            self.assertIn(word, first)
        return second

    def test_while_downloading(self):
        self.machine.index.add_wheel("torch", "2.11.0", {"torch/include/torch.h": os.urandom(32 << 20)})
        second = self.on_a_small_disk(50, "this step failed: downloading --no-deps torch==2.11.0", "3 GB of disk")
        self.assertNotIn("anew", second)

    @case_results.long
    def test_while_installing(self):
        self.machine.index.add_wheel("torch", "2.11.0", {"torch/include/torch.h": b"0" * (32 << 20)})
        second = self.on_a_small_disk(50, "this step failed: installing it into .venv", "3 GB of disk")
        self.assertIn("making .venv anew: an install into it did not finish", second)

    @case_results.long
    def test_while_making_the_environment(self):
        self.machine.bare()
        second = self.on_a_small_disk(4, "this step failed: making .venv with /usr/bin/python3")
        self.assertIn("making .venv anew: an install into it did not finish", second)


class Python(Setup):
    def fake(self, path, version):
        """A python3 that reports this version."""
        path.parent.mkdir(exist_ok=True)
        real = pathlib.Path(sys.executable).resolve()
        path.write_text(f'#!/bin/sh\n[ "$1" = -c ] || exec {real} "$@"\n'
                        f'exec {real} -c "import sys; sys.version_info = ({version.replace(".", ", ")}, 0)\n$2"\n')
        path.chmod(0o755)
        return path

    @case_results.long
    def test_another_one_on_path_is_left_alone(self):
        self.machine.bare()
        fake = self.fake(self.machine.folder / "other/python3", "3.9")
        self.machine.environment["PATH"] = f"{fake.parent}:{os.environ['PATH']}"
        self.assertIn("making .venv with /usr/bin/python3 ...", self.succeeds())

    def test_too_old_and_too_new(self):
        self.machine.bare()
        prefix = self.namespaces("--mount")
        other = self.fake(self.machine.folder / "other/python3", "3.9")
        system = self.fake(self.machine.folder / "system/python3", "3.15")
        programs = self.machine.programs_without("python3")
        self.machine.environment["PATH"] = f"{other.parent}:{programs}"
        real = pathlib.Path("/usr/bin/python3").resolve()
        copy = self.machine.folder / "system/python"
        copy.write_bytes(real.read_bytes())  # for the fakes, since the bind mount covers the system's
        copy.chmod(0o755)
        for fake in (other, system):
            fake.write_text(fake.read_text().replace(str(pathlib.Path(sys.executable).resolve()), str(copy)))
        covered = (*prefix, "sh", "-c", f'mount --bind {system} {real} && exec "$0" "$@"')
        self.fails("error: torch==2.11.0 has wheels for Python 3.10 3.11 3.12 3.13 3.14; here /usr/bin/python3 is 3.15, "
                   f"{other} is 3.9.", "put it on PATH as python3", prefix=covered)
        self.assertFalse(self.machine.venv.exists())

    @case_results.long
    def test_an_environment_whose_python_was_upgraded(self):
        self.succeeds()
        library = next(self.machine.venv.glob("lib/python3*"))
        library.rename(library.with_name("python3.8"))
        self.assertIn("making .venv anew: its Python (now 3.", self.succeeds())

    @case_results.long
    def test_an_environment_whose_python_is_gone(self):
        self.succeeds()
        for link in self.machine.venv.glob("bin/python*"):
            link.unlink()
        (self.machine.venv / "bin/python").symlink_to("/nonexistent/python3")
        self.assertIn("making .venv anew: its Python (now none) is not the one it was made with", self.succeeds())


class Rights(Setup):
    def test_neither_root_nor_sudo(self):
        prefix = self.machine.give_to_nobody()
        self.machine.environment["PATH"] = str(self.machine.programs_without("sudo"))
        self.machine.pin(packages="bash isthmus-missing-a isthmus-missing-b")
        self.fails("error: 2 Debian packages are missing, user ", " is not root, and there is no sudo. Run as root:\n"
                   "apt-get update && apt-get install --no-install-recommends isthmus-missing-a isthmus-missing-b",
                   prefix=prefix)

    def test_a_sudo_that_refuses(self):
        prefix = self.machine.give_to_nobody()
        sudo = self.machine.folder / "sudo/sudo"
        sudo.parent.mkdir()
        sudo.write_text("#!/bin/sh\necho 'x is not in the sudoers file.' >&2\nexit 1\n")
        sudo.chmod(0o755)
        self.machine.environment["PATH"] = f"{sudo.parent}:{os.environ['PATH']}"
        self.machine.pin(packages="bash isthmus-missing")
        self.fails("x is not in the sudoers file.", "error: this step failed: installing 1 Debian packages",
                   "as root, then run this again: apt-get install --no-install-recommends isthmus-missing", prefix=prefix)

    @case_results.long
    def test_a_home_that_cannot_be_written(self):
        self.machine.bare()
        prefix = self.machine.give_to_nobody()
        self.machine.home.chmod(0o555)
        self.succeeds(prefix=prefix)

    def test_a_checkout_of_somebody_else(self):
        if os.getuid() != 0:
            self.skipTest("only root can create files of another user")
        prefix = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
        self.fails(f"error: {self.machine.checkout} cannot be written by user ", "it belongs to root.", "chown", prefix=prefix)

    def test_an_environment_of_somebody_else(self):
        if os.getuid() != 0:
            self.skipTest("only root can create files of another user")
        self.succeeds()  # as root, for once
        prefix = self.machine.give_to_nobody()
        os.chown(self.machine.venv, 0, 0)
        self.fails(f"error: {self.machine.venv} cannot be written by user ", "it belongs to root.", prefix=prefix)


    def test_a_build_with_a_home_that_cannot_be_written(self):
        if shutil.which("ccache") is None:
            self.skipTest("there is no ccache: scripts/setup.sh installs it")
        tree = self.machine.folder / "tree"
        tree.mkdir()
        # A copy, since other users may have no access to the checkout.
        shutil.copy(pathlib.Path(__file__).parents[2] / "cmake/Compiler.cmake", tree)
        (tree / "CMakeLists.txt").write_text("cmake_minimum_required(VERSION 3.25)\nproject(tree LANGUAGES CXX)\n"
                                             "include(Compiler.cmake)\nadd_library(tree OBJECT tree.cpp)\n")
        (tree / "tree.cpp").write_text("int one() { return 1; }\n")
        prefix = self.machine.give_to_nobody()
        self.machine.home.chmod(0o555)
        for arguments, words in ((["-S", tree, "-B", tree / "build"], f"ccache: not used, its folder {self.machine.home}/"),
                                 (["--build", tree / "build"], "")):
            done = subprocess.run([*prefix, "cmake", *arguments], env=self.machine.environment, text=True, cwd=tree,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            self.assertEqual(done.returncode, 0, done.stdout)
            self.assertIn(words, done.stdout)


class Builds(Setup):
    def builds(self, *arguments):
        status, output = self.machine.run(*arguments, builds=True)
        self.assertEqual(status, 0, output)

    def test_what_tests_install_is_found_whichever_comes_first(self):
        asked = self.machine.stand_ins()
        self.builds("release")
        self.assertEqual(asked(), ["configure release", "build release app/all"])
        self.builds("release")
        self.assertEqual(asked(), ["build release app/all"])
        self.builds("--tests", "release", "asan")
        self.assertEqual(asked(), ["configure release", "build release", "configure asan", "build asan"])
        self.builds("release")
        self.assertEqual(asked(), ["build release app/all"])

    def test_sanitizer_builds_need_no_python_package(self):
        asked = self.machine.stand_ins()
        self.machine.bare()
        self.builds("--tests", "tsan")
        self.assertFalse(self.machine.venv.exists())
        self.builds("release", "tsan")
        self.assertEqual(asked(), ["configure tsan", "build tsan", "configure release", "build release app/all", "build tsan"])

    def wait_for_build(self):
        """Waits until the stand-in of cmake builds. Reads its calls without taking them."""
        calls = self.machine.folder / "asked"
        wait_for(lambda: calls.exists() and "build release" in calls.read_text(), "the build")

    def test_what_only_tests_need_is_installed_during_the_build(self):
        asked = self.machine.stand_ins()
        wheel = "files/tests_need-1.0-py3-none-any.whl"
        self.machine.index.before[wheel] = self.wait_for_build
        self.machine.index.broken.add(wheel)
        status, output = self.machine.run("--tests", "release", builds=True)
        self.assertEqual(status, 1, output)
        self.assertEqual(asked(), ["configure release", "build release"])
        self.assertIn("error: this step failed: downloading tests-need==1.0", output)
        self.machine.index.before.clear()
        self.machine.index.broken.clear()
        broken = self.machine.folder / "stand-ins/broken"
        broken.touch()
        status, output = self.machine.run("--tests", "release", builds=True)
        self.assertEqual(status, 1, output)
        self.assertIn("error: this step failed: building release", output)
        self.assertTrue(self.machine.installed("store_needs"), "a failed build must not interrupt the install")
        self.assertFalse((self.machine.checkout / "build/downloads").exists(), output)
        broken.unlink()
        asked()
        self.machine.index.close()
        self.builds("--tests", "release")
        self.assertEqual(asked(), ["build release"])
        self.assertEqual(self.machine.index.requests.count(self.machine.torch), 1, "not its smaller install first")

    def test_ctrl_c_during_the_build_leaves_a_whole_environment(self):
        self.machine.stand_ins()
        (self.machine.folder / "stand-ins/endless").touch()
        process = self.machine.start("--tests", "release", builds=True)
        self.wait_for_build()
        os.killpg(process.pid, signal.SIGINT)
        output = process.communicate(timeout=60)[0]
        self.assertNotEqual(process.returncode, 0, output)
        self.assertFalse((self.machine.venv / "isthmus-unfinished").exists(), output)
        self.assertTrue(self.machine.installed("store_needs"), output)
        (self.machine.folder / "stand-ins/endless").unlink()
        self.machine.index.close()
        self.builds("--tests", "release")

    @case_results.long
    def test_others_may_use_the_environment_when_the_install_ends(self):
        self.machine.stand_ins()
        (self.machine.folder / "stand-ins/endless").touch()
        process = self.machine.start("--tests", "release", builds=True)
        wait_for(lambda: (self.machine.venv / "isthmus-site").exists(), "the end of the install")
        with open(self.machine.checkout / ".venv.lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)
        self.assertIsNone(process.poll())
        (self.machine.folder / "stand-ins/endless").unlink()
        output = process.communicate(timeout=60)[0]
        self.assertEqual(process.returncode, 0, output)

    def test_another_place_of_ccache_is_looked_at_again(self):
        if shutil.which("ccache") is None:
            self.skipTest("there is no ccache: scripts/setup.sh installs it")
        asked = self.machine.stand_ins()
        self.builds("release")
        self.machine.environment["CCACHE_DIR"] = "/proc/nothing/can/be/written/here"
        self.builds("release")
        self.assertEqual(asked()[2:], ["configure release", "build release app/all"])

    def test_a_tree_of_somebody_else(self):
        if os.getuid() != 0:
            self.skipTest("only root can create files of another user")
        self.machine.stand_ins()
        self.builds("release")  # as root, for once
        prefix = self.machine.give_to_nobody()
        os.chown(self.machine.checkout / "build/release", 0, 0)
        status, output = self.machine.run("release", prefix=prefix, builds=True)
        self.assertEqual(status, 1, output)
        self.assertIn(f"error: {self.machine.checkout}/build/release cannot be written by user ", output)


class TwoAtOnce(Setup):
    def test_nobody_installs_while_another_one_builds(self):
        self.succeeds()
        with open(self.machine.checkout / ".venv.lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)
            self.assertEqual(self.succeeds(), "", "must not wait if there is nothing to install")
            process = self.machine.start("--tests")
            line = process.stdout.readline()
            self.assertIn("waiting for another setup.sh", line)
            self.assertFalse(self.machine.installed("tests_need"))
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0)
        self.assertTrue(self.machine.installed("tests_need"))

    def test_one_waits_for_the_other(self):
        self.machine.bare()
        lock = self.machine.checkout / ".venv.lock"
        first = self.machine.start()
        wait_for(lambda: lock.exists() and lock.read_text(), "the first one's lock")
        second = self.machine.start()
        outputs = [first.communicate(timeout=120)[0], second.communicate(timeout=120)[0]]
        self.assertEqual((first.returncode, second.returncode), (0, 0), outputs)
        # Usually the second waits; on a busy machine it may take the lock between the first one's check and install.
        self.assertRegex("".join(outputs), rf"waiting for another setup\.sh, process \d+, which holds {lock}\n")
        self.assertEqual(self.machine.index.requests.count(self.machine.torch), 1)
        self.assertTrue(self.machine.installed("torch"))

    def test_checkouts_that_share_an_environment(self):
        shared = self.machine.folder / "shared/.venv"
        shared.parent.mkdir()
        self.succeeds()
        self.machine.venv.rename(shared)
        self.machine.venv.symlink_to(shared)
        with open(f"{shared}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            process = self.machine.start()
            line = process.stdout.readline()
        process.communicate(timeout=60)
        self.assertIn(f"which holds {shared}.lock", line)
        self.assertEqual(process.returncode, 0)


class Apt(Setup):
    def setUp(self):
        super().setUp()
        self.debian = Debian(self.machine)
        self.machine.environment.update(self.debian.environment)
        self.prefix = self.namespaces("--pid", "--fork", "--mount-proc", "--kill-child=KILL")

    @case_results.long
    def test_a_download_that_breaks_off(self):
        self.debian.add("whole")
        broken = self.debian.add("broken")
        self.machine.index.broken.add(broken)
        self.machine.pin(packages="whole broken")
        self.fails("error: this step failed: installing 2 Debian packages", "The network or the server failed",
                   "Failed to fetch", "as root, then run this again: apt-get install", prefix=self.prefix)
        self.machine.index.broken.clear()
        self.succeeds(prefix=self.prefix)
        self.assertTrue((self.debian.root / "opt/broken/file").is_file())

    def test_an_install_that_is_cut_off(self):
        mark = self.machine.folder / "configuring"
        self.debian.add("slow", f"if [ ! -e {mark} ]; then touch {mark}; sleep 60; fi")
        self.machine.pin(packages="slow")
        process = self.machine.start(prefix=self.prefix)
        wait_for(mark.exists, "the configuration of the package")
        process.kill()
        process.communicate()
        self.succeeds(prefix=self.prefix)


if __name__ == "__main__":
    case_results.main()
