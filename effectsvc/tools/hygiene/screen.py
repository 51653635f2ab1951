"""What a text of a tool's answer looks like: markup, script, or words that want to be instructions.

A screen tags; it never blocks and never changes the text. The built-in ones know the usual phrases and forms, in
English. They are a help for whoever reads the tags and no defence: an instruction can be said in any words.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from effectsvc.tools.hygiene.redact import Hints, check_rule, in_lower_case


@dataclass(frozen=True, slots=True)
class Screen:
    """A rule of screening: results of whose texts `finds` says yes are tagged with `name`.

    It is given all texts of the answer at once, keys too, in order, with a line that holds NUL between two of them.
    `hints` as for Redactor. A screen that raises tags its result `screening_failed`. Raises ContractError for a name
    that is no lower-case word.
    """

    name: str
    finds: Callable[[str], bool]
    hints: Hints = ()

    def __post_init__(self) -> None:
        check_rule("Screen", self.name, self.hints)


# The patterns are in lower case and are given texts in lower case: ignoring case is several times as slow.
_HTML: Final = re.compile(
    r"<(?:!doctype|!--|/?(?:a|article|b|body|br|button|div|em|footer|form|h[1-6]|head|header|html|i|iframe|img|input|li"
    r"|link|main|meta|nav|object|ol|p|pre|script|section|span|strong|style|svg|table|tbody|td|th|thead|title|tr|u|ul)"
    r"[\s/>])",
    re.ASCII,
)
_SCRIPT: Final = re.compile(
    r"<script[\s/>]|<iframe[\s/>]|javascript:|vbscript:|data:text/html"
    r"|\bon(?:abort|blur|change|click|error|focus|input|key[a-z]{2,8}|load|mouse[a-z]{2,8}|submit|toggle)\s{0,4}=",
    re.ASCII,
)
_ADDRESSES_MODEL: Final = re.compile(
    r"\b(?:"
    r"(?:ignore|disregard|forget|override|bypass)\b[^\x00]{0,60}?"
    r"\b(?:instructions?|prompts?|rules|guidelines|directions|guardrails|polic(?:y|ies))\b"
    r"|(?:new|updated|real|hidden|secret|following) instructions?\b"
    r"|(?:your|the) (?:system|developer) (?:prompt|message|instructions?)\b"
    r"|you (?:are|must|will|should) now\b|from now on,? you\b"
    r"|as an? (?:ai|language model|large language model)\b"
    r"|(?:attention|dear|hello|hey|hi|message (?:for|to)|note (?:for|to)|instructions? (?:for|to))[,:]? "
    r"(?:the |all |any )?(?:ai|ai agents?|ai assistants?|assistants?|agents?|llms?|language models?|chatgpt|claude)\b"
    r"|do not (?:tell|inform|mention|reveal|alert)\b[^\x00]{0,40}?\b(?:user|human|operator|anyone)\b"
    r"|(?:call|invoke|run|use) the [a-z0-9_]{1,40} (?:tool|function)\b"
    r")",
    re.ASCII,
)
_FAKE_TOOL_CALL: Final = re.compile(
    r"<\s{0,3}/?\s{0,3}(?:[a-z]{1,12}:)?(?:tool_(?:calls?|use|results?|response)|function_(?:calls?|results?)|invoke)\b"
    r"""|["'](?:tool_calls?|function_call|tool_use_id|tool_call_id)["']\s{0,4}:"""
    r"|<\|(?:tool|python_tag|plugin|action)|\[tool_calls\]|```tool_"
    r"|^[ \t]{0,8}(?:action|action input|observation)[ \t]{0,3}:",
    re.ASCII | re.MULTILINE,
)
_FAKE_ROLE: Final = re.compile(
    r"^[ \t]{0,8}(?:\#{1,4}[ \t]{0,3})?[\[*]{0,2}(?:system|assistant|user|human|developer)[\]*]{0,2}[ \t]{0,3}:"
    r"|^\#{1,4}[ \t]{0,3}(?:system|instructions?)\b"
    r"|<\|(?:im_start|im_end|system|user|assistant|endoftext|end|start_header_id|eot_id|begin_of_text)"
    r"|\[/?inst\]|<</?sys>>|</?(?:system|assistant|user|human|developer)(?:[_-][a-z]{1,20})?>"
    r"""|["']role["']\s{0,4}:\s{0,4}["'](?:system|assistant|user|developer|tool)["']""",
    re.ASCII | re.MULTILINE,
)


def _of(name: str, pattern: re.Pattern[str], *hints: str) -> Screen:
    return Screen(name, lambda text: pattern.search(in_lower_case(text)) is not None, hints)


BUILT_IN_SCREENS: Final = (
    _of("html", _HTML, "<"),
    _of("script", _SCRIPT, "script", "data:text/html", "<iframe", "="),
    _of(
        "addresses_model",
        _ADDRESSES_MODEL,
        *("ignore", "disregard", "forget", "override", "bypass", "instruction", " prompt", " message", " now"),
        *("language model", " ai", "assistant", "agent", "llm", "chatgpt", "claude", "do not ", " the "),
    ),
    _of("fake_tool_call", _FAKE_TOOL_CALL, "tool_", "function_", "invoke", "<|", "action", "observation"),
    _of("fake_role", _FAKE_ROLE, "system", "assistant", "user", "human", "developer", "role", "<|", "inst", "sys>>"),
)
"""Their names are the tags: `html`, `script`, `addresses_model`, `fake_tool_call`, `fake_role`."""
