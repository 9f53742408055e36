"""Which variables look like secrets, which do not, and what a program of our own gets."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from chain.tools.processes.environment import bare_environment, is_secret

SECRET = """
TOKEN PASSWORD PGPASSWORD MYSQL_PWD DB_PASS GITHUB_PAT SECRET_KEY_BASE NPM_TOKEN API_KEY APIKEY api_key apiKey
githubToken AWS_SECRET_ACCESS_KEY AWS_ACCESS_KEY_ID SSHPASS GPG_PASSPHRASE RESTIC_PASSWORD2 KEY_1 PASSWD
ROOT_PASSWD GOOGLE_APPLICATION_CREDENTIALS CLIENT_SECRETS VAULT-TOKEN npm_config__auth DOCKER_AUTH_CONFIG
MY_CREDS TF_TOKEN_app_io API_KEYS GITHUB_TOKENS apiTokens KEYS MONKEYS
"""

PLAIN = """
PATH HOME PWD OLDPWD LANG KEYBOARD KEYMAP TOKENIZERS_PARALLELISM MAX_TOKENS MAX_OUTPUT_TOKENS COMPAT PATTERN PASSENGER
XAUTHORITY SSH_AUTH_SOCK AUTHOR GIT_AUTHOR_NAME SECRETARY LS_COLORS TERM PYTHONPATH DBUS_SESSION_BUS_ADDRESS
PATH_INFO
"""

IN_VALUE = [
    ("postgres://me:word@host/db", True),
    ("postgresql+psycopg://me:p@ss@host:5432/db", True),
    ("redis://:word@host", True),
    ("before http://me:word@proxy:3128 after", True),
    ("jdbc:postgresql://host/db?user=me&password=word", True),
    ("Server=host;User Id=me;Password=word;", True),
    ("host=h user=u password=word", True),
    ("password=word", True),
    ("DefaultEndpointsProtocol=https;AccountName=a;AccountKey=word==", True),
    ("https://host/feed?access_token=word", True),
    ("https://token@host/simple", True),
    ("git+http://token@host/repo", True),
    ("https://host/blob?sv=1&sig=word", True),
    ("https://host/blob?X-Amz-Date=1&X-Amz-Signature=word", True),
    ("Bearer word", True),
    ("Authorization: bearer word", True),
    ("-----BEGIN OPENSSH PRIVATE KEY-----\nword", True),
    ("-----BEGIN PRIVATE KEY-----", True),
    ("-----BEGIN PUBLIC KEY-----", False),
    ("bearer", False),
    ("https://host/?design=1&sigma=2", False),
    ("-Dsort.key=name next_token = none", False),
    ("a;key=", False),
    ("postgres://me@host/db", False),
    ("postgres://host:5432/db", False),
    ("http://localhost:3000/@scope/package", False),
    ("https://host/a:b@c", False),
    ("ssh://git@host:22/repo", False),
    ("/usr/bin:/bin@x", False),
    ("https://host/reset?password=", False),
]


@pytest.mark.parametrize(
    ("name", "secret"), [*((name, True) for name in SECRET.split()), *((name, False) for name in PLAIN.split())]
)
def test_a_name_tells(name: str, secret: bool) -> None:
    assert is_secret(name, "x") == secret


@pytest.mark.parametrize(("value", "secret"), IN_VALUE)
def test_a_value_tells(value: str, secret: bool) -> None:
    assert is_secret("DATABASE_URL", value) == secret


SLOW = [
    *("://" + ":" * 100_000, "://:" * 30_000, "https://" + "a" * 100_000, ";" + "key" * 30_000, ";key" * 30_000),
    *("?" * 100_000, " password" * 20_000, "password" + " " * 100_000, ": " * 50_000, "bearer" + " " * 100_000),
    *("-----BEGIN " * 20_000, "-----BEGIN " + "A" * 100_000, ":" + " " * 100_000),
]


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("value", SLOW, ids=lambda value: value[:11])
def test_a_long_value_is_read_in_no_time(value: str) -> None:
    began = time.process_time()
    assert not is_secret("X", value)
    assert time.process_time() - began < 1, "the square of its length takes half a minute"


def test_a_program_of_our_own_loads_no_library_that_a_command_may_have_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = os.path.realpath(f"{sys.base_prefix}/lib"), str(tmp_path)
    (tmp_path / "link").symlink_to(ours)
    for given, kept in [
        (f":{ours}:.:lib:{theirs}:", ours),
        (f"{ours}/../../{theirs}/lib", None),
        ("", None),
        (f"{theirs}/link:{ours}/x:{ours}64", f"{ours}:{ours}/x:{ours}64"),
    ]:
        monkeypatch.setenv("LD_LIBRARY_PATH", given)
        assert bare_environment().get("LD_LIBRARY_PATH") == kept
