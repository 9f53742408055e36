"""Characters that look like ASCII are escaped, and words in other alphabets stay readable."""

from __future__ import annotations

import pytest

from chain.tools.lookalikes import escape_lookalikes

ESCAPED = {
    "one Cyrillic letter": ("rm \u0456ndex", "rm \\u0456ndex"),
    "a word of Cyrillic lookalikes": ("\u0441\u043e\u0440", "\\u0441\\u043e\\u0440"),
    "an address": ("https://p\u0430ypal.com/", "https://p\\u0430ypal.com/"),
    "Cyrillic lookalikes and a Latin letter": ("\u0441\u043e\u0440\xe9", "\\u0441\\u043e\\u0440\xe9"),
    "quotes": ("echo \u201cx; rm *\u201d \u2018y\u2019", "echo \\u201cx; rm *\\u201d \\u2018y\\u2019"),
    "dashes and a slash": ("ls \u2014a \u2013a etc\u2215x", "ls \\u2014a \\u2013a etc\\u2215x"),
    "wide letters": ("\uff52\uff4d x\uff03", "\\uff52\\uff4d x\\uff03"),
    "mathematical letters": ("\U0001d42b\U0001d426", "\\U0001d42b\\U0001d426"),
}
READABLE = [
    "git commit -m 'Исправил ошибку'",
    "echo λόγος",
    "Überprüfung naïve Łódź ß",
    "日本語file 한국어 สวัสดี שלום",
    "echo 🎉 ✓ →",
    "echo \\u0456",  # a backslash sequence that was typed
]


@pytest.mark.parametrize(("text", "escaped"), ESCAPED.values(), ids=ESCAPED)
def test_lookalikes_of_ascii_are_escaped(text: str, escaped: str) -> None:
    assert escape_lookalikes(text) == escaped


@pytest.mark.parametrize("text", READABLE)
def test_words_in_other_alphabets_are_unchanged(text: str) -> None:
    assert escape_lookalikes(text) == text
