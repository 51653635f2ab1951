"""Ready-made pieces for providers behind HTTP: a POST under an idempotency key, and the lookup of a resource by it.

@tools.effect(..., retry_class="idempotent_write", provider_key_ttl_s=86_400, expected_errors=POST_ERRORS)
async def charge(args: Charge, ctx: EffectContext) -> Receipt:
    answer = await post_by_key(ctx, f"{URL}/charges", json=args.model_dump())
    return Receipt.model_validate(answer.json())

charge.lookup(http_lookup(f"{URL}/charges/{{key}}", Receipt))
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, Unpack
from urllib.parse import quote, urlsplit

from pydantic import BaseModel, ValidationError

from effectsvc.core.outcome import Absent, Found, LookupAnswer, NotAttempted, Undetermined
from effectsvc.errors import ContractError
from effectsvc.tools.error_rule import ErrorRule

if TYPE_CHECKING:
    import httpx

    from effectsvc.tools.context import EffectContext, SyncEffectContext
    from effectsvc.tools.http import SendOptions

ModelT = TypeVar("ModelT", bound=BaseModel)

MakeUrl: TypeAlias = Callable[[str, Any, "EffectContext"], str]
"""(key, arguments, context) -> where to ask."""
Lookup: TypeAlias = Callable[[str, Any, "EffectContext"], Awaitable[LookupAnswer[ModelT]]]

KEY_HEADER: Final = "Idempotency-Key"
"""draft-ietf-httpapi-idempotency-key-header."""

POST_ERRORS: Final = (
    ErrorRule(status=400, verdict="rejected", code="bad_request"),
    ErrorRule(status=401, verdict="rejected", code="not_authenticated"),
    ErrorRule(status=403, verdict="rejected", code="not_authorized"),
    ErrorRule(status=404, verdict="rejected", code="no_such_resource"),
    ErrorRule(status=405, verdict="rejected", code="method_not_allowed"),
    ErrorRule(status=413, verdict="rejected", code="too_large"),
    ErrorRule(status=415, verdict="rejected", code="unsupported_type"),
    ErrorRule(status=429, verdict="not_attempted", code="rate_limited_by_provider"),
)
"""For a contract's `expected_errors`: what a provider that follows the draft answers when it did nothing.

Left out, and so unknown: 409 (a request with this key is being worked on) and 422 (the key came before with another
body: something was done under it). Add a rule for 422 if your provider validates with it.
"""


async def post_by_key(
    ctx: EffectContext, url: str, *, part: str = "", quoted: bool = True, **options: Unpack[SendOptions]
) -> httpx.Response:
    """POST under the effect's key, or the key of `part`. Returns an answer of 2xx.

    `quoted` is the draft's form, a structured string; False sends the bare key, as older providers want it. Raises
    what `ctx.http` raises, and httpx.HTTPStatusError for any other status: what it proves, the contract lists.
    """
    answer = await ctx.http.post(url, **_with_key(ctx, part, quoted, options))
    return answer.raise_for_status()


def post_by_key_sync(
    ctx: SyncEffectContext, url: str, *, part: str = "", quoted: bool = True, **options: Unpack[SendOptions]
) -> httpx.Response:
    """As `post_by_key`, for a `def` tool."""
    answer = ctx.http.post(url, **_with_key(ctx, part, quoted, options))
    return answer.raise_for_status()


def _with_key(ctx: EffectContext, part: str, quoted: bool, options: SendOptions) -> SendOptions:
    headers = dict(options.get("headers") or {})
    if any(name.lower() == KEY_HEADER.lower() for name in headers):
        raise NotAttempted(f"The request has its own {KEY_HEADER}.", code="key_given_twice")
    key = ctx.part_key(part) if part else ctx.idempotency_key
    headers[KEY_HEADER] = f'"{key}"' if quoted else key  # hex digits: nothing in it needs an escape
    given: SendOptions = {**options, "headers": headers}
    return given


def http_lookup(url: str | MakeUrl, model: type[ModelT], *, key_field: str | None = None) -> Lookup[ModelT]:
    """A lookup that GETs a resource by the effect's key: 200 is Found, 404 is Absent, everything else Undetermined.

    `url` has `{key}` where the key belongs, or is a function. `key_field` names the field of the answer that holds the
    key (dots lead inwards). It is needed unless the key is part of the path: a provider that does not know a query
    parameter answers with something else, and that must not count as ours. A 404 must mean that there is no such
    resource; that the path itself is right, `check_tool` shows.

    Raises ContractError for a `url` without `{key}`, or with it in the query alone and no `key_field`.
    """
    if isinstance(url, str):
        _check_template(url, key_field)

    async def find(key: str, args: Any, ctx: EffectContext) -> LookupAnswer[ModelT]:
        place = url.replace("{key}", quote(key, safe="")) if isinstance(url, str) else url(key, args, ctx)
        answer = await ctx.http.get(place)
        if answer.status_code == 404:
            return Absent()
        if answer.status_code != 200:
            return Undetermined(f"status_{answer.status_code}")
        try:
            record = answer.json()
            data = model.model_validate_json(answer.content)
        except (ValueError, ValidationError):
            return Undetermined("unreadable_answer")
        quoted = _inside(record, key_field) if key_field is not None else key if key in urlsplit(place).path else None
        if quoted != key:
            return Undetermined("answer_does_not_quote_the_key")
        ref = getattr(data, "provider_ref", None)
        return Found(data, provider_ref=ref if isinstance(ref, str) else None, key=key)

    return find


def _check_template(url: str, key_field: str | None) -> None:
    if "{key}" not in url:
        raise ContractError("The lookup's URL does not say where the key belongs.", next_step="Write {key} in it.")
    if key_field is None and "{key}" not in urlsplit(url).path:
        raise ContractError(
            "The lookup's URL has the key outside of its path, and no key_field says where the answer quotes it.",
            next_step="Name the field: a provider may not know the parameter, and answer with something else.",
        )


def _inside(record: Any, path: str) -> Any:
    """The value at a path of names; None where there is none."""
    for name in path.split("."):
        record = record.get(name) if isinstance(record, dict) else None
    return record
