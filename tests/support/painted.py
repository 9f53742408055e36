"""Rows with colours, as they look."""

import re

from chain.text.plain import sanitize
from cli.show.text_rows import columns

_SGR = re.compile(r"\x1b\[[0-9;]+m")


def bare(row: str) -> str:
    """The row without its colours."""
    return _SGR.sub("", row)


def check_row(row: str, width: int) -> None:
    """It fits, resets its colours, and holds nothing else that a terminal obeys."""
    text = bare(row)
    assert columns(text) <= width
    assert sanitize(text) == text
    assert not {"\n", "\t"} & set(text)
    assert (_SGR.findall(row) or ["\x1b[0m"])[-1] == "\x1b[0m"
