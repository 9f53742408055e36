"""Checks the settings of a model against its service, with the official SDK. Only this module imports ``anthropic``.

The address, the headers and the HTTP client are those of the SDK. So the check also reveals differences between
``connection`` and the SDK.
"""

from __future__ import annotations

import json
from urllib.parse import quote

import trio

from chain.concurrency.threads import Threads
from chain.config.provider import ModelCheck
from chain.network import tls_context
from chain.providers.anthropic import failures
from chain.providers.anthropic.connection import ADDRESS, Client, basic_auth, timeout_of
from chain.providers.anthropic.service import Parameters, Service

_THREADS = Threads("checks")

SETTINGS_CHECK_S = 30.0
"""The time limit of a check, in seconds. A person waits for the check."""
MAX_LIST = 4 * 1024 * 1024
"""The maximum number of bytes that are read of a list of models."""


async def check(parameters: Parameters, service: Service) -> ModelCheck:
    """Check whether the service accepts the key and has the model. Return the outcome."""
    checked = _Check(parameters, service)
    try:
        client = await _THREADS.run(lambda: sdk_client(service), abandon_on_cancel=True)
    except Exception as error:  # noqa: BLE001 - reported to the user
        return ModelCheck(False, str(checked.failures.building_error(error)))
    try:
        with trio.move_on_after(SETTINGS_CHECK_S):
            return await checked.find_model(client)
        return ModelCheck(None, f"{service.label} did not answer within {SETTINGS_CHECK_S:g} s")
    finally:
        await client.aclose()


def sdk_client(service: Service) -> Client:
    """Return a client with the transport, address and headers of the SDK. Blocks while the SDK is imported."""
    import anthropic
    import httpx2

    timeout, url = timeout_of(service), httpx2.URL(service.base_url or ADDRESS)
    verify = tls_context(url) if url.scheme == "http" else True
    http = anthropic.DefaultAsyncHttpxClient(timeout=timeout, follow_redirects=False, verify=verify)
    sdk = anthropic.AsyncAnthropic(
        # With an empty key, the SDK does not read one from the environment.
        api_key=service.api_key or "",
        base_url=service.base_url or ADDRESS,
        http_client=http,
    )
    # The headers in ANTHROPIC_CUSTOM_HEADERS may contain a key, and no argument disables them.
    sdk._custom_headers = {}
    headers = {name.lower(): str(value) for name, value in sdk.default_headers.items()}
    if not service.api_key:
        del headers["authorization"]
    headers |= {name.lower(): value for name, value in service.extra_headers.items()}
    transport = http._transport_for_url(sdk.base_url)
    return Client(transport, str(sdk.base_url).rstrip("/"), headers | basic_auth(sdk.base_url), timeout.as_dict())


class _Check:
    """A check of one model."""

    def __init__(self, parameters: Parameters, service: Service) -> None:
        self._name = parameters.model
        self._service = service
        self.failures = failures.Failures(parameters, service)

    async def find_model(self, client: Client) -> ModelCheck:
        """Request the description of the model. Return the outcome of the check.

        If the service does not describe single models, search its list of all models.
        """
        where = self._service.label
        try:
            answer = await client.get(f"/v1/models/{quote(self._name, safe='')}", MAX_LIST)
        except failures.BadStatus as bad:
            problem = self.failures.status_error(bad)
            if bad.status in (404, 405):
                return await self._find_in_list(client, str(problem))
            # A temporary failure says nothing about the settings.
            return ModelCheck(None if problem.retryable else False, str(problem))
        except Exception as error:  # noqa: BLE001 - translated, or raised again
            # A lost connection says nothing either. If there never was a connection, base_url may be wrong.
            problem = self.failures.translate(error)
            return ModelCheck(False if failures.is_connect_failure(error) else None, str(problem))
        if answer.lstrip().startswith("<"):
            return ModelCheck(False, f"{where} answered with an HTML page; check base_url")
        return ModelCheck(True, f"{where} {'accepts the key and ' if self._service.api_key else ''}has {self._name}")

    async def _find_in_list(self, client: Client, problem: str) -> ModelCheck:
        """Search for the model in the list of all models, because many servers do not describe single models.

        ``problem`` is the message of the outcome if the list does not contain the model.
        """
        where = self._service.label
        try:
            listed = json.loads(await client.get("/v1/models?limit=1000", MAX_LIST))["data"]
            owners = {str(model["id"]): model.get("owned_by") for model in listed}
        except Exception:  # noqa: BLE001 - after any error there is no list
            return ModelCheck(None, f"{where} does not list its models")
        if self._name in owners:
            return ModelCheck(True, f"{where} has {self._name}")
        if not owners or "llamacpp" in owners.values():
            return ModelCheck(None, f"{where} accepts any name for its one model")
        return ModelCheck(False, problem)
