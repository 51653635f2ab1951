"""The settings as people read them: each with its value, where it comes from and what it means; secrets are masked.

`settings_page` is the page deploy/settings.md; a test keeps it true.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any, Final, Literal, get_args, get_origin
from urllib.parse import urlsplit

from pydantic.fields import FieldInfo

from effectsvc.core.field_docs import field_docs
from effectsvc.settings import Settings

PREFIX: Final = "EFFECTSVC_"
MASK: Final = "***"
URLS: Final = frozenset({"redis_url", "webhook_url"})
"""Settings that may carry a password or a token in their text. Of a webhook the path is one, often enough."""

BESIDE: Final = {
    "EFFECTSVC_ACTOR": "Who acts at the command line, as asserted; default: the user of the operating system.",
    "EFFECTSVC_ACTOR_TOKEN": "A signed token that says who acts, verified by the issuers of EFFECTSVC_ISSUERS.",
    "EFFECTSVC_PROFILE": "A directory where each worker process leaves a profile of its loop. For measuring.",
    "EFFECTSVC_FAULTS": "A directory of files that make processes fail at named places. For tests, never elsewhere.",
    "REDIS_URL": "The server, where EFFECTSVC_REDIS_URL is not set.",
    "RQ_KEY_PREFIX": "The prefix of RQ's keys. `{CELL}:rq` keeps the cells of one server apart, as deploy/redis does.",
}
"""Variables that are read from the environment beside the settings."""
SECRET: Final = frozenset({"EFFECTSVC_ACTOR_TOKEN"})
INTERNAL: Final = ("EFFECTSVC_DEMO_", "EFFECTSVC_CHAOS_", "EFFECTSVC_SUPERVISED_")
"""What `demo` and `chaos` tell the processes that they start."""


@dataclass(frozen=True, slots=True)
class Shown:
    """One setting: `source` is the environment variable that gave the value, or `default`."""

    name: str
    value: str
    source: str
    meaning: str


def shown_settings(settings: Settings, environment: Mapping[str, str] | None = None) -> list[Shown]:
    """Every setting in the order of the page, then the variables beside them that are set."""
    environment = os.environ if environment is None else environment
    given = {name.upper() for name in environment}
    found, said = [], field_docs(Settings)
    for name in type(settings).model_fields:
        variables = [PREFIX + name.upper(), *(["REDIS_URL"] if name == "redis_url" else [])]
        source = next((each for each in variables if each in given), "default")
        value = getattr(settings, name)
        text = masked_url(str(value), path_is_secret=name == "webhook_url") if name in URLS and value else _text(value)
        found.append(Shown(PREFIX + name.upper(), text, source, said.get(name, "")))
    for name, meaning in BESIDE.items():
        if name in environment and name != "REDIS_URL":
            text = MASK if name in SECRET else environment[name]
            found.append(Shown(name, text, name, meaning))
    return found


def unknown_variables(environment: Mapping[str, str] | None = None) -> list[str]:
    """EFFECTSVC_* variables that nothing reads: a misspelt setting is a default that nobody chose."""
    known = {PREFIX + name.upper() for name in Settings.model_fields} | BESIDE.keys()
    names = (os.environ if environment is None else environment).keys()
    return sorted(n for n in names if n.startswith(PREFIX) and n.upper() not in known and not n.startswith(INTERNAL))


def masked_url(url: str, *, path_is_secret: bool = False) -> str:
    """The URL without its password, and without query and fragment, which may hold a token."""
    try:
        parts = urlsplit(url)
        has_password = parts.password is not None
    except ValueError:
        return MASK
    if not parts.scheme:
        return MASK
    place, path = parts.netloc, f"/{MASK}" if path_is_secret else parts.path
    if has_password:
        login, _, host = place.rpartition("@")
        place = f"{login.partition(':')[0]}:{MASK}@{host}"
    return f"{parts.scheme}://{place}{path}" + (f"?{MASK}" if parts.query and not path_is_secret else "")


def settings_page() -> str:
    """The page of all settings, in Markdown."""
    lines = [
        "# Settings",
        "",
        "Every setting is an environment variable. `effectsvc config show` prints the values in force and where each",
        "comes from. This page is written by `effectsvc config page`.",
        "",
        "| Variable | Value | Default | Meaning |",
        "|---|---|---|---|",
    ]
    said = field_docs(Settings)
    for name, about in Settings.model_fields.items():
        default = _text(about.default) or "none"
        lines.append(f"| `{PREFIX}{name.upper()}` | {_kind(about)} | `{default}` | {said[name]} |")
    lines += ["", "Read beside them:", "", "| Variable | Meaning |", "|---|---|"]
    lines += [f"| `{name}` | {meaning} |" for name, meaning in BESIDE.items()]
    return "\n".join(lines) + "\n"


def _text(value: Any) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def _kind(about: FieldInfo) -> str:
    """The values that a setting may have, in a few words."""
    kind = about.annotation
    if NoneType in get_args(kind):
        kind = next(each for each in get_args(kind) if each is not NoneType)
    if get_origin(kind) is Literal:
        return ", ".join(f"`{each}`" for each in get_args(kind))
    names = {bool: "`true`, `false`", int: "whole number", float: "number", str: "text"}
    text = names.get(kind, "path") if isinstance(kind, type) else "text"
    signs = (("gt", "above"), ("ge", "from"), ("le", "to"))
    bounds = {sign: getattr(each, sign) for each in about.metadata for sign, _ in signs if hasattr(each, sign)}
    return " ".join([text, *(f"{word} {bounds[sign]}" for sign, word in signs if sign in bounds)])
