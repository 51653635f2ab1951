"""What every printed record has, and the types that more than one of them uses."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

record = with_config(ConfigDict(use_attribute_docstrings=True))
"""The sentence below a field is its description in the schema."""


class Printed(TypedDict):
    """One JSON object on stdout."""

    schema_version: Literal[1]


@record
class Step(TypedDict):
    """A command that a person may type next. Words in capitals are for the person to fill in."""

    command: str
    when: str
    """In which case it is the one to take; empty for in any."""


class Mark(TypedDict):
    """A place in the log of a cell: the epoch, and the counter of its entries."""

    epoch: str
    n: int
