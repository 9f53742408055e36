"""Environments of programs: which variables are secrets, by their names and values, and what each program gets."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping

_WORD = re.compile(
    # What a word of a name may end with, so that PGPASSWORD and APIKEY count; then what has to be the whole of a word:
    # COMPAT has no token in it, and PWD, alone, is a folder. MAX_TOKENS is a number.
    r"(?:KEYS?|TOKEN|(?<!MAX_)(?<!MAX_OUTPUT_)TOKENS"
    r"|SECRETS?|PASSWORDS?|PASSWD|PASSCODE|PASSPHRASE|PASS|CREDENTIALS?|CREDS?)(?![A-Z])"
    r"|(?<![A-Z])(?:PAT|AUTH(?!_SOCK))(?![A-Z])|_PWD(?![A-Z])"
)

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

_IN_VALUE = re.compile(
    # The password of an address, as in postgres://me:word@host/db, or a token alone, as in https://token@host.
    # The first colon, and no later one: each try costs the rest of the value.
    r"://[^/?#\s@:]*:[^/?#\s]+@|https?://[^/?#\s]+@"
    # One among other settings, as in ;Password=word and ;AccountKey=word, and what signs an address.
    r"|(?:^|[?&;\s])(?:password|passwd|pwd)\s*=\s*[^\s&;]"
    r"|[?&;](?:[a-z_-]*(?:key|token|secret|signature)|sig)\s*=\s*[^\s&;]"
    # A header, and a key itself.
    r"|(?:^|:)\s*bearer\s+\S|-----BEGIN [A-Z0-9 ]*PRIVATE KEY",
    re.IGNORECASE,
)


_NO_EDITOR = (
    "sh -c 'echo No editor can be opened here: give the text as an argument, as git commit -m does. >&2; exit 1'"
)
_UNATTENDED = {
    **dict.fromkeys(("EDITOR", "VISUAL", "GIT_EDITOR", "GIT_SEQUENCE_EDITOR", "HGEDITOR", "SVN_EDITOR"), _NO_EDITOR),
    **dict.fromkeys(("PAGER", "GIT_PAGER", "MANPAGER"), "cat"),
    "VIMINIT": "autocmd VimEnter * cquit",  # it ends where it would wait for keys
    "GIT_TERMINAL_PROMPT": "0",
}


def unattended(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a command that nobody types to: what would open an editor fails, and nothing is paged."""
    others = {n: "cat" if n.endswith("PAGER") else _NO_EDITOR for n in environ if n.endswith(("PAGER", "EDITOR"))}
    return {**environ, **others, **_UNATTENDED}


def is_secret(name: str, value: str) -> bool:
    """Whether a variable looks like one that nobody else should have."""
    return bool(_WORD.search(_CAMEL.sub("_", name).upper()) or _IN_VALUE.search(value))


def bare_environment() -> dict[str, str]:
    """The environment of a program of our own: what a Python may need to start, and no key."""
    needed = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR")
    found = {name: os.environ[name] for name in needed if name in os.environ}
    # A library elsewhere (an empty part is the current folder) may be a command's work, and would run unfenced.
    own = tuple(f"{os.path.realpath(each)}/lib" for each in (sys.prefix, sys.base_prefix))
    parts = filter(os.path.isabs, os.environ.get("LD_LIBRARY_PATH", "").split(":"))
    libraries = ":".join(part for part in map(os.path.realpath, parts) if part.startswith(own))
    return {**found, "LD_LIBRARY_PATH": libraries} if libraries else found
