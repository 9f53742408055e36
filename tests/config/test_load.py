"""The configuration: which file is used, which value applies, and where it comes from."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.configuration import ConfigPlace

from chain.config.load import Settings, defaults_folder
from chain.config.retries import Retries
from chain.config.settings import AgentsSettings, Budget, KindSettings
from chain.errors import ConfigError
from chain.providers.anthropic.service import Price

ALL_TOOLS = ("todo", "files", "edit", "shell", "ask", "agents", "research", "mcp")
KEY = {"ANTHROPIC_API_KEY": "sk-secret"}
MODEL = "provider: anthropic, model: m"
SHIPPED_TEXT = (defaults_folder() / "config.yaml").read_text()
SHIPPED_KINDS = {
    name: KindSettings(name, prompt=defaults_folder() / f"prompts/agents/{name}.yaml")
    for name in ("explore", "plan", "agent")
}
MAX_NAME = 56
"""The maximum number of characters in the name of a kind of agent."""


def chain_with(iterations: int) -> str:
    return f"chains: {{default: {{max_iterations: {iterations}}}}}\n"


def definition(text: str, name: str = "mine") -> str:
    """Return a configuration with one definition of a model, on line 3."""
    return f"models:\n  definitions:\n    {name}: {{{text}}}\n"


# Files


def test_the_built_in_values_equal_the_shipped_file(place: ConfigPlace) -> None:
    built_in, shipped = place.load(environ=KEY), place.load(str(defaults_folder() / "config.yaml"), KEY)
    assert built_in.file is None
    assert built_in.chain() == shipped.chain()
    assert built_in.model() == shipped.model()
    assert built_in.agents == shipped.agents


def test_the_defaults_are_as_documented(place: ConfigPlace) -> None:
    config = place.load(environ=KEY)
    kinds = tuple(SHIPPED_KINDS.values())
    assert config.agents == AgentsSettings(max_depth=3, max_running=8, max_kept=50, kinds=kinds)
    assert config.model_names == ("claude", "offline")
    assert (config.inbox_size, config.tool_timeout_s, config.tool_result_limit) == (10, 60.0, 30000)
    assert (config.notify, config.state) == ("bell", "")
    chain = config.chain()
    assert (chain.name, chain.model, chain.tools) == ("default", "claude", ALL_TOOLS)
    assert (chain.max_iterations, chain.timeout_s, chain.budget) == (100, None, Budget())


def test_the_shipped_comments_name_the_limits(place: ConfigPlace) -> None:
    values = place.load_named(definition(MODEL)).model("mine").values
    assert values["max_tokens"] == 32_000
    for key in ("timeout_s", "idle_timeout_s", "retry_s"):
        assert f"# {key}: {values[key]:g} " in SHIPPED_TEXT


def test_the_commented_example_of_a_kind_works(place: ConfigPlace) -> None:
    commented = SHIPPED_TEXT[SHIPPED_TEXT.index("  # reviewer:") :]
    kind = place.load_named("agents:\n" + re.sub("(?m)^  # ", "  ", commented)).kind("reviewer")
    assert None not in (kind.description, kind.prompt, kind.tools, kind.model, kind.max_iterations)


def test_a_later_place_of_the_file_has_precedence(place: ConfigPlace) -> None:
    def iterations(config: str | None = None, **environ: str) -> int | None:
        """Return the limit of iterations, by which the file that was used can be recognised."""
        return place.load(config, environ).chain().max_iterations

    for folder in (place.home / ".config", place.home / "xdg", place.work / "relative"):
        (folder / "chain").mkdir(parents=True)
    (place.work / "relative/chain/config.yaml").write_text(chain_with(6))
    assert place.load(environ={"XDG_CONFIG_HOME": "relative"}).file is None
    (place.home / ".config/chain/config.yaml").write_text(chain_with(5))
    assert iterations() == 5
    (place.home / "xdg/chain/config.yaml").write_text(chain_with(4))
    assert iterations(XDG_CONFIG_HOME=str(place.home / "xdg")) == 4
    place.load_found(chain_with(3))
    assert iterations(XDG_CONFIG_HOME=str(place.home / "xdg")) == 3
    (place.work / "elsewhere.yaml").write_text(chain_with(2))
    assert iterations(CHAIN_CONFIG="elsewhere.yaml") == 2
    (place.work / "named.yaml").write_text(chain_with(1))
    assert iterations("named.yaml", CHAIN_CONFIG="elsewhere.yaml") == 1


def test_a_named_file_must_exist(place: ConfigPlace) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: there is no such file; check --config"):
        place.load("none.yaml")
    with pytest.raises(ConfigError, match=r"none\.yaml: there is no such file; check CHAIN_CONFIG"):
        place.load(environ={"CHAIN_CONFIG": "none.yaml"})


def test_a_named_file_needs_no_chains(place: ConfigPlace) -> None:
    assert place.load_named("inbox: {size: 3}").inbox_size == 3
    assert place.load_named("").inbox_size == 10


# Merging


def test_notify_may_be_off(place: ConfigPlace) -> None:
    assert place.load_named("notify: off").notify == "off"


def test_a_missing_value_is_the_shipped_one(place: ConfigPlace) -> None:
    config = place.load_named(chain_with(5), KEY)
    assert config.chain().max_iterations == 5
    assert config.chain().system_prompt == defaults_folder() / "prompts/system.yaml"
    assert config.model().label == place.load(environ=KEY).model().label


def test_a_shipped_model_is_merged_key_by_key(place: ConfigPlace) -> None:
    values = place.load_named(definition("max_tokens: 99", "claude"), KEY).model("claude").values
    assert (values["max_tokens"], values["provider"], values["api_key"]) == (99, "anthropic", "sk-secret")


def test_another_provider_replaces_the_whole_definition(place: ConfigPlace) -> None:
    model = place.load_named(definition(MODEL, "offline"), KEY).model("offline")
    assert (model.label, model.files) == ("m", {})


def test_a_new_chain_inherits_from_the_default(place: ConfigPlace) -> None:
    config = place.load_named("chains: {review: {tools: [files]}, other: {}}")
    assert (config.chain("review").tools, config.chain("review").max_iterations) == (("files",), 100)
    assert set(config.chain_names) == {"default", "review", "other"}
    assert config.chain().name == "default"
    assert place.load_named("chains: {review: {}}").chain().name == "review"
    assert place.load_named("chains: {review: {}, default: {}}").chain().name == "default"


def test_the_default_model_fills_chains_without_one(place: ConfigPlace) -> None:
    config = place.load_named("models: {default: offline}\nchains: {a: {}, b: {model: claude}, default: {}}")
    assert [config.chain(name).model for name in ("a", "b", "default")] == ["offline", "claude", "offline"]


def test_limits_of_agents_are_merged(place: ConfigPlace) -> None:
    agents = place.load_named("agents: {max_running: 1, max_kept: 7}").agents
    assert agents == AgentsSettings(max_running=1, max_kept=7, kinds=tuple(SHIPPED_KINDS.values()))


CHANGED_KINDS: dict[str, tuple[str, list[KindSettings]]] = {
    "none": ("agents:", []),
    "empty shipped": ("agents: {explore:}", []),
    "shipped": ("agents: {plan: {description: x, prompt: , tools: []}}", [KindSettings("plan", "x", tools=())]),
    "empty values": ("agents: {r: {description: x, prompt: '', tools: , model: ' '}}", [KindSettings("r", "x")]),
    "in the order of the file": (
        "agents: {z: {description: a}, agent: {model: offline}, b: {description: c}}",
        [replace(SHIPPED_KINDS["agent"], model="offline"), KindSettings("z", "a"), KindSettings("b", "c")],
    ),
}


@pytest.mark.parametrize(("text", "changed"), CHANGED_KINDS.values(), ids=CHANGED_KINDS)
def test_kinds_are_merged_with_the_shipped_ones(place: ConfigPlace, text: str, changed: list[KindSettings]) -> None:
    merged = SHIPPED_KINDS | {kind.name: kind for kind in changed}
    assert place.load_named(text).agents.kinds == tuple(merged.values())


# ``explore`` in lower case is a shipped kind, and ``main`` is reserved.
@pytest.mark.parametrize("name", ["a-1", "Explore", "mains", "_", "x" * MAX_NAME])
def test_a_kind_may_have_this_name(place: ConfigPlace, name: str) -> None:
    assert place.load_named(f"agents: {{{name}: {{description: x}}}}").kind_names == (*SHIPPED_KINDS, name)


# Values


def test_a_path_is_relative_to_its_file(place: ConfigPlace) -> None:
    folder = place.work / "deep"
    folder.mkdir()
    (folder / "c.yaml").write_text(
        "chains: {default: {system_prompt: p/s.yaml, interruption_prompt: ~/i.yaml}}\n"
        "models: {definitions: {s: {provider: scripted, script: /abs/rules.yaml}}}"
    )
    config = place.load("deep/c.yaml")
    assert config.chain().system_prompt == folder / "p/s.yaml"
    assert config.chain().interruption_prompt == place.home / "i.yaml"
    assert config.model("s").files["script"] == Path("/abs/rules.yaml")


def test_an_empty_path_means_no_file(place: ConfigPlace) -> None:
    chain = place.load_named("chains: {default: {system_prompt: null, interruption_prompt: ''}}").chain()
    assert (chain.system_prompt, chain.interruption_prompt) == (None, None)


def test_every_setting_of_a_model_is_read(place: ConfigPlace) -> None:
    plain = yaml.safe_load("""
        {provider: anthropic, model: m-1, api_key: k, base_url: 'https://example.org/v1', max_tokens: 10, effort: low,
        temperature: 0.0, thinking: {type: enabled, budget_tokens: 1024}, timeout_s: 30.0, idle_timeout_s: 5.5,
        max_attempts: 1, retry_s: 90.0, context_window: 100000, system_messages: true}
    """)
    body = {"top_k": 3, "metadata": {"user_id": "${WHO}", "tags": ["${WHO}", 1]}}
    more = {"stop_sequences": ["END", "\n\nHuman:"], "extra_body": body, "extra_headers": {"X-Team": "${WHO}"}}
    written = {**plain, **more, "price": {"input": 3, "output": 15, "cache_write": 4}}
    text = yaml.safe_dump({"models": {"definitions": {"full": written}}})
    model = place.load_named(text, {"WHO": "me"}).model("full")
    assert model.retries == Retries(1, 90)
    assert model.values == {
        **plain,
        "stop_sequences": ("END", "\n\nHuman:"),
        "extra_body": {"top_k": 3, "metadata": {"user_id": "me", "tags": ["me", 1]}},
        "extra_headers": {"X-Team": "me"},
        "price": Price(input=3.0, output=15.0, cache_read=pytest.approx(0.3), cache_write=4.0),
    }


def test_every_setting_of_a_kind_is_read(place: ConfigPlace) -> None:
    text = """
agents:
  max_kept: ${KEPT:-9}
  reviewer:
    description: "Reads a change\\n  for ${WHO}"
    prompt: "${DIR}/reviewer.yaml"
    tools: [files, "${WHO}"]
    model: "${M}"
    max_iterations: "${N}"
"""
    environ = {"WHO": "me", "DIR": "prompts", "M": "claude", "N": "15"}
    config, prompt = place.load_named(text, environ), place.work / "prompts/reviewer.yaml"
    assert config.agents.max_kept == 9
    assert config.kind("reviewer") == KindSettings(
        "reviewer", "Reads a change\n  for me", prompt, ("files", "me"), "claude", 15
    )


def test_a_given_model_overrides_the_kinds(place: ConfigPlace) -> None:
    text = "agents: {r: {description: x, model: claude}}"
    for config in (place.load_named(text, model="offline"), place.load_named(text, {"CHAIN_MODEL": "offline"})):
        *_, listed = config.agents.kinds
        assert listed.name == "r"
        assert config.kind("r").model is listed.model is None


[SHIPPED_DATE] = re.findall(r"price: .*as_of: ([\d-]+)", SHIPPED_TEXT)
SHIPPED_PRICE = Price(input=2.0, output=10.0, cache_read=0.2, cache_write=2.5, as_of=SHIPPED_DATE)
PRICES = {
    "the shipped": ("effort: low", SHIPPED_PRICE),
    "the shipped model by its name": ("model: claude-sonnet-5-5", SHIPPED_PRICE),
    "another model": ("model: another", None),
    "another address": ("base_url: 'http://localhost:1'", None),
    "written": ("price: {input: 4, output: 20}", Price(4.0, 20.0, 0.4, 5.0, as_of="")),
    "with a date": ("price: {input: 4, output: 20, as_of: 2026-01-02}", Price(4.0, 20.0, 0.4, 5.0, "2026-01-02")),
    "of another model": ("model: another, price: {input: 4, output: 20}", Price(4.0, 20.0, 0.4, 5.0, as_of="")),
}
"""Keys of a definition of ``claude``, and its price."""


@pytest.mark.parametrize(("keys", "price"), PRICES.values(), ids=PRICES)
def test_a_price_belongs_to_one_model(place: ConfigPlace, keys: str, price: Price | None) -> None:
    assert place.load_named(definition(keys, "claude"), KEY).model("claude").values["price"] == price


def test_a_budget_is_read(place: ConfigPlace) -> None:
    config = place.load_named("chains: {default: {budget: {max_tokens: 1000, max_cost_usd: 0.5}}}")
    assert config.chain().budget == Budget(max_tokens=1000, max_cost_usd=0.5)


# Variables


def test_a_variable_may_hold_a_number_or_bool(place: ConfigPlace) -> None:
    text = definition(f"{MODEL}, max_tokens: '${{N}}', timeout_s: '${{T:-2.5}}', system_messages: '${{S}}'")
    values = place.load_named(text, {"N": "7", "S": "true"}).model("mine").values
    assert (values["max_tokens"], values["timeout_s"], values["system_messages"]) == (7, 2.5, True)


def test_a_variable_holds_no_unusable_number(place: ConfigPlace) -> None:
    # The first is infinite as a float, and Python refuses to convert the second, which has over 4,300 digits.
    for number in ("9" * 400, "9" * 5000, "inf", "nan", "1e400"):
        for key in ("timeout_s", "max_tokens", "temperature"):
            error = place.load_error(definition(f"{MODEL}, {key}: '${{N}}'"), {"N": number})
            assert f"models.definitions.mine.{key}: expected a " in str(error)
            assert "found '${N}'" in str(error)


def test_a_missing_variable_matters_when_used(place: ConfigPlace) -> None:
    config = place.load_named(
        definition("provider: anthropic, model: '${NONE}'") + "agents: {r: {description: '${NONE}'}}", KEY
    )
    assert config.model("claude").values["api_key"] == "sk-secret"
    assert config.kind("explore") == SHIPPED_KINDS["explore"]
    with pytest.raises(ConfigError, match=r"mine\.yaml:3: .*\.mine\.model: the environment variable NONE is not set"):
        config.model("mine")
    with pytest.raises(ConfigError, match=r"mine\.yaml:4: .*the environment variable NONE is not set"):
        _ = config.agents


def test_a_flag_overrides_a_missing_variable(place: ConfigPlace) -> None:
    config = place.load_named("chains: {default: {max_iterations: '${NONE}'}}", max_iterations=5)
    assert config.chain().max_iterations == 5


# Keys and addresses

URL, TOKEN = "https://gateway.example/anthropic", "token-value"
GATEWAY = {"ANTHROPIC_BASE_URL": URL, "ANTHROPIC_AUTH_TOKEN": TOKEN}
LOCAL = "http://localhost:1"


@pytest.mark.parametrize(
    "environ", [{}, {"ANTHROPIC_API_KEY": ""}, {"ANTHROPIC_API_KEY": " \n"}], ids=["unset", "empty", "blank"]
)
def test_a_missing_key_is_reported_when_required(place: ConfigPlace, environ: dict[str, str]) -> None:
    config = place.load(environ=environ)
    config.model("offline").require_key()
    with pytest.raises(ConfigError) as caught:
        config.model().require_key()
    assert str(caught.value) == "no API key: set ANTHROPIC_API_KEY or use --model offline"


def test_a_missing_key_names_the_configured_variable(place: ConfigPlace) -> None:
    model = place.load_named(definition(f"{MODEL}, api_key: '${{TEAM_KEY}}'"), KEY).model("mine")
    with pytest.raises(ConfigError, match="set TEAM_KEY or use"):
        model.require_key()
    config = place.load_named(definition(f"{MODEL}, base_url: '{LOCAL}', api_key: '${{TEAM_KEY}}'"))
    with pytest.raises(ConfigError, match="variable TEAM_KEY is not set"):
        config.model("mine")


NAMED_KEY = ", api_key: '${ANTHROPIC_API_KEY}'"
ADDRESSES = {
    "a key of the environment": ("mine", "", KEY, None, "sk-secret"),
    "an address of the environment": ("mine", "", {"ANTHROPIC_BASE_URL": URL}, URL, None),
    "a token precedes a key": ("mine", "", {"ANTHROPIC_AUTH_TOKEN": TOKEN, **KEY}, None, TOKEN),
    "a token precedes a named key": ("mine", NAMED_KEY, {**GATEWAY, **KEY}, URL, TOKEN),
    "a named key that is not set": ("mine", NAMED_KEY, {"ANTHROPIC_BASE_URL": URL}, URL, None),
    "shipped, at a gateway": ("claude", "", {"ANTHROPIC_BASE_URL": URL, **KEY}, URL, "sk-secret"),
    "a blank address": ("claude", "", {"ANTHROPIC_BASE_URL": " ", **KEY}, None, "sk-secret"),
    "an empty token": ("claude", "", {"ANTHROPIC_AUTH_TOKEN": "", **KEY}, None, "sk-secret"),
    "a written key": ("mine", ", api_key: mine", GATEWAY, URL, "mine"),
    "a written address gets no key": ("mine", f", base_url: '{LOCAL}'", {**GATEWAY, **KEY}, LOCAL, None),
    "a written address of the shipped": ("claude", f", base_url: '{LOCAL}'", KEY, LOCAL, None),
    "no key": ("claude", ", base_url: '${URL}', api_key: null", {**KEY, "URL": LOCAL}, LOCAL, None),
    "an empty key": ("claude", ", base_url: '${URL}', api_key: ''", {**KEY, "URL": LOCAL}, LOCAL, None),
}
"""A definition's name and keys after MODEL, the environment, and the address and key to use. ``claude`` is shipped."""


@pytest.mark.parametrize(("name", "more", "environ", "address", "key"), ADDRESSES.values(), ids=ADDRESSES)
def test_a_key_goes_to_its_own_address(
    place: ConfigPlace, name: str, more: str, environ: dict[str, str], address: str | None, key: str | None
) -> None:
    model = place.load_named(definition(MODEL + more, name), environ).model(name)
    assert (model.values["base_url"], model.values["api_key"]) == (address, key)
    model.require_key()


def test_the_environments_gateway_needs_no_trust(place: ConfigPlace) -> None:
    config = place.load_found(f"chains: {{}}\n{definition(MODEL)}", GATEWAY)
    assert not config.untrusted_values
    assert config.model("mine").values["base_url"] == URL
    assert "ANTHROPIC_AUTH_TOKEN" in config.key_variables, "commands must not get the token"


def test_a_wrong_address_names_its_variable(place: ConfigPlace) -> None:
    with pytest.raises(ConfigError, match=r"^ANTHROPIC_BASE_URL: models.definitions.claude.base_url: must be an"):
        place.load(environ={"ANTHROPIC_BASE_URL": "gateway.example"})


def test_no_secret_is_in_an_error_or_repr(place: ConfigPlace) -> None:
    # A value from a variable.
    for text in ("base_url: '${SECRET}'", "max_tokens: '${SECRET}'", "api_key: '${SECRET}\n\n  x'"):
        assert "hunter2" not in str(place.load_error(definition(f"{MODEL}, {text}"), {"SECRET": "hunter2"}))
    assert "hunter2" not in str(place.load_error("models: {default: '${SECRET}'}", {"SECRET": "hunter2"}))
    # A value in the file, of the wrong type or valid.
    for text in ("api_key: {sk-secret: 1}", "api_key: 1234567", "extra_headers: sk-secret"):
        error = str(place.load_error(definition(f"{MODEL}, {text}")))
        assert "sk-secret" not in error
        assert "1234567" not in error
    text = definition(f"{MODEL}, api_key: sk-secret, extra_headers: {{Authorization: sk-secret}}")
    config = place.load_named(text, {"OTHER": "sk-secret"})
    assert config.model("mine").values["api_key"] == "sk-secret"
    assert "sk-secret" not in repr(config) + repr(config.model("mine"))


# Flags and environment


def test_flags_beat_environment_beats_file(place: ConfigPlace) -> None:
    text = (
        "models: {default: offline}\nchains: {default: {max_iterations: 3}, other: {}}\n"
        "tools: {allow: [a]}\nstate: redis://file/0"
    )
    environ = {"CHAIN_MODEL": "claude", "CHAIN_CHAIN": "other", "CHAIN_MAX_ITERATIONS": "4"}
    environ |= {"CHAIN_ALLOW": "b, c", "CHAIN_STATE": "redis://variable/0"}
    flags = {"model": "offline", "chain": "default", "max_iterations": 5, "allow": ["d", "e,f"], "state": "redis://x/0"}

    def values_of(config: Settings) -> tuple[object, ...]:
        return config.chain().model, config.chain().name, config.chain().max_iterations, config.allow, config.state

    from_environment = ("claude", "other", 4, ("b", "c"), "redis://variable/0")
    assert values_of(place.load_named(text)) == ("offline", "default", 3, ("a",), "redis://file/0")
    assert values_of(place.load_named(text, environ)) == from_environment
    from_flags = ("offline", "default", 5, ("d", "e", "f"), "redis://x/0")
    assert values_of(place.load_named(text, environ, **flags)) == from_flags
    flags_not_given: dict[str, object] = {**dict.fromkeys(flags), "allow": []}
    assert values_of(place.load_named(text, environ, **flags_not_given)) == from_environment


def test_a_flag_substitutes_no_variable(place: ConfigPlace) -> None:
    assert place.load(environ={"A": "x"}, allow=["shell(echo ${A})"]).allow == ("shell(echo ${A})",)


@pytest.mark.parametrize(
    ("flags", "environ", "message"),
    [
        ({"model": "cluade"}, {}, "flag --model: there is no model 'cluade': did you mean claude?"),
        ({"model": "zzz"}, {}, "flag --model: there is no model 'zzz': the models are claude, offline"),
        ({"chain": "zzz"}, {}, "flag --chain: there is no chain 'zzz': the only chain is default"),
        ({}, {"CHAIN_MODEL": "ofline"}, "CHAIN_MODEL: there is no model 'ofline': did you mean offline?"),
        ({"max_iterations": 0}, {}, "flag --max-iterations: must be a whole number of at least 1, found '0'"),
        ({}, {"CHAIN_MAX_ITERATIONS": "x"}, "CHAIN_MAX_ITERATIONS: must be a whole number of at least 1, found 'x'"),
    ],
)
def test_a_wrong_flag_or_variable_is_named(
    place: ConfigPlace, flags: dict[str, object], environ: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        place.load(environ=environ, **flags)
    assert str(caught.value) == message


def test_an_unknown_name_suggests_the_nearest(place: ConfigPlace) -> None:
    config = place.load()
    with pytest.raises(ConfigError, match="did you mean claude"):
        config.model("clade")
    with pytest.raises(ConfigError, match="did you mean default"):
        config.chain("defalt")
    with pytest.raises(ConfigError, match="did you mean explore"):
        config.kind("explorer")


def test_every_value_has_a_source(place: ConfigPlace) -> None:
    text = (
        "models:\n  definitions:\n    claude:\n      model: '${M}'\nchains:\n  default:\n    tools: [todo]\n"
        "agents:\n  reviewer:\n    description: x\n    model: '${M}'\n"
    )
    environ = {"CHAIN_MAX_ITERATIONS": "3", "M": "claude"}
    sources = {
        "models.default": "flag --model",
        "chains.default.model": "flag --model",
        "agents.reviewer.model": "flag --model",
        "tools.allow": "flag --allow",
        "chains.default.max_iterations": "CHAIN_MAX_ITERATIONS",
        "chains.default.tools": "mine.yaml:7",
        "agents.reviewer.description": "mine.yaml:10",
        "models.definitions.claude.model": "mine.yaml:4, M",
        "models.definitions.claude.max_tokens": "default",
        "models.definitions.claude.effort": "default",
        "agents.reviewer.tools": "default",
        "agents.explore.model": "default",
        "agents.max_depth": "default",
    }
    config = place.load_named(text, environ, model="offline", allow=["shell"])
    assert {key: config.source(key) for key in sources} == sources
    assert place.load_named(text, environ).source("agents.reviewer.model") == "mine.yaml:11, M"


# Mistakes


@pytest.mark.parametrize(
    ("text", "line", "message_part"),
    [
        # A chain.
        ("chains:\n  default:\n    max_iterations: 0\n", 3, "chains.default.max_iterations: must be at least 1"),
        ("chains:\n  default:\n    max_iteration: 3\n", 3, "did you mean max_iterations?"),
        ("chains:\n  default:\n    tools:\n      - todo\n      - 3\n", 5, "chains.default.tools[1]: expected text"),
        ("chains:\n  default:\n    model: cluade\n", 3, "did you mean claude?"),
        ("chains:\n  default:\n    compact: 0.9\n", 3, "must be off, or have at and keep"),
        ("chains:\n  default:\n    compact:\n      att: 0.9\n", 4, "did you mean at?"),
        ("chains:\n  default:\n    compact:\n      at: 1.5\n", 4, "compact.at: must be a share of the window"),
        ("chains:\n  default:\n    compact:\n      at: off\n", 4, "with `compact: off` only /compact compacts"),
        ("chains:\n  default:\n    compact:\n      at: 0.5\n      keep: 0.6\n", 5, "must be less than at (0.5)"),
        # The first level.
        ("\nchain: {}\n", 2, "unknown key chain: did you mean chains?"),
        ("notify: beep", 1, "notify: expected one of bell, off"),
        # Models and their definitions.
        ("models:\n  default: cluade\n", 2, "models.default: there is no model 'cluade': did you mean claude?"),
        (definition("model: m"), 3, "models.definitions.mine: needs a provider"),
        (definition("provider: openai, model: m"), 3, "provider: expected one of anthropic, scripted"),
        (definition("provider: anthropic"), 3, "needs a model"),
        (definition("provider: scripted"), 3, "needs a script"),
        (definition("provider: scripted", "claude"), 3, "needs a script"),
        (definition("provider: scripted, script: r.yaml, context_window: -1"), 3, "context_window"),
        (definition(f"{MODEL}, basurl: x"), 3, "did you mean base_url?"),
        (definition(f"{MODEL}, base_url: 'ftp://x'"), 3, "base_url: must be an address"),
        (definition(f"{MODEL}, base_url: 'http://'"), 3, "base_url: must be an address"),
        (definition(f"{MODEL}, base_url: 'http://['"), 3, "base_url: must be an address"),
        (definition(f"{MODEL}, base_url: 'http://x/?key=1'"), 3, "base_url: must not contain ? or #"),
        (definition(f"{MODEL}, retry_s: 0"), 3, "retry_s: must be a number of at least 0.01"),
        (definition(f"{MODEL}, price: {{input: 1}}"), 3, "price: needs input and output"),
        (definition(f"{MODEL}, extra_headers: {{A: 1}}"), 3, "extra_headers.A: expected text"),
        (definition(f'{MODEL}, extra_headers: {{A: "b\\r\\nC: d"}}'), 3, "a character that a header cannot contain"),
        (definition(MODEL, '"\\e[2J"'), 3, "cannot be a name"),
        # Tools and instructions.
        ("tools: {timeout_s: 0}\n", 1, "tools.timeout_s: must be"),
        ("tools:\n  allow:\n    - ' '\n", 3, "is blank"),
        ("tools:\n  shell:\n    sandbox: on\n", 3, "expected one of"),
        ("instructions: AGENTS.md\n", 1, "instructions: expected a list"),
        ("instructions:\n  - AGENTS.md\n  - docs/rules.md\n", 3, "the name of a file, without a folder"),
        ("instructions: [..]\n", 1, "the name of a file, without a folder"),
        # Agents: limits, values of a kind, missing descriptions, names of kinds.
        ("agents:\n  max_depth: 0\n", 2, "agents.max_depth: must be at least 1"),
        ("agents:\n  max_dept: 2\n", 2, "unknown key agents.max_dept: did you mean max_depth?"),
        ("agents:\n  explore:\n    model: cluade\n", 3, "did you mean claude?"),
        ('agents:\n  plan:\n    prompt: "a\\0b"\n', 3, "agents.plan.prompt: is not a path"),
        ("agents:\n  plan:\n    prompt: ${NOT-THERE}\n", 3, "write $${ for a literal ${"),
        ("agents:\n  reviewer:\n    tools: [files]\n", 2, "agents.reviewer: an agent kind of your own needs a descr"),
        ("agents:\n  reviewer:\n    tools: []\n    description: ' '\n", 4, "needs a description"),
        ("agents:\n  exlpore:\n    tools: [files]\n", 2, "did you mean explore?"),
        ("agents:\n  main: {description: x}\n", 2, "main cannot be a kind of agent"),
        ("agents:\n  Root: {description: x}\n", 2, "Root cannot be a kind of agent"),
        ("agents:\n  code review: {description: x}\n", 2, "'code review' cannot be a kind of agent"),
        ('agents:\n  "\\e[2J": {description: x}\n', 2, "cannot be a kind of agent"),
        (f"agents:\n  {'a' * (MAX_NAME + 1)}: {{description: x}}\n", 2, f"1 to {MAX_NAME}"),
    ],
)
def test_a_mistake_names_its_file_and_line(place: ConfigPlace, text: str, line: int, message_part: str) -> None:
    error = place.load_error(text)
    assert (error.file, error.line) == (str(place.work / "mine.yaml"), line)
    assert message_part in error.message


SHIPPED_KEYS = re.findall(r"[a-z_]+(?=:)", SHIPPED_TEXT)
"""The keys of the shipped file, including those in its comments."""
names = st.sampled_from(sorted({*SHIPPED_KEYS, "review", "mine"}))
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["${A}", "${A:-1}", "${", "anthropic", "scripted", "http://x", "http://[", "claude", "../x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names | st.text(max_size=4), inner, max_size=4),
    max_leaves=25,
)
mappings = st.dictionaries(names, values, max_size=3)
nearly_valid = st.builds(
    lambda model, chain, agents, more: {
        "models": {"definitions": {"m": {"provider": "anthropic", "model": "m", **model}}},
        "chains": {"default": chain},
        "agents": agents,
        **more,
    },
    *(mappings, mappings, mappings, mappings),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
@given(values | nearly_valid, st.dictionaries(st.sampled_from(["A", "HOME"]), st.text(max_size=5), max_size=2))
def test_any_yaml_is_read_or_a_mistake(place: ConfigPlace, content: object, environ: dict[str, str]) -> None:
    text = yaml.safe_dump(content)
    for read in (place.load_named, place.load_found):
        try:
            config = read(text, environ)
            for name in config.chain_names:
                config.chain(name)
            for name in config.kind_names:
                config.kind(name)
            assert [kind.name for kind in config.agents.kinds] == list(config.kind_names)
            for name in config.model_names:
                config.model(name)
        except ConfigError:
            continue  # any other exception fails the test
