"""Which variables look like secrets, and which do not."""

from __future__ import annotations

import pytest

from chain.tools.processes.secrets import is_secret

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
