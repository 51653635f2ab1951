"""Declaring tools, and finding them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import BaseModel

import effectsvc
from effectsvc.core.outcome import Absent, Found, NotFound, Partial, Undetermined
from effectsvc.errors import ContractError
from effectsvc.tools.contract import ContractFacts, RateLimit
from effectsvc.tools.registry import DeclaredFields, ToolRegistry, load_registry
from effectsvc.tools.tool import AsyncTool, SyncTool

Ctx = Any
CTX: Any = object()
PROJECT = Path(effectsvc.__file__).parents[1]


class Ask(BaseModel):
    case_id: str


class Sent(BaseModel):
    message_id: str


SAID: dict[str, Any] = {
    "purpose": "Ask for a document.",
    "use_when": "It is missing.",
    "do_not_use_when": "It was asked for already.",
    "result_means": "The request was sent.",
}


def registry_with(function: Callable[..., Any], **fields: Any) -> ToolRegistry:
    tools = ToolRegistry()
    tools.effect(**SAID, **fields)(function)
    return tools


# --- what the function gives


async def test_name_kind_input_output_and_isolation_come_from_the_function() -> None:
    tools = ToolRegistry()

    @tools.effect(**SAID, version=3, intent=("case_id",))
    async def request_document(args: Ask, ctx: Ctx) -> Sent:
        """Its own text."""
        return Sent(message_id=args.case_id)

    @tools.read(**SAID)
    def read_case(args: Ask, ctx: Ctx) -> Sent:
        return Sent(message_id=args.case_id)

    assert isinstance(request_document, AsyncTool)
    assert isinstance(read_case, SyncTool)
    contract = request_document.contract
    assert (contract.name, contract.version, contract.kind, contract.isolation) == (
        "request_document",
        3,
        "effect",
        "task",
    )
    assert (contract.input_model, contract.output_model) == (Ask, Sent)
    assert (read_case.contract.kind, read_case.isolation) == ("read", "thread")
    assert (await request_document(Ask(case_id="c"), CTX)).message_id == "c"
    assert read_case(Ask(case_id="d"), CTX).message_id == "d"
    assert request_document.__doc__ == "Its own text."
    assert repr(request_document) == "<AsyncTool request_document version 3>"
    assert read_case.function(Ask(case_id="d"), CTX) == Sent(message_id="d")


def test_the_output_is_what_is_left_without_not_found_and_partial() -> None:
    def find(args: Ask, ctx: Ctx) -> Sent | NotFound | Partial[Sent]:
        return NotFound()

    def nothing(args: Ask, ctx: Ctx) -> None: ...

    def several(args: Ask, ctx: Ctx) -> list[Sent] | dict[str, int] | NotFound:
        return []

    assert registry_with(find).get("find").contract.output_model is Sent  # type: ignore[union-attr]
    assert registry_with(nothing).get("nothing").contract.output_schema == {"type": "null"}  # type: ignore[union-attr]
    assert "anyOf" in registry_with(several).get("several").contract.output_schema  # type: ignore[union-attr]


def test_models_defined_beside_the_tool_are_found_though_annotations_are_text() -> None:
    class Here(BaseModel):
        x: int

    tools = ToolRegistry()

    @tools.effect(**SAID)
    async def act(args: Here, ctx: Ctx) -> list[Here]:
        return [args]

    assert act.contract.input_model is Here


def test_every_contract_field_can_be_declared_but_what_the_function_or_an_attachment_gives() -> None:
    given = {"kind", "input_model", "output_model", "lookup", "checks", "render"}
    assert set(DeclaredFields.__annotations__) == set(ContractFacts.model_fields) - given


def test_a_name_can_be_given_for_a_function_that_is_called_otherwise() -> None:
    def _impl(args: Ask, ctx: Ctx) -> Sent:
        raise NotImplementedError

    assert registry_with(_impl, name="crm.ask").versions == {"crm.ask": 1}


# --- what is refused


async def _generator(args: Ask, ctx: Ctx) -> AsyncIterator[Sent]:
    yield Sent(message_id="x")


def _plain_generator(args: Ask, ctx: Ctx) -> Iterator[Sent]:
    yield Sent(message_id="x")


def _returns_awaitable(args: Ask, ctx: Ctx) -> Awaitable[Sent]:

    raise NotImplementedError


def _no_context(args: Ask) -> Sent:

    raise NotImplementedError


def _third(args: Ask, ctx: Ctx, more: int) -> Sent:

    raise NotImplementedError


def _by_keyword(args: Ask, *, ctx: Ctx) -> Sent:

    raise NotImplementedError


def _no_model(args: dict[str, Any], ctx: Ctx) -> Sent:

    raise NotImplementedError


def _no_output(args: Ask, ctx: Ctx):  # type: ignore[no-untyped-def]
    raise NotImplementedError


def _no_answer(args: Ask, ctx: Ctx) -> NotFound | Partial[Sent]:

    raise NotImplementedError


def _unknown_type(args: Nowhere, ctx: Ctx) -> Sent:  # type: ignore[name-defined]  # noqa: F821

    raise NotImplementedError


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (_generator, "is a generator"),
        (_plain_generator, "is a generator"),
        (_returns_awaitable, "its work would happen after"),
        (_no_context, "takes 1 arguments (args), not args and ctx"),
        (_third, "takes 3 arguments"),
        (_by_keyword, "ctx by keyword"),
        (_no_model, "not annotated with a pydantic model"),
        (_no_output, "does not say what it returns"),
        (_no_answer, "nothing but NotFound or Partial"),
        (_unknown_type, "cannot be found"),
    ],
)
def test_a_function_of_another_shape_is_refused_when_it_is_declared(function: Callable[..., Any], says: str) -> None:
    with pytest.raises(ContractError) as caught:
        registry_with(function)
    assert says in str(caught.value)


def test_a_plain_wrapper_around_an_async_function_is_refused() -> None:
    import functools

    async def act(args: Ask, ctx: Ctx) -> Sent:

        raise NotImplementedError

    @functools.wraps(act)
    def wrapper(args: Ask, ctx: Ctx) -> Any:
        return act(args, ctx)

    with pytest.raises(ContractError, match="around an async one"):
        registry_with(wrapper)


def test_an_isolation_in_which_the_function_cannot_run_is_refused() -> None:
    async def one(args: Ask, ctx: Ctx) -> Sent:
        raise NotImplementedError

    def two(args: Ask, ctx: Ctx) -> Sent:

        raise NotImplementedError

    with pytest.raises(ContractError, match='`async def` with isolation="thread"'):
        registry_with(one, isolation="thread")
    with pytest.raises(ContractError, match='`def` with isolation="task"'):
        registry_with(two, isolation="task")
    assert registry_with(two, isolation="process").get("two").isolation == "process"  # type: ignore[union-attr]


def test_a_name_is_taken_once_and_a_refused_tool_is_not_registered() -> None:
    tools = registry_with(_act)
    tools.effect(**SAID, name="same")(_act)
    with pytest.raises(ContractError, match="Two tools are named 'same'"):
        tools.effect(**SAID, name="same", version=2)(_act)
    with pytest.raises(ContractError, match="settle_s"):
        tools.effect(**SAID, name="wrong", settle_s=1)(_act)
    assert tools.versions == {"_act": 1, "same": 1}


async def _act(args: Ask, ctx: Ctx) -> Sent:
    return Sent(message_id="x")


def test_a_tool_is_declared_once_and_shared_by_add() -> None:
    tools = registry_with(_act)
    tool = tools.get("_act")
    assert tool is not None
    with pytest.raises(ContractError, match="declared twice"):
        tools.effect(**SAID)(cast("Any", tool))
    other = ToolRegistry()
    assert other.add(tool) is tool
    assert other.add(tool) is tool
    assert list(other) == [tool]


# --- attachments


def test_lookup_checks_and_rendering_are_attached_and_are_in_the_digest() -> None:
    tools = ToolRegistry()

    @tools.effect(**SAID)
    async def act(args: Ask, ctx: Ctx) -> Sent:
        raise NotImplementedError

    before = act.contract.digest

    @act.lookup
    async def find(key: str, args: Ask, ctx: Ctx) -> Found[Sent] | Absent | Undetermined:
        return Absent()

    @act.check
    def open_case(args: Ask, ctx: Ctx) -> str | None:
        return None

    @act.check
    async def known_case(args: Ask, ctx: Ctx) -> str | None:
        return None

    @act.render
    def rendered(args: Ask) -> dict[str, str]:
        return {"case": args.case_id}

    assert act.lookup_function is find
    assert act.check_functions == (open_case, known_case)
    assert act.render_function is rendered
    assert rendered(Ask(case_id="c")) == {"case": "c"}
    assert act.contract.lookup is not None
    assert act.contract.lookup.endswith("find")
    assert len(act.contract.checks) == 2
    assert act.contract.digest != before
    assert tools.published()["act"]["lookup"] == act.contract.lookup


def test_attachments_of_another_shape_are_refused() -> None:
    tool = registry_with(_act).get("_act")
    assert tool is not None

    async def fits(key: str, args: Ask, ctx: Ctx) -> Absent:

        raise NotImplementedError

    async def pure(args: Ask) -> str:

        raise NotImplementedError

    with pytest.raises(ContractError, match=r"lookup of tool '_act' does not take \(key, args, ctx\)"):
        tool.lookup(pure)
    with pytest.raises(ContractError, match=r"check of tool '_act' does not take \(args, ctx\)"):
        tool.check(pure)
    with pytest.raises(ContractError, match="rendering of tool '_act' is async"):
        tool.render(pure)
    tool.lookup(fits)
    with pytest.raises(ContractError, match="two lookup functions"):
        tool.lookup(fits)


def test_a_read_tool_has_nothing_to_look_up() -> None:
    tools = ToolRegistry()
    tool = tools.read(**SAID)(_act)
    with pytest.raises(ContractError, match="only reads"):
        tool.lookup(lambda key, args, ctx: Absent())


def test_a_tool_validates_arguments_by_its_model() -> None:
    tool = registry_with(_act).get("_act")
    assert tool is not None
    assert tool.validate_sent(b'{"case_id":"c"}') == Ask(case_id="c")
    assert getattr(tool.validate_sent(b'{"case_id":1}'), "code", None) == "invalid_arguments"


# --- the whole registry


def test_lookups_and_compensations_that_are_missing_are_told_when_the_registry_is_whole() -> None:
    tools = registry_with(_act, probe_first=True, compensation="undo")
    with pytest.raises(ContractError) as caught:
        tools.published()
    assert "no @_act.lookup" in str(caught.value)
    assert "compensation 'undo', which is not registered" in str(caught.value)
    tools.read(**SAID, name="undo")(_act)
    with pytest.raises(ContractError, match="'undo', which only reads"):
        tools.check_whole()


def test_a_registry_answers_by_name_and_counts() -> None:
    tools = registry_with(_act, lane="slow", rate_limit=RateLimit(calls=5, per_s=60))
    tools.read(**SAID, name="look", lane="unused")(_act)
    assert tools.get("nope") is None
    assert (len(tools), "look" in tools, tools.lanes) == (2, True, ("slow",))
    assert tools.published()["_act"]["rate_limit"] == {"calls": 5, "per_s": 60}


# --- loading


def module(directory: Path, name: str, text: str) -> None:
    (directory / f"{name}.py").write_text(textwrap.dedent(text), encoding="utf-8")


def test_a_registry_is_loaded_by_module_and_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    module(
        tmp_path, "loaded_tools", "from effectsvc.tools.registry import ToolRegistry\ntools = ToolRegistry()\nother = 1"
    )
    assert len(load_registry("loaded_tools:tools")) == 0
    with pytest.raises(ContractError, match="has no such name"):
        load_registry("loaded_tools:nope")
    with pytest.raises(ContractError, match="has a int of that name"):
        load_registry("loaded_tools:other")


@pytest.mark.parametrize("place", ["", "module", ":tools", "module:", "module:a.b"])
def test_what_names_no_registry_is_refused(place: str) -> None:
    with pytest.raises(ContractError, match="does not name a registry"):
        load_registry(place)


def test_a_missing_module_is_told_apart_from_one_that_misses_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    module(tmp_path, "needs_another", "import not_installed_anywhere")
    with pytest.raises(ContractError, match="there is no 'nowhere_at_all'"):
        load_registry("nowhere_at_all.tools:tools")
    with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
        load_registry("needs_another:tools")


# --- types


def test_the_decorators_keep_the_types_of_a_tool_for_mypy(tmp_path: Path) -> None:
    module(
        tmp_path,
        "typed_tools",
        """
        from typing import Any, assert_type
        from pydantic import BaseModel
        from effectsvc.core.outcome import NotFound, Partial, Absent, Sourced
        from effectsvc.tools.context import EffectContext
        from effectsvc.tools.contract import ErrorRule
        from effectsvc.tools.registry import ToolRegistry
        from effectsvc.tools.tool import AsyncTool, SyncTool, Tool

        class Ask(BaseModel):
            x: int
        class Sent(BaseModel):
            y: int

        tools = ToolRegistry()

        @tools.effect(purpose="p", use_when="u", do_not_use_when="d", result_means="r",
                      expected_errors=[ErrorRule(exception=ConnectionRefusedError, verdict="not_attempted")])
        async def send(args: Ask, ctx: EffectContext) -> Sent:
            return Sent(y=args.x)

        @tools.read(purpose="p", use_when="u", do_not_use_when="d", result_means="r")
        def find(args: Ask, ctx: EffectContext) -> Sent | NotFound:
            return NotFound()

        @tools.read(purpose="p", use_when="u", do_not_use_when="d", result_means="r")
        async def listed(args: Ask, ctx: EffectContext) -> list[Sent] | Partial[list[Sent]]:
            return []

        @tools.read(purpose="p", use_when="u", do_not_use_when="d", result_means="r")
        async def sourced(args: Ask, ctx: EffectContext) -> Sourced[Sent] | NotFound:
            return NotFound()

        @send.lookup
        async def lookup(key: str, args: Ask, ctx: EffectContext) -> Absent:
            return Absent()

        assert_type(send, AsyncTool[Ask, Sent, Sent])
        assert_type(find, SyncTool[Ask, Sent, Sent | NotFound | Partial[Any]])
        assert_type(listed, AsyncTool[Ask, list[Sent], list[Sent] | NotFound | Partial[Any]])
        assert_type(sourced, AsyncTool[Ask, Sent, Sourced[Sent] | NotFound | Partial[Any]])
        whole: Tool[Ask, Sent] = send
        async def call(ctx: EffectContext) -> None:
            assert_type(await send(Ask(x=1), ctx), Sent)
        """,
    )
    checked = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--config-file",
            str(PROJECT / "pyproject.toml"),
            "--cache-dir",
            str(PROJECT / ".mypy_cache"),  # what was checked before is not checked again
            "typed_tools.py",
        ],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout
