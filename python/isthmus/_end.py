"""The end of a replica's part in a run."""

from __future__ import annotations

import sys
from typing import Any, Optional

from ._signals import LeaveOnSigterm


def close(native: Any, signals: Optional[LeaveOnSigterm], why: str) -> None:
    try:
        native.close(why)
    finally:
        if signals:
            signals.restore()


def close_forgotten(native: Any, signals: Optional[LeaveOnSigterm]) -> None:
    """Closes a loop that was not closed, at the end of the program or when the loop is deleted."""
    error = getattr(sys, "last_value", None)
    close(native, signals, "" if error is None else f"{type(error).__name__}: {error}")
