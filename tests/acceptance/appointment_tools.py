"""The tools of an agent that moves appointments and confirms it: read, move, put back, and mail.

Workers find them by EFFECTSVC_TOOLS (`tests.acceptance.appointment_tools:tools`), and the provider by SCHEDULING_URL.
"""

from __future__ import annotations

import os
from typing import Any

import httpx
from pydantic import BaseModel

from effectsvc import (
    Absent,
    ActingIdentity,
    Credential,
    EffectContext,
    ErrorRule,
    Found,
    Partial,
    PartlyFound,
    ToolRegistry,
    Undetermined,
)
from effectsvc.core.outcome import LookupAnswer
from tests.acceptance.appointments import SECRET

PLACE = f"{__name__}:tools"
URL_NAME = "SCHEDULING_URL"

POLICY = """
[tool.read_appointment]
risk_tier = 0

[tool.reschedule]
risk_tier = 2
exclusive_target = true                                  # while one move is open, another answers target_busy

[tool.restore_slot]
risk_tier = 2

[tool.confirm]
risk_tier = 2
approval = "conditional"
approval_when = [{ argument = "note", op = "present" }]  # words of the model's own are read by a person first
"""


class Integrations:
    """Each tenant's own integration, by whose token the provider knows it."""

    def reference(self, identity: ActingIdentity) -> str:
        return f"{identity.subject}/{identity.acting_as}"

    async def resolve(self, identity: ActingIdentity, audience: str, scope: str) -> Credential:
        return Credential(f"{SECRET}|{identity.subject}|{scope}", "integrations/1")


tools = ToolRegistry(credentials=Integrations())


class Wanted(BaseModel):
    appointment: str


class Appointment(BaseModel):
    slot: str | None
    version: int


class Move(BaseModel):
    appointment: str
    version: int
    slot: str


class Moved(BaseModel):
    provider_ref: str
    slot: str
    version: int


class Confirmation(BaseModel):
    appointment: str
    version: int
    slot: str
    to: str
    note: str = ""


class Sent(BaseModel):
    provider_ref: str


async def ask(ctx: EffectContext, path: str) -> httpx.Response:
    """One GET, as the tenant's integration."""
    token = await ctx.credentials("scheduling", "read")
    return await ctx.http.get(f"{os.environ[URL_NAME]}/{path}", headers={"Authorization": f"Bearer {token}"})


async def write(
    ctx: EffectContext, method: str, path: str, key: str, *, version: int | None = None, body: Any = None
) -> httpx.Response:
    """One write under a key, as the tenant's integration; with a version, only if it still is the provider's."""
    token = await ctx.credentials("scheduling", "write")
    headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": key}
    if version is not None:
        headers["If-Match"] = f'"{version}"'
    return await ctx.http.request(method, f"{os.environ[URL_NAME]}/{path}", headers=headers, json=body)


def moved(answer: httpx.Response) -> Moved:
    said = answer.json()
    return Moved(provider_ref=said["id"], slot=said["slot"], version=said["version"])


CHANGED = ErrorRule(status=412, verdict="rejected", code="version_conflict")
MISSING = ErrorRule(status=404, verdict="rejected", code="no_such_appointment")


@tools.read(
    purpose="Read one appointment: its slot and its version.",
    use_when="Before you move an appointment, and after a move was refused.",
    do_not_use_when="You have just read it.",
    result_means="What holds now; the version changes with every change.",
    acting_as="tenant_integration",
)
async def read_appointment(args: Wanted, ctx: EffectContext) -> Appointment:
    return Appointment.model_validate((await ask(ctx, f"appointments/{args.appointment}")).raise_for_status().json())


@tools.effect(
    purpose="Move an appointment to another slot.",
    use_when="The patient asked for it, and you have read the appointment's version.",
    do_not_use_when="Somebody else may be moving it.",
    result_means="The new slot is booked and the old one is free. The version is the new one.",
    reversibility="costly",
    retry_class="never",  # a slot that was gone, or a version that is old, is for the agent to look at again
    intent=("appointment", "version", "slot"),
    target_args=("appointment",),
    parts=("released", "booked"),
    sends="many",
    expected_errors=[CHANGED, MISSING],
    required_scopes=("appointments:move",),
    acting_as="tenant_integration",
    compensation="restore_slot",
    timeout_s=20,
)
async def reschedule(args: Move, ctx: EffectContext) -> Moved | Partial[Moved]:
    """Releases the old slot if it is as it was read, then books the new one."""
    place = f"appointments/{args.appointment}/slot"
    released = await write(ctx, "DELETE", place, ctx.part_key("released"), version=args.version)
    await ctx.part("released", released.raise_for_status().json()["id"])
    key, version = ctx.part_key("booked"), args.version + 1
    booked = await write(ctx, "PUT", place, key, version=version, body={"slot": args.slot})
    if booked.status_code == httpx.codes.GONE:
        return Partial(("released",), ("booked",))
    return moved(booked.raise_for_status())


@reschedule.lookup
async def find_move(key: str, args: Move, ctx: EffectContext) -> LookupAnswer[Moved]:
    booked = await ask(ctx, f"operations/{ctx.part_key('booked')}")
    if booked.status_code == httpx.codes.OK:
        return Found(moved(booked), key=key)
    released = await ask(ctx, f"operations/{ctx.part_key('released')}")
    if released.status_code == httpx.codes.OK:
        return PartlyFound(("released",), ("booked",), key=key)
    both_absent = booked.status_code == released.status_code == httpx.codes.NOT_FOUND
    return Absent() if both_absent else Undetermined("the provider does not say")


@tools.effect(
    purpose="Put an appointment back into its old slot.",
    use_when="A move released the old slot and could not book the new one.",
    do_not_use_when="The appointment was moved.",
    result_means="The appointment has its old slot again.",
    reversibility="costly",
    intent=("appointment", "version"),
    target_args=("appointment",),
    expected_errors=[CHANGED, MISSING],
    required_scopes=("appointments:move",),
    acting_as="tenant_integration",
    timeout_s=20,
)
async def restore_slot(args: Move, ctx: EffectContext) -> Moved:
    """Only for a move that got half-way: `ctx.compensates` says which parts of it were done."""
    assert ctx.compensates is not None
    assert ctx.compensates.completed_parts == ("released",)
    body, place = {"slot": args.slot}, f"appointments/{args.appointment}/slot"
    answer = await write(ctx, "PUT", place, ctx.idempotency_key, version=args.version, body=body)
    return moved(answer.raise_for_status())


@restore_slot.lookup
async def find_restored(key: str, args: Move, ctx: EffectContext) -> LookupAnswer[Moved]:
    answer = await ask(ctx, f"operations/{key}")
    return Found(moved(answer), key=key) if answer.status_code == httpx.codes.OK else Undetermined()


@tools.effect(
    purpose="Mail a patient that the appointment was moved.",
    use_when="The move is done.",
    do_not_use_when="The move is pending, unknown or refused.",
    result_means="The mail system took the message.",
    reversibility="irreversible",
    intent=("appointment", "version"),  # one confirmation of each change
    target_args=("to",),
    required_scopes=("mail:send",),
    acting_as="tenant_integration",
    timeout_s=20,
)
async def confirm(args: Confirmation, ctx: EffectContext) -> Sent:
    answer = await write(ctx, "POST", "messages", ctx.idempotency_key, body=ctx.rendered)
    return Sent(provider_ref=answer.raise_for_status().json()["id"])


@confirm.render
def letter(args: Confirmation) -> Any:
    note = f"\n\n{args.note}" if args.note else ""
    text = f"Your appointment {args.appointment} is now at {args.slot}.{note}"
    return {"to": args.to, "subject": "Your appointment was moved", "text": text}


@confirm.check
async def is_moved(args: Confirmation, ctx: EffectContext) -> str | None:
    """The provider's own word, right before the mail: what the letter says must hold."""
    found = (await ask(ctx, f"appointments/{args.appointment}")).raise_for_status().json()
    holds = found == {"slot": args.slot, "version": args.version}
    return None if holds else "The appointment is not at this slot in this version."


@confirm.lookup
async def find_mail(key: str, args: Confirmation, ctx: EffectContext) -> LookupAnswer[Sent]:
    answer = await ask(ctx, f"operations/{key}")
    if answer.status_code == httpx.codes.OK:
        return Found(Sent(provider_ref=answer.json()["id"]), key=key)
    return Absent() if answer.status_code == httpx.codes.NOT_FOUND else Undetermined()
