"""The signals that end the program."""

from __future__ import annotations

import signal
from collections.abc import Iterable

LEAVING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def heard(numbers: Iterable[signal.Signals]) -> list[signal.Signals]:
    """Those to listen to: who started us may have had one ignored, as nohup does, and that holds."""
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
