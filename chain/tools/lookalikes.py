"""Characters that look like others, in commands to approve and in texts to be replaced. Pure.

In a command that the user approves, a character that only looks like ASCII is shown as an escape, because only ASCII
has a meaning in a shell. A letter is not escaped if its word is clearly in another alphabet: the word has no ASCII
letter, and it has a letter of the same alphabet that looks like no ASCII letter.
"""

from __future__ import annotations

import re
import unicodedata

_WORD = re.compile(r"[^\W_]+|[^\x00-\x7f]")

_CONFUSABLES = re.compile(
    # Unicode's confusables (UTS 39) of one ASCII character, below U+10000, without those that NFKD turns into ASCII,
    # and without three Cyrillic letters that only resemble 6, r and T and are in many words. Also double quotes and
    # the em dash.
    "[\xb4\xb8\xd7\u0131\u0138\u0184\u018d\u0196\u01a6\u01a7\u01b7\u01bc\u01bd\u01c0\u01c3\u021c\u0222\u0223\u0241"
    "\u0251\u0261\u0263\u0269\u026a\u028b\u028f\u0294\u02b9\u02bb-\u02be\u02c2-\u02c4\u02c6\u02c8\u02ca\u02cb\u02d0"
    "\u02d7\u02db\u02dc\u02f4\u02f8\u0374\u037a\u037f\u0384\u0391\u0392\u0395-\u0397\u0399\u039a\u039c\u039d\u039f"
    "\u03a1\u03a4\u03a5\u03a7\u03b1\u03b3\u03b9\u03ba\u03bd\u03bf-\u03c1\u03c3-\u03c5\u03d2\u03d6\u03dc\u03e8"
    "\u03f0-\u03f3\u03f9\u03fa\u0405\u0406\u0408\u0410\u0412\u0415\u0417\u041a\u041c-\u041e\u0420-\u0422\u0425\u042c"
    "\u0430\u0431\u0433\u0435\u043a\u043e-\u0443\u0445\u0446\u0455\u0456\u0458\u0474\u0475\u04ae\u04af\u04bb\u04bd"
    "\u04c0\u04cf\u04e0\u0501\u050c\u051b\u051c\u054d\u054f\u0555\u055a\u055d\u0563\u0566\u0570\u0578\u057c\u057d"
    "\u0581\u0584\u0585\u0589\u06f0\u06f1\u06f5\u06f7\u0903\u0966\u097d\u09e6\u09ea\u09ed\u0a66\u0a67\u0a6a\u0a83"
    "\u0ae6\u0b03\u0b20\u0b66\u0b68\u0be6\u0c02\u0c66\u0c82\u0ce6\u0d02\u0d20\u0d66\u0d82\u0e50\u0ed0\u101d\u1040"
    "\u10e7\u10ff\u13a0-\u13a2\u13a5\u13a9-\u13ac\u13ae\u13b3\u13b7\u13bb\u13bd\u13c0\u13c2\u13c3\u13ce\u13cf\u13d2"
    "\u13d4\u13d5\u13d9\u13da\u13de\u13df\u13e2\u13e6\u13e7\u13ee\u13f3\u13f4\u1400\u142f\u1433\u1438\u144a\u144c"
    "\u146d\u146f\u148d\u14aa\u14bf\u1541\u157c\u157d\u1587\u15af\u15b4\u15c5\u15de\u15ea\u15f0\u15f7\u166d\u166e"
    "\u16b2\u16b7\u16c1\u16cc\u16d5\u16d6\u16ec\u16ed\u1735\u1803\u1809\u1d00\u1d04\u1d0b\u1d0f\u1d11\u1d1b\u1d1c"
    "\u1d20\u1d22\u1d26\u1d28\u1d83\u1d8c\u1e9d\u1eff\u1fbd-\u1fc0\u1ffd\u1ffe\u2010-\u2014\u2018-\u201f\u2032\u2033"
    "\u2035\u2039\u203a\u2041\u2043\u2044\u204e\u2053\u205a\u212e\u213c\u213d\u2212\u2215-\u2217\u2223\u2228\u222a"
    "\u2236\u223c\u22a4\u22c1\u22c3\u22ff\u2373\u2374\u237a\u2571\u2573\u2768\u2769\u276e\u276f\u2772-\u2775"
    "\u2795\u2796\u27cb\u27cd\u27d9\u292b\u292c\u29f5\u29f8\u29f9\u2a2f\u2c85\u2c8e\u2c92\u2c94\u2c95\u2c98\u2c9a"
    "\u2c9e\u2c9f\u2ca2-\u2ca6\u2ca8\u2cac\u2cba\u2cc6\u2cca\u2ccc\u2cd0\u2cd2\u2d38\u2d39\u2d4f\u2d51\u2d54\u2d55"
    "\u2d5d\u2e40\u2f02\u2f03\u3007\u3014\u3015\u3033\u30a0\u31d3\u31d4\u4e36\u4e3f\ua4d0-\ua4d4\ua4d6\ua4d7"
    "\ua4d9\ua4da\ua4dc\ua4dd\ua4df-\ua4e3\ua4e6\ua4e7\ua4ea-\ua4ec\ua4ee\ua4f0\ua4f2-\ua4f4\ua4f8\ua4f9\ua4fd\ua4ff"
    "\ua60e\ua644\ua647\ua731\ua75a\ua76a\ua76e\ua778\ua789\ua78c\ua798\ua799\ua79f\ua7ab\ua7b2-\ua7b4\uab32\uab35"
    "\uab3d\uab47\uab48\uab4e\uab52\uab5a\ufd3e\ufd3f\ufe58\uffe8]"
)


_FORMS = str.maketrans(
    "\u2018\u2019\u201a\u201b\u2032\u201c\u201d\u201e\u201f\u2033\u2010\u2011\u2012\u2013\u2014\u2015\u2212",
    "'''''\"\"\"\"\"-------",
    "\xad\u200b\u200c\u200d\u200e\u200f\u2060\ufeff",  # invisible
)
"""Maps quotes and dashes to ASCII, and deletes invisible characters. Unicode normalisation does neither."""


def escape_lookalikes(text: str) -> str:
    """Return the text with Python escapes in place of characters that only look like ASCII."""
    return text if text.isascii() else _WORD.sub(lambda found: _escape_word(found[0]), text)


def _escape_word(word: str) -> str:
    others = [char for char in word if not char.isascii()]
    is_mixed = any(char.isascii() and char.isalpha() for char in word)
    known = set() if is_mixed else {_alphabet(char) for char in others if not _is_lookalike(char)}
    return "".join(
        c.encode("unicode_escape").decode() if _is_lookalike(c) and _alphabet(c) not in known else c for c in word
    )


def _is_lookalike(char: str) -> bool:
    if char.isascii():
        return False
    # Mathematical and historic alphabets are between these two code points. Many of their letters are confusables.
    is_old = "\U00010000" <= char < "\U00020000" and char.isalnum()
    return is_old or unicodedata.normalize("NFKD", char).isascii() or _CONFUSABLES.match(char) is not None


def _alphabet(char: str) -> str:
    """Return the first word of the character's Unicode name, which names its alphabet."""
    return unicodedata.name(char, "").partition(" ")[0]


def fold_lookalikes(text: str) -> str:
    """Return the text with lookalike characters replaced by one standard form. The number of lines does not change."""
    return unicodedata.normalize("NFKC", text.replace("\r\n", "\n").translate(_FORMS))


def differing_characters(text: str, other: str) -> list[str]:
    """Return the names of the characters in ``text`` that are not in ``other`` and are easily confused with others."""

    def has_forms(char: str) -> bool:
        is_plain = fold_lookalikes(char) == char == unicodedata.normalize("NFD", char)
        return char == "\r" or not is_plain or unicodedata.combining(char) > 0

    found = filter(has_forms, sorted({*text} - {*other}))
    return ["CR LF" if c == "\r" else f"U+{ord(c):04X} ({unicodedata.name(c, 'no name')})" for c in found]
