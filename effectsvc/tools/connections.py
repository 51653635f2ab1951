"""The HTTP connections that all effects of one process share. httpx is an extra, so it is imported on first use."""

from __future__ import annotations

import contextlib
import threading
from types import ModuleType
from typing import TYPE_CHECKING

from effectsvc.errors import ContractError

if TYPE_CHECKING:
    import httpx

    from effectsvc.tools.context import EffectContext
    from effectsvc.tools.http import HttpTool, SyncHttpTool


class HttpConnections:
    """One pool for the process's event loop and one for its threads, each made on first use. Close what was used."""

    def __init__(self) -> None:
        self._async_client: httpx.AsyncClient | None = None
        self._sync_client: httpx.Client | None = None
        self._making = threading.Lock()

    def tool(self, ctx: EffectContext) -> HttpTool:
        """`ctx.http` of an `async def` tool. Raises ContractError if httpx is not installed."""
        http = _http()
        if self._async_client is None:
            self._async_client = http.async_client()
        tool: HttpTool = http.HttpTool(ctx, self._async_client)
        return tool

    def sync_tool(self, ctx: EffectContext) -> SyncHttpTool:
        """`ctx.http` of a `def` tool. Raises ContractError if httpx is not installed."""
        http = _http()
        with self._making:
            if self._sync_client is None:
                self._sync_client = http.sync_client()
        tool: SyncHttpTool = http.SyncHttpTool(ctx, self._sync_client)
        return tool

    async def aclose(self) -> None:
        """Close both pools, on the event loop that used the first."""
        client, self._async_client = self._async_client, None
        if client is not None:
            await client.aclose()
        self.close()

    def close(self) -> None:
        """Close the threads' pool."""
        client, self._sync_client = self._sync_client, None
        if client is not None:
            client.close()


def warm_up() -> None:
    """Imports httpx and reads the certificates that it trusts, where it is installed: half a second of a first call."""
    with contextlib.suppress(ContractError):
        _http().trusted()


def _http() -> ModuleType:
    try:
        from effectsvc.tools import http  # noqa: PLC0415  # see above
    except ModuleNotFoundError as fault:
        raise ContractError(
            f"ctx.http needs httpx, and there is no {fault.name!r}.", next_step="pip install 'effectsvc[http]'"
        ) from fault
    return http
