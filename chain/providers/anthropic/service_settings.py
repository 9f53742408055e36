"""Reads definitions of models of the provider ``anthropic``."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Any

from chain.config import values
from chain.config.provider import COMMON_KEYS, Definition, ModelCheck, ModelSettings, Provider
from chain.config.yamlfile import Node
from chain.providers.anthropic.service import IDLE_TIMEOUT_S, REPLY_TIMEOUT_S, Parameters, Price, Service

if TYPE_CHECKING:
    from chain.providers.anthropic.client import AnthropicModel

MAX_TOKENS = 32_000
"""The default ``max_tokens``: enough for thinking and a long file, and streamed within ``REPLY_TIMEOUT_S``."""

KEY_VARIABLE = "ANTHROPIC_API_KEY"
"""The environment variable with the key for a definition that has neither ``api_key`` nor ``base_url``."""

CACHE_READ_PRICE, CACHE_WRITE_PRICE = 0.1, 1.25
"""The default prices of reading and writing the cache, as multiples of the input price, as at Anthropic."""

SECRET = ("api_key", "extra_headers", "extra_body")
"""Settings whose values are not shown, only whether they are set. Some servers expect a key in ``extra_body``."""


def read_anthropic(definition: Definition) -> ModelSettings:
    """Parse the settings of a model definition. Raise ``ConfigError`` if a setting is not valid."""
    get = definition.get
    base_url = get("base_url", _read_address, None)
    key = definition.keys.get("api_key")
    if key is None and base_url is None:
        key = replace(definition.node, value=PROVIDER.usual, key=f"{definition.node.key}.api_key")
    service = Service(
        # A definition with an address needs the key that it names. For others, a missing key is reported when the
        # model is opened (``missing_key``).
        api_key=None if key is None else values.secret(key, needed=base_url is not None),
        base_url=base_url,
        timeout_s=get("timeout_s", values.seconds, REPLY_TIMEOUT_S),
        idle_timeout_s=get("idle_timeout_s", values.seconds, IDLE_TIMEOUT_S),
        extra_headers=get("extra_headers", values.headers, {}),
    )
    parameters = Parameters(
        model=get("model", values.trimmed_text, "") or definition.name,
        max_tokens=get("max_tokens", values.count, MAX_TOKENS),
        temperature=get("temperature", Node.number, None),
        effort=get("effort", values.trimmed_text, "") or None,
        thinking=get("thinking", values.json, None) or None,
        stop_sequences=get("stop_sequences", values.names, ()),
        system_messages=get("system_messages", Node.boolean, False),
        extra_body=get("extra_body", values.json, dict[str, Any]()),
        context_window=definition.context_window,
        adapts_max_tokens="max_tokens" not in definition.keys,
    )
    price = get("price", _read_price, None)
    found = {each.name: getattr(part, each.name) for part in (parameters, service) for each in fields(part)}
    found |= {
        "context_window": definition.context_window or None,
        "provider": "anthropic",
        "price": price,
        **asdict(definition.retries),
    }

    missing_key = ""
    if base_url is None and key is not None and not service.api_key:
        missing_key = next(iter(key.variables()), KEY_VARIABLE)
    display_values = {name: "set" if found[name] else "not set" for name in SECRET}
    if base_url is not None:
        display_values["base_url"] = service.label
    if price is not None:
        dollars = {kind: value for kind, value in asdict(price).items() if kind != "as_of"}
        display_values["price"] = ", ".join(f"{kind} {value:g}" for kind, value in dollars.items())
        display_values["price"] += f", as of {price.as_of}" if price.as_of else ""

    def model() -> AnthropicModel:
        from chain.providers.anthropic.client import AnthropicModel

        return AnthropicModel(parameters, service, price)

    async def check() -> ModelCheck:
        from chain.providers.anthropic import checking

        return await checking.check(parameters, service)

    return ModelSettings(
        definition.name,
        label=parameters.model,
        retries=definition.retries,
        values={key: found[key] for key in ("provider", *KEYS)},
        open=lambda interactive: model(),
        display_values=display_values,
        missing_key=missing_key,
        check=check,
        tells_costs=price is not None,
    )


def _read_address(node: Node) -> str | None:
    url = values.url(node)
    if url is not None and ("?" in url or "#" in url):
        raise node.error("must not contain ? or #, because /v1/messages is appended; remove that part")
    return url


def _read_price(node: Node) -> Price:
    keys = node.mapping([each.name for each in fields(Price)])
    if not {"input", "output"} <= keys.keys():
        raise node.error("needs input and output, in US dollars per million tokens")
    as_of = Node.text(keys.pop("as_of")) if "as_of" in keys else ""
    price = {key: value.number() for key, value in keys.items()}
    shares = {"cache_read": price["input"] * CACHE_READ_PRICE, "cache_write": price["input"] * CACHE_WRITE_PRICE}
    return Price(**{**shares, **price}, as_of=as_of)


KEYS = (
    *("model", "api_key", "base_url", "max_tokens", "effort", "temperature", "thinking", "stop_sequences"),
    *("timeout_s", "idle_timeout_s", *COMMON_KEYS, "system_messages", "extra_body", "extra_headers", "price"),
)

PROVIDER = Provider(
    read_anthropic,
    KEYS,
    needed="model",
    # ``extra_body`` can name servers that the service then calls itself.
    sensitive=("api_key", "base_url", "extra_headers", "extra_body"),
    of_model=("price",),
    free=("thinking", "extra_body", "extra_headers"),
    key="api_key",
    address="base_url",
    usual=f"${{{KEY_VARIABLE}}}",
    address_variable="ANTHROPIC_BASE_URL",
    key_variable="ANTHROPIC_AUTH_TOKEN",
)
