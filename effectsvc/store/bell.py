"""Hears a cell's bell without an event loop. A bell that is missed costs a tick, never an effect."""

from __future__ import annotations

import time

import redis

from effectsvc.store.sync_store import plain_client


class Bell:
    """A subscription to the bell channel. Use as `with`; `wait` tolerates a server that is away."""

    def __init__(self, url: str, channel: str) -> None:
        self._client = plain_client(url)
        self._pubsub = self._client.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]  # redis-py
        self._channel = channel
        self._subscribed = False

    def __enter__(self) -> Bell:
        return self

    def __exit__(self, *_: object) -> None:
        self._pubsub.close()
        self._client.close()

    def wait(self, seconds: float) -> bool:
        """Returns True as soon as the bell rings, False after `seconds`."""
        until = time.monotonic() + seconds
        try:
            if not self._subscribed:
                self._pubsub.subscribe(self._channel)
                self._subscribed = True
            while (left := until - time.monotonic()) > 0:
                if self._pubsub.get_message(timeout=left) is not None:
                    return True
        except redis.exceptions.RedisError:
            self._subscribed = False
            self._pubsub.reset()
            time.sleep(max(0.0, until - time.monotonic()))
        return False
