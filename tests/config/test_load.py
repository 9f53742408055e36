"""The configuration: which file, which value, from where, and what a file from a stranger may not do."""

import os
import stat
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.configuration import Setting

from chain.app.open import build_model
from chain.app.prompt_files import prompt_file, system_prompt
from chain.config.load import Settings, defaults_folder, remember_trust, require_trust, state_folder
from chain.config.retries import Retries
from chain.config.settings import Budget
from chain.config.trust import is_trusted
from chain.errors import ConfigError, UserError
from chain.interruption.prompt_file import PromptFile
from chain.providers.anthropic.service import Price

GROUPS = ("todo", "files", "edit", "shell", "ask", "agents", "research", "mcp")
KEY = {"ANTHROPIC_API_KEY": "sk-secret"}


def chain_with(iterations: int) -> str:
    return f"chains: {{default: {{max_iterations: {iterations}}}}}\n"


def definition(text: str, name: str = "mine") -> str:
    return f"models:\n  definitions:\n    {name}: {{{text}}}\n"


def test_the_built_in_values_are_those_of_the_shipped_file(at: Setting) -> None:
    built_in = at.load(environ=KEY)
    shipped = at.load(str(defaults_folder() / "config.yaml"), KEY)
    assert built_in.file is None
    assert built_in.chain() == shipped.chain()
    assert built_in.model() == shipped.model()
    assert built_in.model_names == ("claude", "offline")
    assert (built_in.inbox_size, built_in.tool_timeout_s, built_in.tool_result_limit) == (10, 60.0, 30000)
    chain = built_in.chain()
    assert (chain.name, chain.model, chain.tools) == ("default", "claude", GROUPS)
    assert (chain.max_iterations, chain.timeout_s, chain.budget) == (100, None, Budget())


def test_the_limits_in_the_comments_of_the_shipped_file_are_the_real_ones(at: Setting) -> None:
    text = (defaults_folder() / "config.yaml").read_text()
    model = at.named(definition("provider: anthropic, model: m")).model("mine")
    for key in ("timeout_s", "idle_timeout_s", "retry_s"):
        assert f"# {key}: {model.values[key]:g} " in text


@pytest.mark.parametrize(("written", "value"), [("notify: off", "off"), ("notify: bell", "bell"), ("", "bell")])
def test_how_a_terminal_calls_its_user(written: str, value: str, at: Setting) -> None:
    assert at.named(written).notify == value


def test_files_are_looked_for_in_order(at: Setting) -> None:
    xdg = at.home / ".config" / "chain"
    xdg.mkdir(parents=True)
    elsewhere = at.work / "elsewhere.yaml"
    (xdg / "config.yaml").write_text(chain_with(4))
    assert at.load().chain().max_iterations == 4
    at.found(chain_with(3))
    assert at.load().chain().max_iterations == 3
    elsewhere.write_text(chain_with(2))
    assert at.load(environ={"CHAIN_CONFIG": str(elsewhere)}).chain().max_iterations == 2
    (at.work / "named.yaml").write_text(chain_with(1))
    assert at.load("named.yaml", {"CHAIN_CONFIG": str(elsewhere)}).chain().max_iterations == 1


def test_xdg_config_home_is_used_unless_it_is_relative(at: Setting) -> None:
    for folder in (at.home / "xdg", at.work / "relative"):
        (folder / "chain").mkdir(parents=True)
        (folder / "chain" / "config.yaml").write_text(chain_with(7))
    assert at.load(environ={"XDG_CONFIG_HOME": str(at.home / "xdg")}).chain().max_iterations == 7
    assert at.load(environ={"XDG_CONFIG_HOME": "relative"}).file is None


@pytest.mark.parametrize("environ", [{}, {"CHAIN_CONFIG": "none.yaml"}])
def test_a_named_file_that_does_not_exist_is_an_error(at: Setting, environ: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: there is no such file, which (--config|CHAIN_CONFIG) names"):
        at.load(None if environ else "none.yaml", environ)


def test_a_broken_file_that_was_meant_for_us_is_an_error(at: Setting) -> None:
    with pytest.raises(ConfigError, match=r"config\.yaml:3: is not valid YAML"):
        at.found("chains:\n  default: [\n")


def test_a_named_file_needs_no_chains(at: Setting) -> None:
    assert at.named("inbox: {size: 3}").inbox_size == 3
    assert at.named("").inbox_size == 10


def test_what_a_file_leaves_out_is_as_shipped(at: Setting) -> None:
    got = at.named(chain_with(5), KEY)
    assert got.chain().max_iterations == 5
    assert got.chain().system_prompt == defaults_folder() / "prompts/system.yaml"
    assert got.model().label == at.load(environ=KEY).model().label


def test_a_definition_of_a_shipped_name_is_merged_key_by_key(at: Setting) -> None:
    model = at.named(definition("max_tokens: 99", "claude"), KEY).model("claude")
    assert tuple(model.values[key] for key in ("max_tokens", "provider", "api_key")) == (99, "anthropic", "sk-secret")


def test_a_definition_with_another_provider_replaces_the_shipped_one(at: Setting) -> None:
    model = at.named(definition("provider: anthropic, model: m", "offline"), KEY).model("offline")
    assert (model.label, model.files) == ("m", {})
    assert at.refusal(definition("provider: scripted", "claude")).line == 3  # its script is not there to be inherited


def test_a_chain_of_a_new_name_takes_the_rest_from_the_shipped_default(at: Setting) -> None:
    got = at.named("chains: {review: {tools: [files]}, other: {}}")
    assert got.chain("review").tools == ("files",)
    assert got.chain("review").max_iterations == 100
    assert set(got.chain_names) == {"default", "review", "other"}


def test_the_default_chain_is_the_only_one_of_the_file_or_default(at: Setting) -> None:
    assert at.named("chains: {review: {}}").chain().name == "review"
    assert at.named("chains: {review: {}, other: {}}").chain().name == "default"
    assert at.named("chains: {review: {}, default: {}}").chain().name == "default"


def test_a_default_model_is_meant_for_chains_that_name_none(at: Setting) -> None:
    got = at.named("models: {default: offline}\nchains: {a: {}, b: {model: claude}, default: {}}")
    assert [got.chain(name).model for name in ("a", "b", "default")] == ["offline", "claude", "offline"]


def test_no_prompt_is_a_choice(at: Setting) -> None:
    chain = at.named("chains: {default: {system_prompt: null, interruption_prompt: ''}}").chain()
    assert (chain.system_prompt, chain.interruption_prompt) == (None, None)


def test_paths_are_relative_to_the_file_that_names_them(at: Setting) -> None:
    folder = at.work / "deep"
    folder.mkdir()
    (folder / "c.yaml").write_text(
        "chains: {default: {system_prompt: p/s.yaml, interruption_prompt: ~/i.yaml}}\n"
        "models: {definitions: {s: {provider: scripted, script: /abs/rules.yaml}}}"
    )
    got = at.load("deep/c.yaml")
    assert got.chain().system_prompt == folder / "p/s.yaml"
    assert got.chain().interruption_prompt == at.home / "i.yaml"
    assert got.model("s").files["script"] == Path("/abs/rules.yaml")


def test_every_setting_of_a_model_is_read(at: Setting) -> None:
    plain = {
        "provider": "anthropic",
        "model": "m-1",
        "api_key": "k",
        "base_url": "https://example.org/v1",
        "max_tokens": 10,
        "effort": "low",
        "temperature": 0.0,
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "timeout_s": 30.0,
        "idle_timeout_s": 5.5,
        "max_attempts": 1,
        "retry_s": 90.0,
        "context_window": 100_000,
        "system_messages": True,
    }
    body = {"top_k": 3, "metadata": {"user_id": "${WHO}", "tags": ["${WHO}", 1]}}
    more = {"stop_sequences": ["END", "\n\nHuman:"], "extra_body": body, "extra_headers": {"X-Team": "${WHO}"}}
    written = {**plain, **more, "price": {"input": 3, "output": 15, "cache_write": 4}}
    model = at.named(yaml.safe_dump({"models": {"definitions": {"full": written}}}), {"WHO": "me"}).model("full")
    assert model.retries == Retries(1, 90)
    assert model.values == {
        **plain,
        "stop_sequences": ("END", "\n\nHuman:"),
        "extra_body": {"top_k": 3, "metadata": {"user_id": "me", "tags": ["me", 1]}},
        "extra_headers": {"X-Team": "me"},
        "price": Price(input=3.0, output=15.0, cache_read=pytest.approx(0.3), cache_write=4.0),
    }


def test_a_budget_is_read(at: Setting) -> None:
    got = at.named("chains: {default: {budget: {max_tokens: 1000, max_cost_usd: 0.5}}}")
    assert got.chain().budget == Budget(max_tokens=1000, max_cost_usd=0.5)


# Variables


def test_variables_are_filled_in_where_numbers_are_meant(at: Setting) -> None:
    text = definition(
        "provider: anthropic, model: m, max_tokens: '${N}', timeout_s: '${T:-2.5}', system_messages: '${S}'"
    )
    model = at.named(text, {"N": "7", "S": "true"}).model("mine")
    assert [model.values[key] for key in ("max_tokens", "timeout_s", "system_messages")] == [7, 2.5, True]


@pytest.mark.parametrize("number", ["9" * 400, "9" * 5000, "inf", "nan", "1e400"])
def test_a_variable_that_holds_no_usable_number_is_refused(at: Setting, number: str) -> None:
    for key in ("timeout_s", "max_tokens", "temperature"):
        error = at.refusal(definition(f"provider: anthropic, model: m, {key}: '${{N}}'"), {"N": number})
        assert f"models.definitions.mine.{key}: expected a " in str(error)
        assert "found '${N}'" in str(error)


def test_a_missing_variable_is_an_error_only_when_its_value_is_needed(at: Setting) -> None:
    got = at.named(definition("provider: anthropic, model: '${NONE_SUCH}'"), KEY)
    assert got.model("claude").values["api_key"] == "sk-secret"
    with pytest.raises(
        ConfigError, match=r"mine\.yaml:3: .*\.mine\.model: the environment variable NONE_SUCH is not set"
    ):
        got.model("mine")


def test_an_error_shows_a_value_as_it_was_written(at: Setting) -> None:
    for text in ("base_url: '${SECRET}'", "max_tokens: '${SECRET}'", "api_key: '${SECRET}\n\n  x'"):
        error = at.refusal(definition(f"provider: anthropic, model: m, {text}"), {"SECRET": "hunter2"})
        assert "hunter2" not in str(error)
    error = at.refusal("models: {default: '${SECRET}'}", {"SECRET": "hunter2"})
    assert "hunter2" not in str(error)


# Keys


@pytest.mark.parametrize("environ", [{}, {"ANTHROPIC_API_KEY": ""}, {"ANTHROPIC_API_KEY": " \n"}])
def test_a_missing_key_is_told_when_it_is_asked_for(at: Setting, environ: dict[str, str]) -> None:
    model = at.load(environ=environ).model()
    assert model.missing_key
    with pytest.raises(ConfigError) as caught:
        model.require_key()
    assert str(caught.value) == "no API key: set ANTHROPIC_API_KEY or use --model offline"
    model = at.named(definition("provider: anthropic, model: m, api_key: '${TEAM_KEY}'"), KEY).model("mine")
    with pytest.raises(ConfigError, match="set TEAM_KEY or use"):
        model.require_key()


@pytest.mark.parametrize(
    ("name", "more", "key"),
    [
        ("mine", "", "sk-secret"),
        ("mine", ", base_url: 'http://localhost:1'", None),
        ("claude", ", base_url: '${URL}', api_key: null", None),
        ("claude", ", base_url: '${URL}', api_key: ''", None),
        ("claude", ", base_url: 'http://localhost:1'", None),
    ],
)
def test_the_usual_key_goes_to_the_usual_address_alone(at: Setting, name: str, more: str, key: str | None) -> None:
    text = definition(f"provider: anthropic, model: m{more}", name)
    model = at.named(text, {**KEY, "URL": "http://localhost:1"}).model(name)
    assert model.values["api_key"] == key
    assert model.values["base_url"] == (None if key else "http://localhost:1")
    model.require_key()
    at.load().model("offline").require_key()


def test_a_key_for_an_address_of_its_own_is_needed(at: Setting) -> None:
    got = at.named(definition("provider: anthropic, model: m, base_url: 'http://localhost:1', api_key: '${K}'"))
    with pytest.raises(ConfigError, match="variable K is not set"):
        got.model("mine")


def test_secrets_are_not_in_a_repr(at: Setting) -> None:
    text = definition("provider: anthropic, model: m, api_key: sk-secret, extra_headers: {Authorization: sk-secret}")
    got = at.named(text, {"OTHER": "sk-secret"})
    assert got.model("mine").values["api_key"] == "sk-secret"
    assert "sk-secret" not in repr(got) + repr(got.model("mine"))


# Flags and environment


def test_flags_beat_environment_beats_file_beats_defaults(at: Setting) -> None:
    text = "models: {default: offline}\nchains: {default: {max_iterations: 3}, other: {}}\ntools: {allow: [a]}"
    environ = {"CHAIN_MODEL": "claude", "CHAIN_CHAIN": "other", "CHAIN_MAX_ITERATIONS": "4", "CHAIN_ALLOW": "b, c"}
    assert at.named("").chain().max_iterations == 100

    def seen(got: Settings) -> tuple[object, ...]:
        return got.chain().model, got.chain().name, got.chain().max_iterations, got.allow

    assert seen(at.named(text)) == ("offline", "default", 3, ("a",))
    assert seen(at.named(text, environ)) == ("claude", "other", 4, ("b", "c"))
    flags = {"model": "offline", "chain": "default", "max_iterations": 5, "allow": ["d", "e,f"]}
    assert seen(at.named(text, environ, **flags)) == ("offline", "default", 5, ("d", "e", "f"))
    nothing = {"model": None, "chain": None, "max_iterations": None, "allow": []}
    assert seen(at.named(text, environ, **nothing)) == ("claude", "other", 4, ("b", "c"))
    assert at.named(text, {"A": "x"}, allow=["shell(echo ${A})"]).allow == ("shell(echo ${A})",)


def test_a_value_that_is_overridden_is_not_checked(at: Setting) -> None:
    assert at.named("chains: {default: {max_iterations: '${NONE}'}}", max_iterations=5).chain().max_iterations == 5


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
def test_a_wrong_flag_or_variable_is_told(
    at: Setting, flags: dict[str, object], environ: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        at.load(environ=environ, **flags)
    assert str(caught.value) == message


def test_an_unknown_name_is_told_with_the_nearest(at: Setting) -> None:
    got = at.load()
    for ask, name, meant in (
        (got.model, "clade", "claude"),
        (got.chain, "defalt", "default"),
        (got.kind, "explorer", "explore"),
    ):
        with pytest.raises(ConfigError, match=f"did you mean {meant}"):
            ask(name)


def test_the_source_of_a_value_is_told(at: Setting) -> None:
    text = "models:\n  definitions:\n    claude:\n      model: '${M}'\nchains:\n  default:\n    tools: [todo]\n"
    got = at.named(text, {"CHAIN_MAX_ITERATIONS": "3", "M": "m"}, model="offline", allow=["shell"])
    assert got.source("models.default") == "flag --model"
    assert got.source("chains.default.model") == "flag --model"
    assert got.source("tools.allow") == "flag --allow"
    assert got.source("chains.default.max_iterations") == "CHAIN_MAX_ITERATIONS"
    assert got.source("chains.default.tools") == "mine.yaml:7"
    assert got.source("models.definitions.claude.model") == "mine.yaml:4, M"
    assert got.source("models.definitions.claude.max_tokens") == "default"
    assert got.source("models.definitions.claude.effort") == "default"


# Mistakes


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("chains:\n  default:\n    max_iterations: 0\n", 3, "chains.default.max_iterations: must be at least 1"),
        ("chains:\n  default:\n    max_iteration: 3\n", 3, "did you mean max_iterations?"),
        ("chains:\n  default:\n    tools:\n      - todo\n      - 3\n", 5, "chains.default.tools[1]: expected text"),
        ("chains:\n  default:\n    timeout_s: 0\n", 3, "chains.default.timeout_s: must be"),
        ("chains:\n  default:\n    model: cluade\n", 3, "did you mean claude?"),
        ("\nchain: {}\n", 2, "unknown key chain: did you mean chains?"),
        ("tools:\n  result_limit: -1\n", 2, "tools.result_limit: must be at least 1"),
        ("models:\n  default: cluade\n", 2, "models.default: there is no model 'cluade': did you mean claude?"),
        (definition("model: m"), 3, "models.definitions.mine: needs a provider"),
        (definition("provider: openai, model: m"), 3, "provider: expected one of anthropic, scripted"),
        (definition("provider: anthropic"), 3, "needs a model"),
        (definition("provider: scripted"), 3, "needs a script"),
        (definition("provider: anthropic, model: m, basurl: x"), 3, "did you mean base_url?"),
        (definition("provider: anthropic, model: m, base_url: 'ftp://x'"), 3, "base_url: must be an address"),
        (definition("provider: anthropic, model: m, base_url: 'http://'"), 3, "base_url: must be an address"),
        (definition("provider: anthropic, model: m, base_url: 'http://['"), 3, "base_url: must be an address"),
        (
            definition("provider: anthropic, model: m, base_url: 'http://x/?key=1'"),
            3,
            "base_url: must end before ? or #",
        ),
        ("notify: beep", 1, "notify: expected one of bell, off"),
        ("tools: {timeout_s: 0}\n", 1, "tools.timeout_s: must be"),
        ("tools:\n  allow:\n    - ' '\n", 3, "is blank"),
        ("tools:\n  shell:\n    sandbox: on\n", 3, "expected one of"),
        ("instructions: AGENTS.md\n", 1, "instructions: expected a list"),
        ("instructions:\n  - AGENTS.md\n  - docs/rules.md\n", 3, "the name of a file, without a folder"),
        ("instructions: [..]\n", 1, "the name of a file, without a folder"),
        ("agents: [a]\n", 1, "agents: expected a mapping"),
        ("agents:\n  max_depth: 0\n", 2, "agents.max_depth: must be at least 1"),
        ("agents:\n  max_dept: 2\n", 2, "unknown key agents.max_dept: did you mean max_depth?"),
        ("agents:\n  explore:\n    model: cluade\n", 3, "did you mean claude?"),
        ("agents:\n  plan:\n    description: [a]\n", 3, "agents.plan.description: expected text"),
        ('agents:\n  plan:\n    prompt: "a\\0b"\n', 3, "agents.plan.prompt: is not a path"),
        ("agents:\n  plan:\n    prompt: ${NOT-THERE}\n", 3, "write $${ for a literal ${"),
        ("agents:\n  reviewer:\n    tools: [files]\n", 2, "agents.reviewer: a kind of your own needs a descr"),
        ("agents:\n  reviewer:\n    tools: []\n    description: ' '\n", 4, "needs a description"),
        ("agents:\n  exlpore:\n    tools: [files]\n", 2, "did you mean explore?"),
        ("agents:\n  main: {description: x}\n", 2, "main cannot be a kind of agent"),
        ("agents:\n  Root: {description: x}\n", 2, "Root cannot be a kind of agent"),
        ("agents:\n  code review: {description: x}\n", 2, "'code review' cannot be a kind of agent"),
        ('agents:\n  "\\e[2J": {description: x}\n', 2, "cannot be a kind of agent"),
        (f"agents:\n  {'a' * 57}: {{description: x}}\n", 2, "1 to 56"),
        ("chains:\n  default:\n    compact: 0.9\n", 3, "must be off, or have at and keep"),
        ("chains:\n  default:\n    compact:\n      att: 0.9\n", 4, "did you mean at?"),
        (
            "chains:\n  default:\n    compact:\n      at: 1.5\n",
            4,
            "compact.at: must be a share of the window",
        ),
        ("chains:\n  default:\n    compact:\n      at: off\n", 4, "with `compact: off` only /compact compacts"),
        ("chains:\n  default:\n    compact:\n      at: 0.5\n      keep: 0.6\n", 5, "must be less than at (0.5)"),
        (definition("provider: scripted, script: r.yaml, context_window: -1"), 3, "context_window"),
        (definition("provider: anthropic, model: m, retry_s: 0"), 3, "retry_s: must be a number of at least 0.01"),
        (definition("provider: anthropic, model: m, price: {input: 1}"), 3, "price: needs input and output"),
        (definition("provider: anthropic, model: m, extra_headers: {A: 1}"), 3, "extra_headers.A: expected text"),
        (
            definition('provider: anthropic, model: m, extra_headers: {A: "b\\r\\nC: d"}'),
            3,
            "a character that a header cannot have",
        ),
        (definition("provider: anthropic, model: m", '"\\e[2J"'), 3, "cannot be a name"),
    ],
)
def test_a_mistake_is_told_with_its_file_and_line(at: Setting, text: str, line: int, words: str) -> None:
    error = at.refusal(text)
    assert (error.file, error.line) == (str(at.work / "mine.yaml"), line)
    assert words in error.message


def test_a_secret_of_the_wrong_type_is_not_shown(at: Setting) -> None:
    for text in ("api_key: {sk-secret: 1}", "api_key: 1234567", "extra_headers: sk-secret"):
        error = at.refusal(definition(f"provider: anthropic, model: m, {text}"))
        assert "sk-secret" not in str(error)
        assert "1234567" not in str(error)


# Trust


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        (definition("base_url: 'https://evil.example'", "claude"), ["models.definitions.claude.base_url"]),
        (definition("api_key: '${AWS_SECRET:-x}'", "claude"), ["models.definitions.claude.api_key"]),
        (definition("extra_headers: {X-Key: a}", "claude"), ["models.definitions.claude.extra_headers"]),
        (definition("extra_body: {mcp_servers: []}", "claude"), ["models.definitions.claude.extra_body"]),
        (definition("provider: anthropic, model: m", "offline"), ["models.definitions.offline.provider"]),
        (definition("model: 'a-${HOME:-x}'", "claude"), ["models.definitions.claude.model"]),
        (definition("thinking: {a: {b: '${HOME}'}}", "claude"), ["models.definitions.claude.thinking"]),
        (definition("stop_sequences: ['${HOME}']", "claude"), ["models.definitions.claude.stop_sequences"]),
        (definition("provider: scripted, script: ../rules.yaml"), ["models.definitions.mine.script"]),
        ("tools: {shell: {sandbox: off}}", ["tools.shell.sandbox"]),
        ("tools: {shell: {network: true, env: [GH_TOKEN]}}", ["tools.shell.network", "tools.shell.env"]),
        ("tools: {shell: {writable: [..]}}", ["tools.shell.writable"]),
        ("tools: {research: {hosts: [example.org]}}", ["tools.research.hosts"]),
        ("chains: {default: {system_prompt: /etc/passwd}}", ["chains.default.system_prompt"]),
        ("chains: {default: {interruption_prompt: p/../../x}}", ["chains.default.interruption_prompt"]),
        ("chains: {default: {system_prompt: '\u00a0/etc/passwd\u3000'}}", ["chains.default.system_prompt"]),
        ("tools: {allow: [write_file]}", ["tools.allow"]),
        ("agents: {max_depth: 4, max_running: 9}", ["agents.max_depth", "agents.max_running"]),
        (
            definition("base_url: 'https://e.example'", "claude") + "tools: {allow: [shell]}",
            ["models.definitions.claude.base_url", "tools.allow"],
        ),
    ],
)
def test_a_found_file_may_not_send_a_key_or_run_anything(at: Setting, text: str, keys: list[str]) -> None:
    text = text if "chains:" in text else f"{text}\nchains: {{}}\n"
    environ = {**KEY, "AWS_SECRET": "s"}
    got = at.found(text, environ)
    assert list(got.untrusted) == keys
    with pytest.raises(ConfigError) as caught:
        require_trust(got)
    assert all(key in str(caught.value) for key in keys)
    assert f"--config {at.work / 'config.yaml'}" in str(caught.value)
    with pytest.raises(ConfigError):
        got.model("claude")
    with pytest.raises(ConfigError):
        got.model("offline")
    named = at.load("config.yaml", environ)
    assert named.untrusted == ()
    assert named.model("claude").values["provider"] == "anthropic"
    assert at.load(environ={**environ, "CHAIN_CONFIG": "config.yaml"}).untrusted == ()


@pytest.mark.parametrize(
    "text",
    [
        chain_with(5),
        "chains: {default: {tools: [todo, files, ask, edit, agents], system_prompt: prompts/mine.yaml}}",
        "chains: {}\n" + definition("provider: anthropic, model: m, api_key: '${ANTHROPIC_API_KEY}'"),
        "chains: {}\n" + definition("model: other, max_tokens: 5, temperature: 1, extra_body: {}", "claude"),
        "chains: {}\ntools: {allow: [], timeout_s: 5}\nmodels: {default: offline}",
        "chains: {}\nagents: {max_running: 2, explore: {prompt: p/e.yaml}, mine: {description: x, tools: [shell]}}",
    ],
)
def test_a_found_file_may_set_what_is_harmless(at: Setting, text: str) -> None:
    got = at.found(text, KEY)
    assert got.untrusted == ()
    assert got.model("claude").values["api_key"] == "sk-secret"
    require_trust(got)


def test_tools_of_the_wrong_shape_are_told_where_a_missing_variable_hides_them(at: Setting) -> None:
    got = at.found("chains: {default: {model: '${NONE_SUCH}', tools: [[shell], shell]}}")
    assert got.untrusted == ("chains.default.model",)


def test_the_shipped_file_is_trusted_wherever_it_is_found(at: Setting) -> None:
    assert at.found((defaults_folder() / "config.yaml").read_text()).untrusted == ()


GOOD_FILES = {
    "rules.yaml": "rules: [{text: mine}]",
    "system.yaml": "messages: [{role: system, content: mine}]",
    "handler.yaml": "messages: [{role: user, content: 'mine ${message}'}]",
}
NAMING_FILES = (
    "models: {definitions: {offline: {provider: scripted, script: rules.yaml}}}\n"
    "chains: {default: {model: offline, system_prompt: system.yaml, interruption_prompt: handler.yaml}}\n"
)


@pytest.mark.parametrize("name", GOOD_FILES)
@pytest.mark.parametrize("way", ["found", "named"])
def test_a_file_that_becomes_a_link_is_judged_again_when_it_is_read(at: Setting, name: str, way: str) -> None:
    for each, text in GOOD_FILES.items():
        (at.work / each).write_text(text)
        (at.home / each).write_text(text.replace("mine", "private"))
    got = getattr(at, way)(NAMING_FILES)
    require_trust(got)
    reads: dict[str, Callable[[], object]] = {
        "rules.yaml": lambda: build_model(got.model("offline")),
        "system.yaml": lambda: system_prompt(got, got.chain()),
        "handler.yaml": lambda: _or_raise(prompt_file(got, got.chain())),
    }
    reads[name]()
    (at.work / name).unlink()
    (at.work / name).symlink_to(at.home / name)
    if way == "named":
        reads[name]()
        return
    with pytest.raises(ConfigError, match=r"leads out of .*: if you trust it, name it with --config") as caught:
        reads[name]()
    assert caught.value.file == str(at.work / name)


def _or_raise(file: PromptFile) -> None:
    _, error = file.current()
    if error is not None:
        raise error


def test_the_users_own_file_needs_no_trust(at: Setting) -> None:
    folder = at.home / ".config" / "chain"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("tools: {allow: [shell]}")
    assert at.load().untrusted == ()
    assert at.load().allow == ("shell",)


ALLOWING = "chains: {}\ntools: {allow: [shell]}\n"


def test_trust_is_remembered_by_content(at: Setting, tmp_path: Path) -> None:
    state = state_folder({"HOME": str(at.home)})
    got = at.found(ALLOWING)
    trusted = remember_trust(got, state)
    assert trusted.untrusted == ()
    assert trusted.model("offline").values["provider"] == "scripted"
    assert at.load().untrusted == ()
    assert at.found(f"# the same\n{ALLOWING}").untrusted == ()
    assert at.found("chains: {}\ntools: {allow: [shell, write_file]}").untrusted == ("tools.allow",)
    (tmp_path / "copy").mkdir()
    assert Setting(at.home, tmp_path / "copy").found(ALLOWING).untrusted == ()


def test_trust_does_not_extend_to_a_link_that_the_trusted_folder_did_not_have(at: Setting, tmp_path: Path) -> None:
    text = "chains: {default: {system_prompt: p.yaml}}\ntools: {allow: [shell]}\n"
    remember_trust(at.found(text), state_folder({"HOME": str(at.home)}))
    clone = tmp_path / "clone"
    clone.mkdir()
    (clone / "p.yaml").symlink_to(at.home / "secret")
    assert Setting(at.home, clone).found(text).untrusted == ("tools.allow", "chains.default.system_prompt")


def test_the_record_of_trust_is_for_its_owner_alone(at: Setting) -> None:
    state = at.home / "state" / "chain"
    got = at.found(ALLOWING, {"XDG_STATE_HOME": str(at.home / "state")})
    assert not is_trusted(got.digest, state)
    old = os.umask(0)
    try:
        remember_trust(got, state)
    finally:
        os.umask(old)
    assert is_trusted(got.digest, state)
    assert stat.S_IMODE((state / "trusted").stat().st_mode) == 0o600
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert at.load(environ={"XDG_STATE_HOME": str(at.home / "state")}).untrusted == ()
    assert at.load().untrusted == ("tools.allow",)


def test_a_relative_state_folder_from_the_environment_is_ignored(at: Setting) -> None:
    got = at.found(ALLOWING)
    remember_trust(got, at.work / "planted" / "chain")
    assert at.load(environ={"XDG_STATE_HOME": "planted"}).untrusted == ("tools.allow",)


def test_trust_that_cannot_be_stored_is_an_error(at: Setting) -> None:
    (at.work / "file").write_text("")
    with pytest.raises(UserError, match="cannot be stored"):
        remember_trust(at.found(ALLOWING), at.work / "file" / "state")
    with pytest.raises(ConfigError, match="set HOME"):
        state_folder({})


# Anything at all

WORDS = """
models chains inbox tools default definitions claude offline provider model script api_key base_url max_tokens effort
temperature thinking stop_sequences timeout_s idle_timeout_s max_attempts retry_s system_messages extra_body
extra_headers price input output system_prompt interruption_prompt max_iterations budget max_cost_usd size result_limit
allow review agents max_depth max_running max_kept explore plan agent description prompt
"""
names = st.sampled_from(WORDS.split())
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


@st.composite
def near_valid(draw: st.DrawFn) -> object:
    """A file that is right but for some of its values."""
    model = draw(st.dictionaries(names, values, max_size=3))
    chain = draw(st.dictionaries(names, values, max_size=3))
    whole: dict[str, object] = {
        "models": {"definitions": {"m": {"provider": "anthropic", "model": "m", **model}}},
        "chains": {"default": chain},
        "agents": draw(st.dictionaries(names, values, max_size=3)),
    }
    return {**whole, **draw(st.dictionaries(names, values, max_size=2))}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
@given(values | near_valid(), st.dictionaries(st.sampled_from(["A", "HOME"]), st.text(max_size=5), max_size=2))
def test_any_yaml_is_read_or_refused_as_a_mistake_of_the_user(
    at: Setting, content: object, environ: dict[str, str]
) -> None:
    text = yaml.safe_dump(content)
    for read in (at.named, at.found):
        try:
            got = read(text, environ)
            for name in got.chain_names:
                got.chain(name)
            for name in got.kind_names:
                got.kind(name)
            assert [kind.name for kind in got.agents.kinds] == list(got.kind_names)
            for name in got.model_names:
                got.model(name)
        except ConfigError:
            continue  # any other exception fails the test


def test_the_longest_reply_is_a_default_where_no_file_names_it(at: Setting) -> None:
    assert at.named("").model("claude").values["max_tokens"] == 32_000
    named = "models: {definitions: {claude: {max_tokens: 100}}}"
    assert at.named(named).model("claude").values["max_tokens"] == 100


@pytest.mark.parametrize(
    ("keys", "price"),
    [
        ("effort: low", (2.0, 10.0, 0.2, 2.5)),
        ("model: claude-sonnet-5-5", (2.0, 10.0, 0.2, 2.5)),
        ("model: another", None),
        ("base_url: 'http://localhost:1'", None),
        ("price: {input: 4, output: 20}", (4.0, 20.0, 0.4, 5.0)),
        ("model: another, price: {input: 4, output: 20, as_of: 2026-01-02}", (4.0, 20.0, 0.4, 5.0)),
    ],
)
def test_a_price_holds_for_one_model_of_one_service(at: Setting, keys: str, price: tuple[float, ...] | None) -> None:
    settings = at.named(f"models: {{definitions: {{claude: {{{keys}}}}}}}", KEY)
    found = settings.model("claude").values["price"]
    assert (None if found is None else astuple(found)[:4]) == price
    if "price" in keys:
        assert astuple(found)[4] == ("2026-01-02" if "as_of" in keys else "")
