"""A folder with a model, written by the module's own `save_pretrained` and replaced as a whole.

The rules and file names are those of `isthmus export --out`, so that each can replace a folder of the other.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import pathlib
import shutil
from typing import Any, Callable, Iterator, Union

import torch

from ._native import ConfigError, DataError

NOTE = "isthmus.json"  # lists the files that were written, so that a later call removes no others
PARTIAL = ".isthmus-partial"
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def saver_of(model: torch.nn.Module) -> Any:
    """The module that has `save_pretrained`, without the wrappers of `torch.compile` and DDP.

    Raises:
        ConfigError: it has none.
    """
    while not hasattr(model, "save_pretrained"):
        if isinstance(getattr(model, "_orig_mod", None), torch.nn.Module):
            model = model._orig_mod  # type: ignore[assignment]
        elif type(model).__name__ == "DistributedDataParallel":
            model = model.module  # type: ignore[assignment]
        else:
            raise ConfigError(
                f"save_pretrained: the model is a {type(model).__name__}, which has no method save_pretrained; "
                "expected a model of Hugging Face. To save another one: "
                "with loop.global_parameters(): torch.save(model.state_dict(), FILE)"
            )
    return model


class ModelFolder:
    """A reader finds the old files or the new ones, each complete.

    Raises:
        ConfigError: the folder has files, unless `replace` is set and this class or `isthmus export` wrote all of them.
    """

    def __init__(self, folder: Union[str, os.PathLike[str]], replace: bool) -> None:
        self._folder = pathlib.Path(os.path.realpath(folder))
        if self._folder.exists() and not self._folder.is_dir():
            raise ConfigError(f"save_pretrained: {self._folder} is a file; expected a folder")
        if not replace and _names_in(self._folder):
            raise ConfigError(
                f"save_pretrained: {self._folder} has files already; expected a new or empty folder, or replace=True "
                "to replace the model of an earlier save_pretrained"
            )
        self._refuse_files_of_others()

    def _refuse_files_of_others(self) -> None:
        for name in sorted(_names_in(self._folder) - _own_names(self._folder)):
            raise ConfigError(
                f"save_pretrained: {self._folder} holds {name}; expected a new or empty folder, or a folder that "
                "save_pretrained or `isthmus export` has written, with nothing added: it is replaced as a whole. Name "
                "another folder, or move that file"
            )

    def write(self, fill: Callable[[pathlib.Path], Any], model: str) -> None:
        """Calls `fill` with a temporary folder next to it, adds isthmus.json, and swaps the two.

        Raises:
            DataError: the folder cannot be written. It is then unchanged, also after other exceptions of `fill`.
        """
        fresh = self._folder.parent / f".{self._folder.name}{PARTIAL}"
        try:
            fresh.mkdir(parents=True, exist_ok=True)
            _mend_killed_exchange(fresh, self._folder)
            with self._locked(fresh):
                try:
                    _empty(fresh)  # left by a process that was killed
                    fill(fresh)
                    note = {"model": model, "files": sorted(_names_in(fresh))}
                    (fresh / NOTE).write_text(json.dumps(note, indent=2) + "\n")
                    for path in [*fresh.rglob("*"), fresh]:
                        _sync(path)
                    self._refuse_files_of_others()
                    _exchange(fresh, self._folder)
                    _sync(self._folder.parent)
                finally:
                    shutil.rmtree(fresh, ignore_errors=True)
        except OSError as error:
            raise DataError(f"cannot write {self._folder}: {error}") from error

    @contextlib.contextmanager
    def _locked(self, fresh: pathlib.Path) -> Iterator[None]:
        descriptor = os.open(fresh, os.O_RDONLY | os.O_DIRECTORY)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Another writer may have moved its folder away since it was opened here.
                mine = fresh.exists() and os.path.samestat(os.fstat(descriptor), os.stat(fresh))
            except BlockingIOError:
                mine = False
            if not mine:
                raise ConfigError(
                    f"save_pretrained: another process is writing {self._folder}; wait for it, or name another folder"
                )
            yield
        finally:
            os.close(descriptor)


def _names_in(folder: pathlib.Path) -> set[str]:
    return set(os.listdir(folder)) - {PARTIAL} if folder.is_dir() else set()


def _own_names(folder: pathlib.Path) -> set[str]:
    """Files that the note in the folder lists, and the note itself; empty without a note."""
    try:
        files = json.loads((folder / NOTE).read_text())["files"]
        return {NOTE, *map(str, files)}
    except (OSError, ValueError, KeyError, TypeError):
        return set()


def _empty(folder: pathlib.Path) -> None:
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _sync(path: pathlib.Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _old_of(fresh: pathlib.Path) -> pathlib.Path:
    return fresh.with_name(fresh.name + ".old")


def _exchange(fresh: pathlib.Path, folder: pathlib.Path) -> None:
    """Afterwards `fresh` holds what was in the folder, or does not exist."""
    if not _names_in(folder):
        os.rename(fresh, folder)
        return
    exchange = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if exchange is not None:
        if exchange(_AT_FDCWD, os.fsencode(fresh), _AT_FDCWD, os.fsencode(folder), _RENAME_EXCHANGE) == 0:
            return
        reason = ctypes.get_errno()
        if reason not in (errno.EINVAL, errno.ENOSYS):
            raise OSError(reason, os.strerror(reason), str(folder))
    # This file system cannot exchange: for a moment there is no folder.
    old = _old_of(fresh)
    os.rename(folder, old)
    try:
        os.rename(fresh, folder)
    except OSError:
        os.rename(old, folder)
        raise
    os.rename(old, fresh)


def _mend_killed_exchange(fresh: pathlib.Path, folder: pathlib.Path) -> None:
    """After a process was killed between the renames of a file system that cannot exchange."""
    old = _old_of(fresh)
    if not old.exists():
        return
    if folder.exists():
        shutil.rmtree(old)
    else:
        os.rename(old, folder)
