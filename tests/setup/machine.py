"""A small checkout with the real scripts/setup.sh and short lists of packages, a package index with downloads that can
break off, and a Debian repository with its own root."""

import atexit
import contextlib
import functools
import gzip
import hashlib
import http.server
import io
import os
import pathlib
import posixpath
import shutil
import socket
import subprocess
import tempfile
import threading
import zipfile

SCRIPTS = pathlib.Path(__file__).parents[2] / "scripts"
PINNED = """torch=torch==2.11.0
pythons=({pythons})
cuda_major=0 # of which there is no nvcc
torch_cpu=("$torch" tiny==1.0)
test_python=(tests-need==1.0)
binding=(nanobind==1.0)
site=(site-needs==1.0)
object_store=(store-needs==1.0)
packaging=()
packages=({packages})
test_packages=()
package_packages=()
"""
NOBODY = 65534


def wheel(name, version, files):
    """A wheel's name and content; files: path to bytes."""
    data, stem = io.BytesIO(), f"{name.replace('-', '_')}-{version}"
    info = {"METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
            "WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"}
    # pip writes these first; once they exist, it considers the package installed.
    files = {**{f"{stem}.dist-info/{path}": text.encode() for path, text in info.items()}, **files}
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for path, content in files.items():
            archive.writestr(path, content)
        archive.writestr(f"{stem}.dist-info/RECORD", "".join(f"{path},,\n" for path in [*files, f"{stem}.dist-info/RECORD"]))
    return f"{stem}-py3-none-any.whl", data.getvalue()


class Server:
    """Serves files over HTTP on loopback. Downloads named in `broken` break off half-way; a function in `before` is
    called before its file is sent; `requests` lists all requests."""

    def __init__(self):
        self.files, self.broken, self.before, self.requests = {}, set(), {}, []
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                name = posixpath.normpath(self.path).strip("/")
                server.requests.append(name)
                server.before.get(name, lambda: None)()
                content = server.files.get(name)
                self.send_response(200 if content is not None else 404)
                self.send_header("Content-Type", "text/html")
                self.send_header("Content-Length", str(len(content or b"")))
                self.end_headers()
                content = content or b""
                self.close_connection = True
                with contextlib.suppress(ConnectionError):  # from a client that was killed or has no disk space
                    self.wfile.write(content[:len(content) // 2] if name in server.broken else content)

            def log_message(self, *arguments):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler, bind_and_activate=False)
        self.http.server_bind()
        # Keeps the port after `close`, so that connections are refused: otherwise another process could use the port.
        self.port = socket.socket()
        self.port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.port.bind(self.http.server_address)
        self.http.server_activate()
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.05})
        self.thread.start()

    def add_wheel(self, name, version, files):
        file, content = wheel(name, version, files)
        self.files[f"files/{file}"] = content
        link = f'<a href="{self.url}/files/{file}#sha256={hashlib.sha256(content).hexdigest()}">{file}</a>'
        self.files[f"simple/{name}"] = f"<!DOCTYPE html><html><body>{link}</body></html>".encode()
        return f"files/{file}"

    def close(self):
        if self.thread.is_alive():
            self.http.shutdown()
            self.thread.join()
            self.http.server_close()


@functools.cache
def fast_folder():
    """The parent of temporary folders, which have thousands of files: in memory, if it has room and may execute
    programs."""
    memory = "/dev/shm"
    if not os.access(memory, os.W_OK):
        return None
    state = os.statvfs(memory)
    return memory if state.f_bavail * state.f_frsize > 1 << 30 and not state.f_flag & os.ST_NOEXEC else None


@functools.cache
def environment():
    """A new Python environment like that of setup.sh; made only once, since it takes seconds."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="isthmus-setup-venv-", dir=fast_folder()))
    atexit.register(shutil.rmtree, folder)
    subprocess.run(["/usr/bin/python3", "-m", "venv", folder / ".venv"], check=True)
    return folder / ".venv"


class Machine:
    """A folder with checkout/, home/ and an index: all inputs of setup.sh. The checkout has an environment with only
    pip; `bare` removes it."""

    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="isthmus-setup-", dir=fast_folder()))
        self.folder.chmod(0o755)
        self.checkout, self.home, self.index = self.folder / "checkout", self.folder / "home", Server()
        (self.checkout / "scripts").mkdir(parents=True)
        self.home.mkdir()
        shutil.copy(SCRIPTS / "setup.sh", self.checkout / "scripts")
        shutil.copytree(environment(), self.venv, symlinks=True)
        self.pin()
        self.torch = self.index.add_wheel("torch", "2.11.0", {"torch/include/torch.h": b"// C++\n"})
        for name in ("tiny", "tests-need", "nanobind", "site-needs", "store-needs"):
            self.index.add_wheel(name, "1.0", {f"{name.replace('-', '_')}/__init__.py": b""})
        self.environment = {
            "PATH": os.environ["PATH"], "HOME": str(self.home), "LANG": "C.UTF-8", "PIP_CONFIG_FILE": os.devnull,
            "PIP_INDEX_URL": f"{self.index.url}/simple", "PIP_RETRIES": "0", "PIP_DEFAULT_TIMEOUT": "5"}

    def close(self):
        self.index.close()
        self.index.port.close()
        shutil.rmtree(self.folder)

    def bare(self):
        shutil.rmtree(self.venv)

    def pin(self, packages="bash", pythons="3.10 3.11 3.12 3.13 3.14"):
        (self.checkout / "scripts/pinned.sh").write_text(PINNED.format(packages=packages, pythons=pythons))

    def stand_ins(self):
        """Puts fake cmake, g++ and ninja before the real programs. Returns a function for the calls of cmake since its
        last call: "configure PRESET" or "build PRESET TARGET". A build does not end while stand-ins/endless exists,
        and fails while stand-ins/broken exists."""
        folder, log = self.folder / "stand-ins", self.folder / "asked"
        folder.mkdir()
        (self.checkout / "CMakePresets.json").write_text("{}\n")
        cmake = f"""#!/bin/sh
target=
for word; do [ "$last" != --target ] || target=$word; last=$word; done
case $1 in
  --version) echo "cmake version 3.25.1" ;;
  --preset) mkdir -p build/$2 && touch build/$2/build.ninja && echo "configure $2" >>{log} ;;
  --build) echo "build ${{2##*/}}${{target:+ $target}}" >>{log}
    while [ -e {folder}/endless ]; do sleep 0.1; done
    [ ! -e {folder}/broken ] || exit 1 ;;
esac
"""
        for name, text in (("cmake", cmake), ("g++", "#!/bin/sh\necho 12.2.0\n"), ("ninja", "#!/bin/sh\n")):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        self.environment["PATH"] = f"{folder}:{self.environment['PATH']}"

        def asked():
            lines = log.read_text().splitlines() if log.exists() else []
            log.unlink(missing_ok=True)
            return lines

        return asked

    @property
    def venv(self):
        return self.checkout / ".venv"

    def start(self, *arguments, prefix=(), builds=False):
        """In a process group of its own, as a shell starts it."""
        command = [*prefix, str(self.checkout / "scripts/setup.sh"), *([] if builds else ["--setup-only"]), *arguments]
        return subprocess.Popen(command, env=self.environment, cwd="/", text=True, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, process_group=0)

    def run(self, *arguments, prefix=(), builds=False):
        """Runs setup.sh. Returns (exit status, output)."""
        process = self.start(*arguments, prefix=prefix, builds=builds)
        output = process.communicate(timeout=120)[0]
        return process.returncode, output

    def installed(self, name):
        """Whether the package is in site-packages."""
        sites = list(self.venv.glob(f"lib/python3*/site-packages/{name}"))
        return len(sites) == 1

    def give_to_nobody(self):
        """As root, gives everything to another user. Returns the `prefix` that runs commands as this user."""
        if os.getuid() != 0:
            return ()
        for path in (self.folder, *self.folder.rglob("*")):
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
        return ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")

    def programs_without(self, *names):
        """A folder for PATH with links to all programs of the system except these."""
        folder = self.folder / "programs"
        folder.mkdir()
        for system in ("/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"):
            for entry in os.scandir(system) if os.path.isdir(system) else ():
                if entry.name not in names and not (folder / entry.name).is_symlink():
                    (folder / entry.name).symlink_to(entry.path)
        return folder


@functools.cache
def namespaces(*options):
    """The prefix that runs a command as root in new namespaces; None if the system does not allow this."""
    prefix = ("unshare", *(() if os.getuid() == 0 else ("--map-root-user",)), *options)
    works = subprocess.run([*prefix, "mount", "-t", "tmpfs", "tmpfs", "/mnt"] if "--mount" in options else [*prefix, "true"],
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return prefix if works.returncode == 0 else None


class Debian:
    """A repository of small packages, and a root into which apt-get and dpkg install them if run with `environment`."""

    def __init__(self, machine):
        self.machine, self.root, self.server = machine, machine.folder / "root", machine.index
        self.index = b""
        for folder in ("root/var/lib/dpkg/info", "root/var/lib/dpkg/updates", "apt/lists/partial", "apt/archives/partial",
                       "apt/parts"):
            (machine.folder / folder).mkdir(parents=True)
        (self.root / "var/lib/dpkg/status").touch()
        apt = machine.folder / "apt"
        (apt / "sources.list").write_text(f"deb [trusted=yes] {self.server.url}/debian ./\n")
        (apt / "apt.conf").write_text(
            f'Dir::State "{apt}"; Dir::State::status "{self.root}/var/lib/dpkg/status"; Dir::Cache "{apt}";\n'
            f'Dir::Etc::sourcelist "{apt}/sources.list"; Dir::Etc::sourceparts "-"; Dir::Etc::parts "{apt}/parts";\n'
            'Dir::Etc::main "-"; APT::Sandbox::User "root";\n'
            'Acquire::Retries "0"; Acquire::Languages "none"; Dir::Log "/"; Dir::Log::Terminal ""; Dir::Log::History "";\n')
        self.environment = {"APT_CONFIG": str(apt / "apt.conf"), "DPKG_ROOT": str(self.root),
                            "DPKG_FORCE": "script-chrootless,not-root"}

    def add(self, name, after_install=""):
        """after_install: shell commands of the package's postinst script."""
        tree = self.machine.folder / "trees" / name
        (tree / "DEBIAN").mkdir(parents=True)
        control = f"Package: {name}\nVersion: 1\nArchitecture: all\nMaintainer: t <t@t>\nDescription: a test\n"
        (tree / "DEBIAN/control").write_text(control)
        if after_install:
            (tree / "DEBIAN/postinst").write_text(f"#!/bin/sh\nset -e\n{after_install}\n")
            (tree / "DEBIAN/postinst").chmod(0o755)
        (tree / f"opt/{name}").mkdir(parents=True)
        (tree / f"opt/{name}/file").write_bytes(os.urandom(1 << 16))
        deb = tree.with_suffix(".deb")
        subprocess.run(["dpkg-deb", "--build", "--root-owner-group", tree, deb], check=True, stdout=subprocess.DEVNULL)
        content = deb.read_bytes()
        self.index += (f"{control}Filename: ./{name}.deb\nSize: {len(content)}\n"
                       f"SHA256: {hashlib.sha256(content).hexdigest()}\n\n").encode()
        self.server.files[f"debian/{name}.deb"] = content
        self.server.files["debian/Packages.gz"] = gzip.compress(self.index)
        return f"debian/{name}.deb"
