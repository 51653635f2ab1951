"""Renderings: what of an effect a person is shown, which is exactly what the tool will send."""

from __future__ import annotations

from typing import Any

from effectsvc.core.canonical import canonical_arguments, digest, short


def render_digest(rendered: Any) -> str:
    """The digest of a rendering, 43 characters: an approval names it, and it is made again before begin.

    Raises CanonicalError for a rendering that is no JSON value.
    """
    return short(digest(canonical_arguments({"rendered": rendered})))
