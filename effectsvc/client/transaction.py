"""A proposal inside the application's own MULTI: its writes and the proposal apply together or not at all.

    async with app_redis.pipeline(transaction=True) as pipe:
        pipe.hset("order:7", "state", "paid")
        proposal = await run.propose_in(pipe, "send_receipt", {"order": 7}, tool_call_id="call_9")
        effect = await proposal.settle(await pipe.execute())

A refusal is an answer, not a rollback. The application's keys live on the same server as the cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from effectsvc.client.handle import EffectHandle
from effectsvc.errors import EpochChanged
from effectsvc.store import replies as r
from effectsvc.store.commands import Command, ProposeReply
from effectsvc.store.server_errors import server_error

if TYPE_CHECKING:
    from effectsvc.client.proposing import Prepared
    from effectsvc.client.run import Run


class Pipeline(Protocol):
    """A redis-py pipeline, sync or asyncio: what is needed of it."""

    def eval(self, script: str, numkeys: int, *keys_and_args: Any) -> Any: ...
    def __len__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class ProposalInTransaction:
    """A proposal that stands in a pipeline. `settle` turns the pipeline's replies into its handle.

    `effect_id` is known before EXEC: when EXEC is not answered, the whole transaction may be sent again with it.
    """

    effect_id: str
    _run: Run = field(repr=False)
    _refused: EffectHandle | None = field(default=None, repr=False)
    _prepared: Prepared | None = field(default=None, repr=False)
    _command: Command[ProposeReply] | None = field(default=None, repr=False)
    _place: int = 0

    async def settle(self, replies: Sequence[Any]) -> EffectHandle:
        """The handle, from what `execute()` returned.

        When a claim had changed hands meanwhile, or the server has just restarted, the same proposal is sent again by
        itself. Raises what `Run.propose` raises, and StoreUnavailable for an error of the server.
        """
        if self._refused is not None:
            return self._refused
        assert self._prepared is not None
        assert self._command is not None
        raw = replies[self._place]
        if isinstance(raw, Exception):
            raise server_error(str(raw)) from raw
        try:
            reply = self._command.parse(_as_bytes(raw))
        except EpochChanged:
            return await self._run.propose_prepared(self._prepared)
        if isinstance(reply, r.Look):
            return await self._run.propose_prepared(self._prepared)
        return await self._run.judged_again(self._prepared, self._run.answered(self._prepared, reply))


def _as_bytes(raw: Any) -> Any:
    """Replies of a client with `decode_responses` are text."""
    return [part.encode() if isinstance(part, str) else part for part in raw]
