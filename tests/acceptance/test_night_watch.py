"""Five incidents of a night, each made for real, and solved by a script that knows only what the command line prints.

It begins with the first command of the alert's runbook and goes from one printed step to the next until nothing is left
to do. What it fills in is what a person decides. The bank's ledger, the store and the log are the judges.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.deployment import until
from tests.acceptance.night import Night, Watch, first_command
from tests.decisionlog.log_maker import flip

TYPED = pytest.mark.parametrize("on_a_terminal", [False, pytest.param(True, marks=pytest.mark.storm)])
"""A person's way is a process for each command, on a terminal where it asks first; that takes some seconds more."""


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Night]:
    with Night(tmp_path_factory.mktemp("night")) as running:
        yield running


def key_of_the_question(output: str) -> str:
    """The key that the command line says to ask the provider about."""
    found = re.search(r"idempotency key: (\S+)", output)
    assert found, output
    return found[1]


class BanksScreen:
    """What the person at the bank's own screen sees, asked the question that was printed."""

    def __init__(self, night: Night) -> None:
        self._bank = night.bank

    def has_it(self, output: str) -> bool:
        return bool(self._bank.lookup(key_of_the_question(output)))

    def has_it_not(self, output: str) -> bool:
        return not self.has_it(output)

    def reference(self, output: str) -> str:
        return self._bank.lookup(key_of_the_question(output))[0].ref


def watch_at_the_bank(night: Night, *, on_a_terminal: bool) -> Watch:
    screen = BanksScreen(night)
    return Watch(
        night,
        on_a_terminal=on_a_terminal,
        world={"the provider has it not": screen.has_it_not, "the provider has it": screen.has_it},
        fills={"REF": screen.reference},
    )


@TYPED
@pytest.mark.parametrize(("lost", "becomes", "times"), [("after", "committed", 1), ("before", "failed", 0)])
def test_an_unknown_payment_is_settled_by_what_the_banks_screen_says(
    night: Night, lost: str, becomes: str, times: int, on_a_terminal: bool
) -> None:
    """The answer was lost after the bank paid, or before: nothing but the printed question tells which."""
    arm = night.bank.timeout_after if lost == "after" else night.bank.timeout_before
    arm()
    effect_id = night.propose("pay", f"inv-{lost}-{on_a_terminal}", run_id="payments")
    night.await_state(effect_id, "unknown")

    watch = watch_at_the_bank(night, on_a_terminal=on_a_terminal)
    watch.solve(first_command("EffectsvcIrreversibleUnknown"))

    assert (night.state(effect_id), night.times(effect_id)) == (becomes, times)
    assert len(watch.typed) == 3
    assert night.stages(effect_id) == ["proposal", "attempt", "outcome", "outcome"]
    until(lambda: night.verified().verdict == 0, "the log verifies")


@TYPED
def test_a_held_refund_that_nearly_expires_is_approved_as_it_was_shown_and_one_is_rejected(
    night: Night, on_a_terminal: bool
) -> None:
    """The person reads what would be sent, and decides; what they agreed to happens once, and nothing else does."""
    wanted = night.propose("refund", f"inv-wanted-{on_a_terminal}", run_id="refunds")
    unwanted = night.propose("refund", f"inv-unwanted-{on_a_terminal}", run_id="refunds")
    night.await_state(unwanted, "held")

    watch = Watch(
        night,
        on_a_terminal=on_a_terminal,
        world={
            "it may happen exactly so": lambda output: "inv-wanted" in output,
            "it may not happen": lambda output: "inv-unwanted" in output,
            "other arguments": lambda _: False,
        },
    )
    watch.solve(first_command("EffectsvcApprovalExpires"), decisions=2)

    night.await_state(wanted, "committed")
    assert night.state(unwanted) == "refused"
    assert (night.times(wanted), night.times(unwanted)) == (1, 0)
    assert night.stages(wanted) == ["proposal", "approval", "attempt", "outcome"]
    assert night.stages(unwanted) == ["proposal", "approval"]
    until(lambda: night.verified().verdict == 0, "the log verifies")


@TYPED
def test_a_runaway_is_found_by_its_calls_and_halted(night: Night, on_a_terminal: bool) -> None:
    """Among others that work as they should: it is refused from then on, and what it had queued never happens."""
    lost_its_way = f"lost its way {on_a_terminal}"
    calm = night.propose("remind", f"inv-calm-{on_a_terminal}", run_id="calm")
    with night.runaway(run_id=lost_its_way) as proposed:
        until(lambda: len(proposed) > 50, "it runs away")
        watch = Watch(
            night,
            on_a_terminal=on_a_terminal,
            world={"it runs away": lambda output: lost_its_way in output, "in other runs": lambda _: False},
        )
        watch.solve("effectsvc runs list --active --by calls --since 5m")

    accepted = [each for each in proposed if night.state(each) != "refused"]
    until(lambda: {night.state(each) for each in accepted} <= {"committed", "cancelled"}, "all of it ends")
    assert [night.times(each) for each in accepted] == [night.state(each) == "committed" for each in accepted]
    assert night.state(night.propose("remind", "inv-of-the-halted", run_id=lost_its_way)) == "refused"
    night.await_state(calm, "committed")
    night.await_state(night.propose("remind", f"inv-other-{on_a_terminal}", run_id="another"), "committed")


# ---- a broken chain --------------------------------------------------------------------------------------------------


@TYPED
def test_a_changed_byte_of_the_log_is_found_sealed_away_and_the_log_is_whole_again(
    tmp_path: Path, on_a_terminal: bool
) -> None:
    """The verifier finds it, or the exporter itself as it signs; what the stream still has comes back byte for byte."""
    with Night(tmp_path) as night:
        effects = [night.propose("remind", f"inv-{n}", run_id="chain") for n in range(3)]
        for effect_id in effects:
            night.await_state(effect_id, "committed")
        # What is signed the exporter reads no more: a byte that changes before it does ends it at its next checkpoint.
        until(lambda: (seen := night.verified()).happened == 3 and not seen.uncovered, "it is exported, and signed")
        segment = next((night.directory / "log" / "seg").iterdir())
        whole = segment.read_bytes()
        flip(segment, whole.index(b'"tool":"remind"') + 9)

        def stop_the_exporter(output: str) -> bool:
            exporter = night.processes.pop("export")
            assert str(exporter.pid) in output
            exporter.terminate()
            return exporter.wait(30) == 0

        def start_it_again(_: str) -> bool:
            if ended := night.processes.pop("export", None):  # it has found the byte, and ended by itself
                assert ended.wait(30) != 0
            night.start_process("export", "export")
            return True

        watch = Watch(
            night,
            on_a_terminal=on_a_terminal,
            world={"is stopped": stop_the_exporter, "is started again": start_it_again},
        )
        watch.solve(first_command("EffectsvcLogGap"))

        report = night.verified()
        assert (int(report.verdict), report.gaps, report.happened) == (0, [], 3)
        assert segment.read_bytes().startswith(whole)
        assert night.ended() == {}
        assert {night.times(effect_id) for effect_id in effects} == {1}


# ---- a frozen cell ---------------------------------------------------------------------------------------------------


@TYPED
def test_a_store_that_was_put_back_is_recovered_and_what_it_forgot_is_settled(
    tmp_path: Path, on_a_terminal: bool
) -> None:
    """The server comes back with an older append-only file, and the worker that knew more is gone.

    What the exported log knows becomes unknown again, is settled by the bank's screen, and nothing is done twice.
    """
    with Night(tmp_path) as night:
        first = night.propose("pay", "inv-1", run_id="before")
        night.await_state(first, "committed")
        kept = night.keep_files()
        lost = night.propose("pay", "inv-2", run_id="after")
        night.await_state(lost, "committed")
        until(lambda: night.verified().happened == 2, "it is exported")
        key = night.key(lost)
        night.put_back(kept)
        until(night.is_frozen, "the cell is frozen")

        watch = Watch(
            night,
            on_a_terminal=on_a_terminal,
            world={
                "there is no newer copy": lambda _: True,
                "what is unknown can be settled now": lambda _: True,
                "the provider has it": lambda _: True,
                "the provider has it not": lambda _: False,
            },
            fills={"REF": lambda _: night.bank.lookup(key)[0].ref},
        )
        watch.solve(first_command("EffectsvcStoreRollback"), decisions=2)
        assert night.counts() == {"committed": 2}
        assert [fault.code for fault in night.verified().faults] == ["SOURCE_GAP"]  # told for good
        again = night.propose("pay", "inv-2", run_id="a new plan")
        assert night.fields(again)["rule"] == "same_intent_other_arguments"  # of the old ones only a digest is left
        assert sorted(night.bank.ledger.values()) == [1, 1]
