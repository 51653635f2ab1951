"""What must hold after every step, read off the server's own keys (design words, no model)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

FINAL = {"committed", "failed", "refused", "cancelled"}
OPEN = {"held", "proposed", "pending", "unknown"}
PLACES = ("lane", "rerun", "lookup", "parked", "leases", "unknown", "held")


def effects(cell: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    return {key.removeprefix("e:"): fields for key, fields in cell.items() if key.startswith("e:") and fields}


def places(cell: Mapping[str, Any], effect_id: str) -> set[str]:
    """The sets that hold the effect, and `open` for its run's open ones."""
    found = {key.partition(":")[0] for key, held in cell.items() if key.startswith(PLACES) and effect_id in held}
    return found | {"open" for key, held in cell.items() if key.startswith("open:") and effect_id in held}


def check_counts(cell: Mapping[str, Any]) -> None:
    """The counts are those of the states."""
    seen = Counter(fields["state"] for fields in effects(cell).values())
    seen["contradicted"] = sum("contradicted" in fields for fields in effects(cell).values())
    assert {name: int(count) for name, count in cell["counts"].items()} == {n: c for n, c in seen.items() if c}


def check_places(cell: Mapping[str, Any]) -> None:
    """An effect stands in exactly the sets that its state demands, and every unfinished one has a next step."""
    for effect_id, fields in effects(cell).items():
        state, found = fields["state"], places(cell, effect_id)
        queues = found & {"lane", "rerun", "parked"}
        assert len(queues) <= 1, f"{effect_id} in {found}"
        match state:
            case "held":
                assert found == {"held", "open"}, f"held in {found}"
            case "proposed":
                assert found in ({"lane", "open"}, {"parked", "open"}), f"proposed in {found}"
            case "pending":
                assert found == {"leases", "open"}, f"pending in {found}"
            case "unknown":
                assert {"unknown", "open"} <= found <= {"unknown", "open", "rerun", "parked", "lookup", "leases"}, found
                assert found & {"rerun", "parked", "lookup"} or "needs_review" in fields, f"no next step: {fields}"
            case _:
                assert state in FINAL
                assert found == set(), f"{state} in {found}"


def check_doubt(cell: Mapping[str, Any]) -> None:
    """In doubt an effect is only ever pending or unknown; what is unknown is in doubt; done parts are never denied."""
    for effect_id, fields in effects(cell).items():
        state = fields["state"]
        assert "doubt" not in fields or state in ("pending", "unknown"), f"{effect_id} is {state} and in doubt"
        assert state != "unknown" or "doubt" in fields, f"{effect_id} is unknown without doubt"
        done = int(fields.get("parts", "0/0").split("/")[0])
        assert not done or state in ("pending", "unknown", "committed"), f"{effect_id} is {state} with parts done"


def check_compensations(cell: Mapping[str, Any]) -> None:
    """What is undone was undone by exactly one committed effect, and has happened; at most one is under way."""
    known = effects(cell)
    undoing = [(fields["compensates"], fields) for fields in known.values() if "compensates" in fields]
    for undone, fields in undoing:
        assert fields["state"] != "committed" or "compensated" in known[undone], f"{undone} is not closed"
    for effect_id, fields in known.items():
        mine = [each["state"] for undone, each in undoing if undone == effect_id]
        assert mine.count("committed") == ("compensated" in fields), f"{effect_id} is undone by {mine}"
        assert sum(state in OPEN or state == "committed" for state in mine) <= 1, f"{effect_id} is undone by {mine}"


def check_claims(cell: Mapping[str, Any]) -> None:
    """A claim names an effect that exists."""
    known = effects(cell)
    for key, holder in cell.items():
        if key.startswith(("c:", "i:")) and holder is not None:
            assert holder.decode() in known, f"{key} names {holder!r}"


def check_log(cell: Mapping[str, Any], before: list[dict[str, str]]) -> None:
    """The counter has no gap, what was said stays said, and each attempt has one decision, each effect one commit."""
    log = cell["log"]
    assert [int(entry["n"]) for entry in log] == list(range(1, len(log) + 1))
    assert int(cell["meta"]["n"]) == len(log)
    assert log[: len(before)] == before
    decisions = [entry["e"] for entry in log if entry["answer"] == "granted"]
    assert len(decisions) == len(set(decisions))


def check_changes(before: Mapping[str, dict[str, str]], cell: Mapping[str, Any]) -> None:
    """Attempt numbers grow; what is committed stays as it is; other final states move only on evidence."""
    now = effects(cell)
    for effect_id, old in before.items():
        new = now[effect_id]
        assert int(new.get("attempt", "0")) >= int(old.get("attempt", "0")), f"{effect_id}'s attempts went back"
        if old["state"] == "committed":
            # One that was closed by its compensation has no result: nothing came back of it as a whole.
            kept = {name: old.get(name) for name in ("state", "result", "ref", "compensated")}
            kept["compensated"] = kept["compensated"] or new.get("compensated")
            assert {name: new.get(name) for name in kept} == kept
        elif old["state"] in FINAL and new["state"] != old["state"]:
            corrected = new["state"] == "committed" and "contradicted" in old
            assert corrected or new.get("reason") == "store_lost", f"{effect_id}: {old['state']} -> {new['state']}"


def stopped(cell: Mapping[str, Any], fields: Mapping[str, str]) -> bool:
    """Whether an open switch covers the effect, or its run or an ancestor is halted."""
    names = ("fleet", "cell", f"tenant:{fields['tenant']}", f"tool:{fields['tool']}", f"agent:{fields['agent']}")
    if any(cell["switches"].get(name) for name in names):
        return True
    run = cell[f"run:{fields['run']}"]
    above = run.get("ancestors", "").split()
    return any("halted" in cell[f"run:{digest}"] for digest in (fields["run"], *above))
