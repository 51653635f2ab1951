"""Loads the operations' Lua files: one file per operation, whose header is its machine-read contract.

A file is a first line `#!lua [flags=…]`, a header comment, includes, and the body:

    #!lua
    --[[ begin: proposed, unknown -> pending
    KEYS   meta log effect more*
    ARGV   effect_id token
    REPLY  granted n epoch | taken state
    ]]
    --- include: cell

The loader binds `KEYS` and `ARGV` to locals by the header's own names (`k_meta`, `effect_id`; a starred last name is a
table of the rest), so header and body cannot disagree. Scripts are sent by the hash of their whole text: old and new
processes coexist during a rolling deploy.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Final

_LUA = resources.files("effectsvc.store") / "lua"
_HEADER = re.compile(
    r"\A(?P<bang>#!lua[^\n]*)\n--\[\[ (?P<name>[a-z_]+): (?P<meaning>[^\n]+)\n"
    r"KEYS +(?P<keys>[^\n]*)\nARGV +(?P<argv>[^\n]*)\nREPLY +(?P<reply>[^\]]+?)\n?\]\]\n"
)
_INCLUDE = re.compile(r"^--- include: ([a-z_]+)$", re.MULTILINE)

COMMON_REPLIES: Final = MappingProxyType(
    {
        "cell_missing": (),
        "schema_too_new": ("schema",),
        "epoch": ("stored", "found"),
        "wrong_keys": ("what",),
    }
)
"""Words that every operation may answer; they become exceptions, never replies."""


@dataclass(frozen=True, slots=True)
class Script:
    """One operation as it is sent: its name, whole text, content hash, and its header by name."""

    name: str
    meaning: str
    keys: tuple[str, ...]
    argv: tuple[str, ...]
    replies: MappingProxyType[str, tuple[str, ...]]
    allow_oom: bool
    text: str
    sha: str


def _bind(names: tuple[str, ...], source: str, prefix: str) -> str:
    lines = []
    plain = [name for name in names if not name.endswith("*")]
    if plain:
        left = ", ".join(prefix + name for name in plain)
        lines.append(f"local {left} = {', '.join(f'{source}[{i}]' for i in range(1, len(plain) + 1))}")
    if len(plain) < len(names):
        rest = prefix + names[-1].rstrip("*")
        lines.append(
            f"local {rest} = {{}} for i = {len(plain) + 1}, #{source} do {rest}[#{rest} + 1] = {source}[i] end"
        )
    return "\n".join(lines)


def _expand(name: str, text: str, stack: tuple[str, ...]) -> str:
    def paste(match: re.Match[str]) -> str:
        include = match.group(1)
        if include in stack:
            raise RuntimeError(f"include cycle in {name}.lua: {' -> '.join((*stack, include))}")
        return _expand(name, (_LUA / "includes" / f"{include}.lua").read_text(encoding="utf-8"), (*stack, include))

    return _INCLUDE.sub(paste, text)


def parse(name: str, source: str) -> Script:
    """Parse one operation's source. Raises RuntimeError when the header is not as specified or names another file."""
    match = _HEADER.match(source)
    if match is None or match["name"] != name:
        raise RuntimeError(f"{name}.lua does not open with its header")
    keys, argv = tuple(match["keys"].split()), tuple(match["argv"].split())
    replies = {}
    for alternative in match["reply"].replace("\n", " ").split("|"):
        word, *fields = alternative.split()
        replies[word] = tuple(fields)
    body = _expand(name, source[match.end() :], ())
    text = "\n".join([match["bang"], _bind(keys, "KEYS", "k_"), _bind(argv, "ARGV", ""), f"local OP = '{name}'", body])
    return Script(
        name=name,
        meaning=match["meaning"],
        keys=keys,
        argv=argv,
        replies=MappingProxyType(replies),
        allow_oom="allow-oom" in match["bang"],
        text=text,
        sha=hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest(),
    )


@cache
def script(name: str) -> Script:
    """The operation of this name. Raises RuntimeError when there is none or its header is wrong."""
    path = _LUA / f"{name}.lua"
    if not path.is_file():
        raise RuntimeError(f"no operation {name!r}: there is no {name}.lua")
    return parse(name, path.read_text(encoding="utf-8"))


@cache
def all_scripts() -> MappingProxyType[str, Script]:
    """Every operation by name."""
    names = sorted(entry.name.removesuffix(".lua") for entry in _LUA.iterdir() if entry.name.endswith(".lua"))
    return MappingProxyType({name: script(name) for name in names})
