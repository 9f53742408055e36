"""Characters that look like ASCII are escaped, and words in other alphabets stay readable."""

from __future__ import annotations

import pytest

from chain.tools.lookalikes import escape_lookalikes

ESCAPED = [
    ("rm \u0456ndex", "rm \\u0456ndex"),
    ("\u0441\u043e\u0440", "\\u0441\\u043e\\u0440"),
    ("https://p\u0430ypal.com/", "https://p\\u0430ypal.com/"),
    ("\u0441\u043e\u0440\xe9", "\\u0441\\u043e\\u0440\xe9"),
    ("echo \u201cx; rm *\u201d \u2018y\u2019", "echo \\u201cx; rm *\\u201d \\u2018y\\u2019"),
    ("ls \u2014a \u2013a etc\u2215x", "ls \\u2014a \\u2013a etc\\u2215x"),
    ("\uff52\uff4d x\uff03", "\\uff52\\uff4d x\\uff03"),
    ("\U0001d42b\U0001d426", "\\U0001d42b\\U0001d426"),
]
UNCHANGED = [
    "git commit -m 'Исправил ошибку'",
    "echo λόγος",
    "Überprüfung naïve Łódź ß",
    "日本語file 한국어 สวัสดี שלום",
    "echo 🎉 ✓ →",
    "echo \\u0456",
]


@pytest.mark.parametrize(("text", "shown"), [*ESCAPED, *((text, text) for text in UNCHANGED)])
def test_only_lookalikes_are_escaped(text: str, shown: str) -> None:
    assert escape_lookalikes(text) == shown
