"""Which variables count as secrets, and the environment of chain's own programs."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from chain.tools.processes.environment import bare_environment, is_secret

SECRET_NAMES = """
TOKEN PASSWORD PGPASSWORD MYSQL_PWD DB_PASS GITHUB_PAT SECRET_KEY_BASE API_KEY APIKEY api_key apiKey githubToken
AWS_ACCESS_KEY_ID SSHPASS GPG_PASSPHRASE RESTIC_PASSWORD2 KEY_1 PASSWD GOOGLE_APPLICATION_CREDENTIALS CLIENT_SECRETS
VAULT-TOKEN npm_config__auth DOCKER_AUTH_CONFIG MY_CREDS TF_TOKEN_app_io API_KEYS GITHUB_TOKENS apiTokens KEYS MONKEYS
"""
"""Also ``MONKEYS``: a word may end with KEYS, as in ``APIKEYS``."""

PLAIN_NAMES = """
PATH HOME PWD OLDPWD KEYBOARD KEYMAP TOKENIZERS_PARALLELISM MAX_TOKENS MAX_OUTPUT_TOKENS COMPAT PATTERN PASSENGER
XAUTHORITY SSH_AUTH_SOCK AUTHOR GIT_AUTHOR_NAME SECRETARY LS_COLORS TERM PYTHONPATH DBUS_SESSION_BUS_ADDRESS PATH_INFO
"""

SECRET_VALUES = """
postgres://me:word@host/db
postgresql+psycopg://me:p@ss@host:5432/db
redis://:word@host
before http://me:word@proxy:3128 after
jdbc:postgresql://host/db?user=me&password=word
Server=host;User Id=me;Password=word;
host=h user=u password=word
password=word
DefaultEndpointsProtocol=https;AccountName=a;AccountKey=word==
https://host/feed?access_token=word
https://token@host/simple
git+http://token@host/repo
https://host/blob?sv=1&sig=word
https://host/blob?X-Amz-Date=1&X-Amz-Signature=word
Bearer word
Authorization: bearer word
-----BEGIN OPENSSH PRIVATE KEY-----
-----BEGIN PRIVATE KEY-----
"""

PLAIN_VALUES = """
-----BEGIN PUBLIC KEY-----
bearer
https://host/?design=1&sigma=2
-Dsort.key=name next_token = none
a;key=
postgres://me@host/db
postgres://host:5432/db
http://localhost:3000/@scope/package
https://host/a:b@c
ssh://git@host:22/repo
/usr/bin:/bin@x
https://host/reset?password=
"""


def test_secrets_are_recognized_by_name() -> None:
    assert [name for name in SECRET_NAMES.split() if not is_secret(name, "x")] == []
    assert [name for name in PLAIN_NAMES.split() if is_secret(name, "x")] == []


def test_secrets_are_recognized_by_value() -> None:
    assert [value for value in SECRET_VALUES.strip().split("\n") if not is_secret("DATABASE_URL", value)] == []
    assert [value for value in PLAIN_VALUES.strip().split("\n") if is_secret("DATABASE_URL", value)] == []


ALMOST_SECRET_VALUES = [
    *("://" + ":" * 100_000, "://:" * 30_000, "https://" + "a" * 100_000, ";" + "key" * 30_000, ";key" * 30_000),
    *("?" * 100_000, " password" * 20_000, "password" + " " * 100_000, ": " * 50_000, "bearer" + " " * 100_000),
    *("-----BEGIN " * 20_000, "-----BEGIN " + "A" * 100_000, ":" + " " * 100_000),
]
"""Long values in which each pattern of a secret begins many times, or almost matches."""


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("value", ALMOST_SECRET_VALUES, ids=lambda value: value[:11])
def test_long_value_takes_linear_time(value: str) -> None:
    start = time.process_time()
    assert not is_secret("X", value)
    assert time.process_time() - start < 1, "quadratic time would be half a minute"


OWN = os.path.realpath(f"{sys.base_prefix}/lib")
"""The folder of the libraries of this Python."""


@pytest.mark.parametrize(
    ("library_path", "expected"),
    [
        pytest.param(f":{OWN}:.:lib:OTHER:", OWN, id="own, relative, other"),
        pytest.param(f"{OWN}/../../OTHER/lib", None, id="another through own"),
        pytest.param("", None, id="empty"),
        pytest.param(f"OTHER/link:{OWN}/x:{OWN}64", f"{OWN}:{OWN}/x:{OWN}64", id="link to own, in own, lib64"),
    ],
)
def test_own_programs_load_only_own_libraries(
    library_path: str, expected: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(OWN)
    monkeypatch.setenv("LD_LIBRARY_PATH", library_path.replace("OTHER", str(tmp_path)))
    assert bare_environment().get("LD_LIBRARY_PATH") == expected
