"""What the docstring under each field of a class says, read when a page about them is made.

Pydantic can read them while it makes a class, in every process that starts, whether anybody asks or not.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from itertools import pairwise


def field_docs(of: type) -> dict[str, str]:
    """By field name, in one line each; of the classes that it inherits from, too. Empty where no source is there."""
    said: dict[str, str] = {}
    for each in reversed(of.__mro__):
        if each.__module__.startswith("effectsvc."):
            said |= _said_in(each)
    return said


def _said_in(of: type) -> dict[str, str]:
    try:
        source = inspect.getsource(of)
    except OSError:
        return {}
    (made,) = ast.parse(textwrap.dedent(source)).body
    assert isinstance(made, ast.ClassDef)
    return {
        field.target.id: " ".join(text.value.value.split())
        for field, text in pairwise(made.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }
