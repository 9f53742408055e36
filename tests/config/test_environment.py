"""The address and the key that the environment has for models: where they hold, and who may see them."""

import pytest
from support.configuration import Setting

from chain.config.load import Settings, load_settings
from chain.errors import ConfigError
from cli.subcommands.check import check

URL, TOKEN, KEY = "https://gateway.example/anthropic", "token-value", "key-value"
BOTH = {"ANTHROPIC_BASE_URL": URL, "ANTHROPIC_AUTH_TOKEN": TOKEN}


def defined(keys: str) -> str:
    return f"chains: {{}}\nmodels: {{definitions: {{mine: {{provider: anthropic, model: m{keys}}}}}}}\n"


def address_and_key(settings: Settings, name: str) -> tuple[object, object]:
    model = settings.model(name)
    return model.values["base_url"], model.values["api_key"]


@pytest.mark.parametrize("keys", ["", ", api_key: '${ANTHROPIC_API_KEY}'"])
@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (BOTH, (URL, TOKEN)),
        ({"ANTHROPIC_BASE_URL": URL}, (URL, None)),
        ({"ANTHROPIC_AUTH_TOKEN": TOKEN}, (None, TOKEN)),
        ({"ANTHROPIC_BASE_URL": URL, "ANTHROPIC_API_KEY": KEY}, (URL, KEY)),
        ({**BOTH, "ANTHROPIC_API_KEY": KEY}, (URL, TOKEN)),
        ({"ANTHROPIC_AUTH_TOKEN": TOKEN, "ANTHROPIC_API_KEY": KEY}, (None, TOKEN)),
        ({"ANTHROPIC_BASE_URL": " ", "ANTHROPIC_AUTH_TOKEN": "", "ANTHROPIC_API_KEY": KEY}, (None, KEY)),
    ],
)
def test_they_hold_where_the_configuration_names_neither(
    at: Setting, keys: str, environ: dict[str, str], expected: tuple[object, object]
) -> None:
    settings = at.named(defined(keys), environ)
    assert address_and_key(settings, "mine") == expected
    assert address_and_key(settings, "claude") == expected
    settings.model("mine").require_key()


def test_what_the_configuration_names_stays(at: Setting) -> None:
    assert address_and_key(at.named(defined(", api_key: mine"), BOTH), "mine") == (URL, "mine")
    local = "http://localhost:8080"
    assert address_and_key(at.named(defined(f", base_url: '{local}'"), BOTH), "mine") == (local, None), (
        "a key of the environment goes to no address of a file"
    )


def test_a_file_that_was_merely_found_needs_no_trust_for_them(at: Setting) -> None:
    settings = at.found(defined(""), BOTH)
    assert not settings.asked
    assert address_and_key(settings, "mine") == (URL, TOKEN)


def test_an_address_that_is_none_is_reported_with_its_variable(at: Setting) -> None:
    with pytest.raises(ConfigError, match=r"^ANTHROPIC_BASE_URL: models.definitions.claude.base_url: must be an"):
        at.load(environ={"ANTHROPIC_BASE_URL": "gateway.example"})


def test_commands_do_not_get_the_token(at: Setting) -> None:
    assert "ANTHROPIC_AUTH_TOKEN" in at.load(environ=BOTH).key_variables


def test_check_shows_where_they_are_from_and_not_the_token(at: Setting) -> None:
    settings = load_settings(config=None, environ={"HOME": str(at.home), **BOTH}, cwd=at.work)
    rows, is_good = check(settings, workspace=at.work, is_verbose=True)
    assert is_good
    text = "\n".join(rows)
    different = text.partition("Defaults:")[0]
    assert f"models.definitions.claude.base_url: {URL}  (ANTHROPIC_BASE_URL)" in different
    assert "models.definitions.claude.api_key: set  (default, ANTHROPIC_AUTH_TOKEN)" in text
    assert TOKEN not in text
