"""What happens to runs, switches, the epoch, lanes, read tools and the catalogue."""

from __future__ import annotations

from hypothesis import strategies as st

from effectsvc.store import replies as r
from effectsvc.store.commands import Read, integer, is_frozen
from effectsvc.store.keys import subject_of
from effectsvc.store.worker_commands import host_target
from tests.model.machine import Machine, act, one_of
from tests.model.world import AGENTS, ARGS, EFFECTS, FREEZES, LANE, LONG_MS, RUNS, TENANT, TOOLS

WITNESSES = ("w1", "w2", "w3")
NEVER_MS = 10**14
"""A process that was begun then is younger than whatever was said."""


class CellActs(Machine):
    """What concerns many effects at once."""

    @act(run=one_of(RUNS), how=one_of(["halt", "deadline", "close", "later", *["set", "join"] * 3]), weight=2)
    def change_run(self, run: str, how: str) -> None:
        match how:
            case "halt":
                self.send(self.commands.halt_run(run=run, tenant=TENANT, reason="why", actor="pat", entry=b"halt"))
            case "deadline" | "later":
                for deadline_ms in (1, 2)[: 1 if how == "deadline" else 2]:
                    self.world.open_run(run, deadline_ms=deadline_ms)
            case "close":
                self.send(self.commands.close_run(run=run, tenant=TENANT))
                self.world.open_run(run)
                self.send(self.commands.set_run(run=run, tenant=TENANT, state="late"))
            case "set":
                self.send(self.commands.set_run(run=run, tenant=TENANT, state="deciding"))
            case _:
                self.world.open_run(run)

    @act(tenant=one_of(["", "globex"]), agent=one_of(AGENTS), opened_by_n=one_of([0, 0, 0, NEVER_MS]), weight=1)
    def halt_runs(self, tenant: str, agent: str, opened_by_n: int) -> None:
        """Mostly of runs that are not there: all of this world were opened at its beginning."""
        said = {"reason": "why", "actor": "pat", "entry": b"halt_runs"}
        self.send(self.commands.halt_runs(tenant=tenant, agent=agent, opened_by_n=opened_by_n, **said))

    @act(freeze_id=one_of(sorted(FREEZES)), weight=2)
    def freeze(self, freeze_id: str) -> None:
        scope, target = FREEZES[freeze_id]
        reason = "store_rollback" if scope == "cell" else "why"
        self.send(self.commands.freeze(freeze_id=freeze_id, scope=scope, target=target, reason=reason, entry=b"freeze"))

    @act(which=one_of(range(len(FREEZES))), by=one_of(["recover", "recover", "recover", "operator"]), weight=4)
    def thaw(self, which: int, by: str) -> None:
        """One in force if there is any."""
        frozen = sorted(
            i for name, ids in self.cell["switches"].items() if is_frozen(name, ids) for i in ids.split()
        ) or sorted(FREEZES)
        self.send(self.commands.thaw(freeze_id=frozen[which % len(frozen)], by=by, entry=b"thaw"))

    @act(tool=one_of(TOOLS), args=one_of(ARGS), by=one_of(["operator", "survived"]), weight=2)
    def lift(self, tool: str, args: str, by: str) -> None:
        self.send(self.commands.lift(subject=subject_of(tool, args), by=by, entry=b"lift"))

    @act(
        marks=one_of([(), (1,), (1, 10_000)]),
        epoch=one_of(["e" * 16, "e" * 16, "f" * 16, ""]),
        rule=one_of(["witnesses", "single", "person"]),
        executors=st.lists(one_of(WITNESSES), unique=True),
        patience_ms=one_of([None, LONG_MS, 0]),
        weight=3,
    )
    def the_store_restarts(
        self, marks: tuple[int, ...], epoch: str, rule: str, executors: list[str], patience_ms: int | None
    ) -> None:
        """The cell remembers another epoch than the server's, until it is accepted; marks are shown throughout."""
        twin, earlier = self.world.twin, "e" * 40
        twin.send(Read(("HSET", self.commands.keys.meta, "epoch", earlier), integer))
        (answer,) = twin.send_each([self.commands.renew(EFFECTS[0], token=self.world.token(1), lease_ms=1)])
        assert isinstance(answer, r.EpochMismatch)
        shown = tuple(f"{epoch or self.world.epoch[:16]} {n}" for n in marks)
        for each in (rule, rule, "person", "single"):  # a person ends what the rule does not
            command = self.commands.accept(
                stored=earlier,
                found=self.world.epoch,
                rule=each,
                marks=shown,
                executors=tuple(executors),
                patience_ms=patience_ms,
                entry=b"epoch",
            )
            self.send(command)
        self._recover()

    def _recover(self) -> None:
        """Ends what the service froze, or nothing would move in the rest of the example."""
        for freeze_id in self.cell["switches"].get("cell", "").split():
            self.send(self.commands.thaw(freeze_id=freeze_id, by="recover", entry=b"thaw"))

    @act(
        executor=one_of(WITNESSES),
        leaving=one_of([False, False, False, True]),
        has_shown=one_of([True, True, False]),
        weight=3,
    )
    def a_witness(self, executor: str, leaving: bool, has_shown: bool) -> None:
        shown = self.world.epoch if has_shown else "e" * 40
        self.send(self.commands.witness(executor=executor, shown=shown, leaving=leaving))

    @act(
        executor=one_of(WITNESSES),
        how=one_of(["beat", "beat", "leave", "drain", "drain_host"]),
        begun_ms=one_of([0, NEVER_MS]),
        weight=3,
    )
    def a_worker(self, executor: str, how: str, begun_ms: int) -> None:
        """Two processes on one host; what is told to the host counts for one that was begun before."""
        match how:
            case "drain" | "drain_host":
                target = executor if how == "drain" else host_target("h1")
                command = self.commands.drain(
                    target=target, begun_ms=begun_ms, actor="pat", reason="why", entry=b"drain"
                )
                self.send(command)
            case _:
                leaving = how == "leave"
                command = self.commands.beat(
                    executor=executor, host="h1", begun_ms=begun_ms, leaving=leaving, about=b"{}"
                )
                self.send(command)

    # ---- lanes, reads, catalogue -----------------------------------------------------------------------------------

    @act(
        how=one_of(["join", "leave", "ask", "windows"]),
        session=one_of(["s1", "s2", "s3"]),
        force=st.booleans(),
        weight=3,
    )
    def use_lane(self, how: str, session: str, force: bool) -> None:
        k = self.commands.keys
        match how:
            case "join":
                lease_ms = LONG_MS if force else -1
                self.send(self.commands.join_lane(LANE, session=session, job=session, lease_ms=lease_ms))
            case "leave":
                self.send(self.commands.leave_lane(LANE, session=session, force=force))
            case "ask":
                self.send(self.commands.ask_lane(LANE, wanted=1, job=session, asked_ms=LONG_MS))
            case _:
                for key in (k.lane(LANE), k.rerun(LANE), k.lookup(LANE), k.leases, k.held):
                    self._window(key)

    def _window(self, key: str) -> None:
        """Of nearly equal times the server and the model may hold another order."""
        twin, window = self.world.twin, self.commands.window(key, offset=0, limit=10)
        real = twin.real.send(window)
        twin.clock = real.now_ms
        model = twin.model.send(window)
        assert (set(real.ids), real.next_ms is None) == (set(model.ids), model.next_ms is None)

    @act(
        reader=one_of(["r1", "r2"]),
        call=one_of(["", "call-a", "call-a", "call-a"]),
        args=one_of([ARGS[0], ARGS[0], ARGS[0], ARGS[1]]),
        steps=one_of(["admit", "close", "admit close", "admit close close", "admit close admit"]),
        digest=one_of(["digest", "digest", ""]),
        policy=one_of([*[None] * 5, "another"]),
        weight=3,
    )
    def read(self, reader: str, call: str, args: str, steps: str, digest: str, policy: str | None) -> None:
        read_call = self.world.read_call(reader, call, args, policy or self.world.policy)
        close = self.commands.close_read(read_call, rule="returned", result=b"case", digest=digest, entry=b"closed")
        for step in steps.split():
            self.send(close if step == "close" else self.commands.admit_read(read_call))

    @act(
        versions=one_of([(1,), (2,), (3, 1)]), digest=one_of(["a", "b"]), kind=one_of(["contract", "policy"]), weight=1
    )
    def publish(self, versions: tuple[int, ...], digest: str, kind: str) -> None:
        for version in versions:
            command = self.commands.publish(
                kind=kind, name="mail", version=version, digest=f"{digest}-{version}", body=b"body", entry=b"publish"
            )
            self.send(command)
