"""Which worker processes RQ knows of, by the lanes that they serve."""

from __future__ import annotations

from redis import Redis
from redis.exceptions import RedisError
from rq import Queue, Worker
from rq.serializers import JSONSerializer

from effectsvc.errors import StoreUnavailable
from effectsvc.settings import Settings
from effectsvc.store.keys import CellKeys


def workers_by_lane(settings: Settings) -> dict[str, int]:
    """Lane -> worker processes that are registered for it; a killed one counts until its registration ends.

    Raises StoreUnavailable when RQ's keys cannot be read.
    """
    keys = CellKeys(settings.cell)
    try:
        with Redis.from_url(settings.redis_url) as connection:
            lanes = [lane.decode() for lane in connection.smembers(keys.lanes)]
            return {lane: Worker.count(queue=_queue(keys.rq_prefix + lane, connection)) for lane in lanes}
    except RedisError as error:
        raise StoreUnavailable(f"RQ cannot be asked for its workers ({type(error).__name__}).") from None


def _queue(name: str, connection: Redis) -> Queue:
    return Queue(name, connection=connection, serializer=JSONSerializer)
