"""Environments for programs, and a test of whether a variable is a secret, by its name and value."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping

_WORD = re.compile(
    # First the words that can also end a longer word, as in PGPASSWORD and APIKEY; then those that must be whole words,
    # because COMPAT is no secret and PWD alone is a directory. MAX_TOKENS is a number.
    r"(?:KEYS?|TOKEN|(?<!MAX_)(?<!MAX_OUTPUT_)TOKENS"
    r"|SECRETS?|PASSWORDS?|PASSWD|PASSCODE|PASSPHRASE|PASS|CREDENTIALS?|CREDS?)(?![A-Z])"
    r"|(?<![A-Z])(?:PAT|AUTH(?!_SOCK))(?![A-Z])|_PWD(?![A-Z])"
)

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

_IN_VALUE = re.compile(
    # A password in an address, as in postgres://me:word@host/db, or a token alone, as in https://token@host. Only the
    # first colon is tried, because each try reads the rest of the value.
    r"://[^/?#\s@:]*:[^/?#\s]+@|https?://[^/?#\s]+@"
    # A setting in a list, as in ;Password=word and ;AccountKey=word, or the signature of an address.
    r"|(?:^|[?&;\s])(?:password|passwd|pwd)\s*=\s*[^\s&;]"
    r"|[?&;](?:[a-z_-]*(?:key|token|secret|signature)|sig)\s*=\s*[^\s&;]"
    # An HTTP header, or the text of a private key.
    r"|(?:^|:)\s*bearer\s+\S|-----BEGIN [A-Z0-9 ]*PRIVATE KEY",
    re.IGNORECASE,
)


_NO_EDITOR = (
    "sh -c 'echo No editor can be opened here: give the text as an argument, as git commit -m does. >&2; exit 1'"
)
_UNATTENDED = {
    **dict.fromkeys(("EDITOR", "VISUAL", "GIT_EDITOR", "GIT_SEQUENCE_EDITOR", "HGEDITOR", "SVN_EDITOR"), _NO_EDITOR),
    **dict.fromkeys(("PAGER", "GIT_PAGER", "MANPAGER"), "cat"),
    "VIMINIT": "autocmd VimEnter * cquit",  # vim exits instead of waiting for keys
    "GIT_TERMINAL_PROMPT": "0",
}


def unattended_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a command without a terminal: editors fail at once, and pagers are ``cat``."""
    others = {n: "cat" if n.endswith("PAGER") else _NO_EDITOR for n in environ if n.endswith(("PAGER", "EDITOR"))}
    return {**environ, **others, **_UNATTENDED}


def is_secret(name: str, value: str) -> bool:
    """Return whether a variable looks like a secret, by its name or its value."""
    return bool(_WORD.search(_CAMEL.sub("_", name).upper()) or _IN_VALUE.search(value))


def bare_environment() -> dict[str, str]:
    """Return the environment of chain's own programs: the variables that Python may need to start, and no secrets."""
    needed = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR")
    found = {name: os.environ[name] for name in needed if name in os.environ}
    # A library in any other directory may have been created by a command, and would run outside of the sandbox. An
    # empty part is the current directory.
    own = tuple(f"{os.path.realpath(each)}/lib" for each in (sys.prefix, sys.base_prefix))
    parts = filter(os.path.isabs, os.environ.get("LD_LIBRARY_PATH", "").split(":"))
    libraries = ":".join(part for part in map(os.path.realpath, parts) if part.startswith(own))
    return {**found, "LD_LIBRARY_PATH": libraries} if libraries else found
