"""What only looks like ASCII is an escape, and what people write in their own letters stays readable."""

from __future__ import annotations

import pytest

from chain.tools.lookalikes import escape_lookalikes

SPELLED_OUT = {
    "a letter among others": ("rm \u0456ndex", "rm \\u0456ndex"),
    "a word of such letters alone": ("\u0441\u043e\u0440", "\\u0441\\u043e\\u0440"),
    "a host": ("https://p\u0430ypal.com/", "https://p\\u0430ypal.com/"),
    "beside a letter of another alphabet": ("\u0441\u043e\u0440\xe9", "\\u0441\\u043e\\u0440\xe9"),
    "quotes that quote nothing": (
        "echo \u201cx; rm *\u201d \u2018y\u2019",
        "echo \\u201cx; rm *\\u201d \\u2018y\\u2019",
    ),
    "a dash and a slash": ("ls \u2014a \u2013a etc\u2215x", "ls \\u2014a \\u2013a etc\\u2215x"),
    "wide letters": ("\uff52\uff4d x\uff03", "\\uff52\\uff4d x\\uff03"),
    "letters for mathematics": ("\U0001d42b\U0001d426", "\\U0001d42b\\U0001d426"),
    "a word in Cyrillic": ("git commit -m 'Исправил ошибку'", "git commit -m 'Исправил ошибку'"),
    "a word in Greek": ("echo λόγος", "echo λόγος"),
    "Latin letters with signs": ("Überprüfung naïve Łódź ß", "Überprüfung naïve Łódź ß"),
    "letters of the east beside ASCII": ("日本語file 한국어 สวัสดี שלום", "日本語file 한국어 สวัสดี שלום"),
    "signs that are none of ASCII": ("echo 🎉 ✓ →", "echo 🎉 ✓ →"),
    "plain": ("echo \\u0456", "echo \\u0456"),
}


@pytest.mark.parametrize("name", SPELLED_OUT)
def test_what_looks_like_ascii_is_spelled_out(name: str) -> None:
    text, shown = SPELLED_OUT[name]
    assert escape_lookalikes(text) == shown
