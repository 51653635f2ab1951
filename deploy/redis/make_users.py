#!/usr/bin/env python3
"""Makes the Redis users of one or more cells: `make_users.py OUT [--cell effects] [--host valkey:6379]`.

Writes OUT/users.acl, which holds only digests of passwords, and for each user OUT/<cell>-<role>.env with the URL that
its processes need. Passwords are new each time, so all processes restart with their new files; a file that is there is
kept unless `--again` is given. Needs nothing but Python.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import secrets
from pathlib import Path

HERE = Path(__file__).parent
DATA = (
    "+get +mget +set +del +unlink +exists +type +expire +pexpire +persist +ttl +pttl +strlen +incr "
    "+hget +hmget +hgetall +hset +hmset +hsetnx +hdel +hincrby +hincrbyfloat +hexists +hlen "
    "+sadd +srem +smembers +sismember +scard "
    "+zadd +zrem +zrange +zrevrange +zrangebyscore +zremrangebyscore +zscore +zcard +zcount "
    "+lpush +rpush +lpop +rpop +lmove +blmove +blpop +lrem +lindex +lrange +llen +ltrim +lpos "
    "+xadd +xrange +xrevrange +xread +xlen +xtrim +xinfo|stream"
)
"""What workers, relays and operators do to keys of the cell. Not in it: KEYS, RENAME, XDEL, RESTORE, FLUSHALL."""


def users(cell: str) -> list[tuple[str, str]]:
    """Name and rules of each user of a cell, with @PASSWORD@ left open."""
    found: list[list[str]] = []
    for line in (HERE / "users.acl.in").read_text(encoding="utf-8").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith("user "):
            found.append([])
        found[-1].append(line.strip())
    lines = [" ".join(words).replace("@CELL@", cell).replace("@DATA@", DATA) for words in found]
    return [(line.split(" ", 2)[1], line) for line in lines]


def write_private(path: Path, text: str) -> None:
    """Readable by its owner only, from the start."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w", encoding="utf-8") as out:
        out.write(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--cell", action="append", help="A cell's name; may be given several times.")
    parser.add_argument("--host", default="valkey:6379", help="Where the server is reached.")
    parser.add_argument("--again", action="store_true", help="Replace files that are there: new passwords.")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True, mode=0o700)
    if (given.out / "users.acl").exists() and not given.again:
        parser.error(f"{given.out / 'users.acl'} is there; --again replaces it, and all passwords.")
    lines: dict[str, str] = {}
    for cell in given.cell or ["effects"]:
        for name, line in users(cell):
            password = secrets.token_urlsafe(32)
            lines[name] = line.replace("@PASSWORD@", "#" + hashlib.sha256(password.encode()).hexdigest())
            if name != "default":
                settings = {
                    "EFFECTSVC_REDIS_URL": f"redis://{name}:{password}@{given.host}/0",
                    "EFFECTSVC_CELL": cell,
                    "RQ_KEY_PREFIX": f"{{{cell}}}:rq",
                }
                write_private(given.out / f"{name}.env", "".join(f"{k}={v}\n" for k, v in settings.items()))
    write_private(given.out / "users.acl", "\n".join(lines.values()) + "\n")


if __name__ == "__main__":
    main()
