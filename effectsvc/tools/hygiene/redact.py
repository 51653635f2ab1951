"""Secrets and personal data in texts, replaced by a mark that says what stood there: `[redacted:jwt]`.

The built-in rules are few and err towards what is surely a secret: keys by their names, authorization and cookie
headers, assignments of passwords, private keys, JWTs, the keys of well-known clouds, card numbers whose check digit is
right, e-mail addresses. Every pattern takes time linear in the text: its repetitions are bounded or possessive, and no
run of characters is entered twice.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias

from effectsvc.errors import ContractError

_MARK: Final = re.compile(r"\[redacted:[a-z0-9_]{1,32}\]")
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,31}")
_HINT: Final = re.compile(r"[ !#-\[\]-~]+")

Hints: TypeAlias = tuple[str, ...] | re.Pattern[bytes]


@dataclass(frozen=True, slots=True)
class Redactor:
    """A rule of redaction. `redact` gives back the text without what it looks for, and changes its own result no more.

    `name` is a lower-case word, for the counts that operators see. `hints`: one of these lower-case ASCII texts stands,
    in whatever case, in every text that the rule changes (or a pattern that finds it in JSON bytes), so that results
    without are not looked at; empty: every text is looked at. `alone`: what it finds depends on where the text begins
    or ends, so that each text has to be looked at by itself.
    A rule that raises withholds the data of its result. Raises ContractError for another name or hint.
    """

    name: str
    redact: Callable[[str], str]
    hints: Hints = ()
    alone: bool = True

    def __post_init__(self) -> None:
        check_rule("Redactor", self.name, self.hints)


def check_rule(kind: str, name: str, hints: Hints) -> None:
    """Raises ContractError unless `name` is a lower-case word and each hint is found in JSON as it is written."""
    if not _NAME.fullmatch(name):
        raise ContractError(f"{kind} {name!r} is not a lower-case word.", next_step="Name it like `iban`.")
    if isinstance(hints, re.Pattern):
        return
    if not isinstance(hints, tuple) or any(not _HINT.fullmatch(hint) or hint != hint.lower() for hint in hints):
        raise ContractError(
            f"{kind} {name!r} has hints that may not be found: {hints!r}.",
            next_step='Give a tuple of lower-case ASCII texts without `"` and `\\`.',
        )


def in_lower_case(text: str) -> str:
    """ASCII letters only, so that every character keeps its place."""
    return text.encode().lower().decode()


def mark(name: str) -> str:
    """What stands in place of what was redacted."""
    return f"[redacted:{name}]"


def is_mark(text: str) -> bool:
    """Whether the text is such a mark and nothing else."""
    return _MARK.fullmatch(text) is not None


# ---- by the name of a key ------------------------------------------------------------------------------------------

_SECRET_NAMES: Final = frozenset(
    ("auth", "cookie", "credential", "cvc", "cvc2", "cvv", "cvv2", "otp", "passcode", "pwd", "token")
)
# "next_page_token" and "idempotency_key" are no secrets: a bare token or key counts only with what it opens.
_SECRET_ENDINGS: Final = (
    "accesskey", "accesstoken", "apikey", "apitoken", "authkey", "authorization", "authtoken", "bearertoken",
    "connectionstring", "credentials", "encryptionkey", "idtoken", "passphrase", "passwd", "password", "privatekey",
    "refreshtoken", "secret", "secretkey", "securitytoken", "sessiontoken", "setcookie", "signingkey",
)  # fmt: skip
KEY_HINTS: Final = ("auth", "connection", "cookie", "credential", "cv", "key", "otp", "pass", "pwd", "secret", "token")
"""One of these stands in every key name that counts as secret."""
_NOT_ALPHANUMERIC: Final = re.compile(r"[^a-z0-9]+")
_MAX_KEY: Final = 64
"""A longer key is a text, not a name."""


# The names of keys come again with every answer of a tool.
@lru_cache(maxsize=1024)
def is_secret_name(key: str) -> bool:
    """Whether what stands under this key is a secret, whatever it is."""
    if len(key) > _MAX_KEY or "[redacted:" in key:
        return False
    name = _NOT_ALPHANUMERIC.sub("", key.lower())
    return name in _SECRET_NAMES or name.endswith(_SECRET_ENDINGS)


# ---- in texts ------------------------------------------------------------------------------------------------------

# Those with a `name` keep it, and are given texts in lower case: ignoring case is several times as slow.
_AUTHORIZATION: Final = re.compile(
    r"""\b(?P<name>(?:proxy-)?authorization["']?\s{0,4}[:=]\s{0,4})["']?(?:[a-z]{4,16}\s{1,4})?[^\s"'<>,;]++["']?""",
    re.ASCII,
)
_BEARER: Final = re.compile(
    r"\b(?P<name>bearer\s{1,4})(?:(?=[^\s]{0,16}\d)[\w.~+/-]{8,}+|[\w.~+/-]{20,}+)=*+", re.ASCII
)
_BASIC: Final = re.compile(r"\b(?P<name>basic\s{1,4})[a-z0-9+/]{8,}+={0,2}", re.ASCII)
_COOKIE: Final = re.compile(r"\b(?P<name>(?:set-)?cookie\s{0,4}:\s{0,4})[^\s<][^\r\n\x00<]*+", re.ASCII)
_ASSIGNED: Final = re.compile(
    r"""(?P<name>(?:passw(?:or)?d|passphrase|secret|secret_?(?:access_?)?key|api[_-]?key|(?:access|auth|id|refresh|"""
    r"""session)_?token|\btoken(?==)|account_?key|private_?key)["']?\s{0,4}[:=]\s{0,4}["']?)[^\s"'<>&,;\x00\[]{6,}+""",
    re.ASCII,
)
_IN_URL: Final = re.compile(r"(?P<name>://)[^\s/@:\"'<>\[]{0,256}:[^\s/@\"'<>\[]{1,256}@")
_PEM: Final = re.compile(
    r"-----BEGIN [A-Z ]{0,32}PRIVATE KEY-----[^\x00]*?(?:-----END [A-Z ]{0,32}PRIVATE KEY-----|\x00|\Z)"
)
# A segment is entered at its start only, and left at its first "eyJ" (the base64 of `{"`).
_JWT: Final = re.compile(
    r"(?<![\w-])(?P<before>(?:(?!eyJ)[\w-])*+)eyJ[\w-]{15,}+\.[\w-]{2,}+(?:\.[\w-]*+){0,3}", re.ASCII
)
_CLOUD: Final = re.compile(
    r"A(?:KI|SI)A[A-Z0-9]{16}"
    r"|AIza[\w-]{35}"
    r"|ya29\.[\w-]{20,}+"
    r"|gh[pousr]_[A-Za-z0-9]{30,}+|github_pat_\w{22,}+|glpat-[\w-]{20,}+|npm_[A-Za-z0-9]{36}"
    r"|xox[abeprs]-[\w-]{10,}+|xapp-[\w-]{10,}+"
    r"|[rs]k_(?:live|test)_[A-Za-z0-9]{16,}+|whsec_[A-Za-z0-9+/]{16,}+"
    r"|(?<![A-Za-z0-9])sk-[\w-]{20,}+|SG\.[\w-]{16,64}\.[\w-]{16,64}",
    re.ASCII,
)
_EMAIL: Final = re.compile(r"(?<![\w.%+-])[\w.%+-]++@[\w-]++(?:\.[\w-]++)++")
_CARD: Final = re.compile(
    r"(?<!\d)(?=(\d{14,19}|\d{4}[ -]\d{4}[ -]\d{4}[ -]\d{4}(?:[ -]\d{3})?|\d{4}[ -]\d{6}[ -]\d{4,5})(?!\d))", re.ASCII
)
_CARD_SCAN: Final = re.compile(rb"\d{4}(?:\d{10}|[ -](?:\d{4}|\d{6})[ -]\d{4})")
_BRAND: Final = re.compile(
    r"4(?:\d{15}|\d{18})|5[1-5]\d{14}|2(?:2[2-9]|[3-6]\d|7[01])\d{13}|3[47]\d{13}|3(?:0[0-5]|[68]\d)\d{11}"
    r"|6(?:011|4[4-9]\d|5\d\d)\d{12}|35(?:2[89]|[3-8]\d)\d{12}|62\d{14,17}",
    re.ASCII,
)
_NOT_DIGIT: Final = re.compile(r"[ -]")


_DOUBLED: Final = str.maketrans("0123456789", "0246813579")
"""Luhn: each second digit counts twice, as the sum of the digits of its double."""


def is_card(number: str) -> bool:
    """Whether these digits are a card number: a known brand's first digits and length, and a right check digit."""
    if not _BRAND.fullmatch(number):
        return False
    return sum(map(int, number[-1::-2] + number[-2::-2].translate(_DOUBLED))) % 10 == 0


def _cards(text: str) -> str:
    # Looked at from every start of a run of digits, so that a card after other groups of digits is found too.
    pieces, end = [], 0
    for found in _CARD.finditer(text):
        if found.start() < end:
            continue
        # Three digits behind sixteen may be the card's, or another number's.
        for length in (len(found[1]), len("4444 4444 4444 4444")):
            if is_card(_NOT_DIGIT.sub("", found[1][:length])):
                pieces += [text[end : found.start()], mark("card")]
                end = found.start() + min(length, len(found[1]))
                break
    return "".join((*pieces, text[end:])) if pieces else text


def _jwt(text: str) -> str:
    return _JWT.sub(lambda found: f"{found['before']}{mark('jwt')}", text)


def _headers(text: str) -> str:
    for pattern in (_AUTHORIZATION, _BEARER):
        text = _without_values(pattern, "auth_header", text)
    text = _without_values(_BASIC, "auth_header", text, is_secret=_is_basic)
    return _without_values(_COOKIE, "cookie", text)


def _without_values(pattern: re.Pattern[str], what: str, text: str, *, is_secret: Callable[[str], bool] = bool) -> str:
    """The text with a mark after each `name` that the pattern finds, in place of the value."""
    pieces, end = [], 0
    for found in pattern.finditer(in_lower_case(text)):
        begin = found.end("name")
        if is_secret(text[begin : found.end()]):
            pieces += [text[end:begin], mark(what)]
            end = found.end()
    return "".join((*pieces, text[end:])) if pieces else text


def _is_basic(value: str) -> bool:
    """Whether it is the base64 of `user:password`, not the word after "basic"."""
    try:
        return b":" in base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return False


def _passwords(text: str) -> str:
    assigned = _without_values(_ASSIGNED, "secret", text)
    return _IN_URL.sub(lambda found: f"{found['name']}{mark('secret')}@", assigned)


def _of(name: str, redact: Callable[[str], str], *hints: str) -> Redactor:
    return Redactor(name, redact, hints, alone=False)


BUILT_IN_REDACTORS: Final = (
    _of("private_key", lambda text: _PEM.sub(mark("private_key"), text), "-----begin"),
    _of("auth_header", _headers, "authorization", "bearer", "basic", "cookie"),
    _of("secret", _passwords, "passw", "passphrase", "secret", "key", "token", "://"),
    _of("jwt", _jwt, "eyj"),
    _of(
        "cloud_key",
        lambda text: _CLOUD.sub(mark("cloud_key"), text),
        *("akia", "asia", "aiza", "ya29.", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "npm_"),
        *("xox", "xapp-", "k_live_", "k_test_", "whsec_", "sk-", "sg."),
    ),
    Redactor("card", _cards, _CARD_SCAN, alone=False),
    _of("email", lambda text: _EMAIL.sub(mark("email"), text), "@"),
)
"""The rules in the order in which they are asked. Leave one out by building a tuple without it."""
