"""The programs in this package: `isthmus` (also `python -m isthmus`) and `isthmus-coordinator`."""

import os
import pathlib
import sys
import sysconfig


def _become(name: str) -> None:
    # Also without an active environment, the coordinator must find this package's `isthmus-wandb`.
    os.environ["PATH"] = os.pathsep.join(filter(None, [os.environ.get("PATH"), sysconfig.get_path("scripts")]))
    program = str(pathlib.Path(__file__).resolve().parent / "bin" / name)
    try:
        os.execv(program, [program, *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"{name}: cannot start {program}: {error.strerror}; install the package again")


def main() -> None:
    _become("isthmus")


def coordinator() -> None:
    _become("isthmus-coordinator")


if __name__ == "__main__":
    main()
