"""SIGTERM as a request to leave the run, as for `isthmus worker`."""

from __future__ import annotations

import contextlib
import signal
import time
from types import FrameType
from typing import Callable, Optional

from ._native import ConfigError

_ONE_REQUEST = 2.0  # seconds; at a shutdown service managers and launchers send a signal each


class LeaveOnSigterm:
    """The process's handler of SIGTERM until `restore`. The main thread creates it.

    Before this replica is in the run a signal ends the program with status 143. Later the first one makes it leave; a
    further one does what it would have done without this handler.
    """

    def __init__(self) -> None:
        self._leave: Optional[Callable[[str], None]] = None
        self._newest: Optional[float] = None
        self._restored = False
        try:
            self._before = signal.signal(signal.SIGTERM, self._on_signal)
        except ValueError as error:
            raise ConfigError("leave_on_sigterm: signals are handled by the main thread; create the loop there") from error

    def in_run(self, leave: Callable[[str], None]) -> None:
        """From now on the first signal calls `leave` with the reason."""
        self._leave = leave

    def restore(self) -> None:
        """Restores the handler from before, unless the program has set another one since."""
        self._leave, self._restored = None, True
        if signal.getsignal(signal.SIGTERM) == self._on_signal:
            with contextlib.suppress(ValueError):  # not the main thread: the next signal restores it
                signal.signal(signal.SIGTERM, signal.SIG_DFL if self._before is None else self._before)

    def _on_signal(self, number: int, _: Optional[FrameType]) -> None:
        if self._restored:
            self.restore()
            signal.raise_signal(number)
            return
        if self._leave is None:
            raise SystemExit(128 + number)
        before, self._newest = self._newest, time.monotonic()
        if before is None:
            self._leave("asked to by a signal")
        elif self._newest - before > _ONE_REQUEST:
            self.restore()
            signal.raise_signal(number)
