"""The programs in this package: `isthmus` (also `python -m isthmus`) and `isthmus-coordinator`."""

import os
import pathlib
import sys


def _become(name: str) -> None:
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
