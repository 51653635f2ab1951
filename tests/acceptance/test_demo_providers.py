"""The demo's case system and mail system, as the processes that they are: honest ledgers, and faults on demand."""

from __future__ import annotations

import http.client
import json
import os
import signal
import smtplib
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from email.message import EmailMessage
from pathlib import Path

import httpx
import pytest

from effectsvc.demo.case_system import CaseSystem
from effectsvc.demo.mail_system import MailSystem
from effectsvc.errors import EffectsvcError

DEADLINE_S = 20.0
LONG_MS = 60_000  # a delay that no test waits out


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CaseSystem]:
    with CaseSystem(data_dir=tmp_path_factory.mktemp("cases")) as system:
        yield system


@pytest.fixture(scope="module")
def mail(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MailSystem]:
    with MailSystem(data_dir=tmp_path_factory.mktemp("mail")) as system:
        yield system


@pytest.fixture
def http_client(cases: CaseSystem) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=cases.url, timeout=DEADLINE_S, trust_env=False) as client:
        yield client


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.01)


def create(client: httpx.Client, key: str, case_id: str = "case_0001", **headers: str) -> httpx.Response:
    return client.post(
        f"/cases/{case_id}/packets",
        json={"packet_ref": "PKT-1", "title": "Evidence"},
        headers={"Idempotency-Key": key, **headers},
    )


def attach(client: httpx.Client, packet_id: str, name: str, key: str) -> httpx.Response:
    path = f"/packets/{packet_id}/attachments/{name}"
    return client.put(path, content=b"an ownership chart", headers={"Idempotency-Key": key})


def message(key: str, to: str = "contact_0001_1@clients.example", **headers: str) -> EmailMessage:
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = "atlas@demo.example", to, "Missing document"
    mail["Message-ID"], mail["X-Effect-Key"] = f"<{key}@demo.example>", key
    for name, value in headers.items():
        mail[name] = value
    mail.set_content("Please send us the ownership chart.")
    return mail


def send(system: MailSystem, mail: EmailMessage) -> None:
    client = smtplib.SMTP(system.host, system.port, local_hostname="localhost", timeout=DEADLINE_S)
    try:
        client.send_message(mail)
        client.quit()
    finally:
        client.close()


# --- case system: what it answers ------------------------------------------------------------------------------------


def test_records_are_the_same_at_every_reading_and_unknown_ids_are_404(http_client: httpx.Client) -> None:
    case = http_client.get("/cases/case_0007").raise_for_status().json()
    assert case == http_client.get("/cases/case_0007").json()
    contact = http_client.get(f"/contacts/{case['contact_ids'][0]}").raise_for_status().json()
    assert (contact["case_id"], contact["email"]) == ("case_0007", "contact_0007_1@clients.example")
    assert http_client.get("/cases/case_x").status_code == 404
    assert http_client.get("/contacts/contact_0007_9").status_code == 404
    assert http_client.get("/elsewhere").status_code == 404


def test_a_search_answers_at_most_as_many_articles_as_asked_for(http_client: httpx.Client) -> None:
    query = {"entity_id": "entity_0002", "q": "fraud", "from": "2020-01-01", "max": "1"}
    assert len(http_client.get("/adverse-media", params=query).raise_for_status().json()["articles"]) == 1
    assert http_client.get("/adverse-media", params=query | {"max": "many"}).status_code == 422


def test_a_packet_and_its_attachments_are_found_by_the_key_of_either(http_client: httpx.Client) -> None:
    packet_id = create(http_client, "found-record").raise_for_status().json()["packet_id"]
    attach(http_client, packet_id, "chart.txt", "found-chart").raise_for_status()
    for key in ("found-record", "found-chart"):
        (packet,) = http_client.get("/packets", params={"key": key}).json()["packets"]
        assert (packet["packet_id"], packet["case_id"], packet["packet_ref"]) == (packet_id, "case_0001", "PKT-1")
        assert packet["idempotency_key"] == "found-record"
        assert [(a["name"], a["idempotency_key"]) for a in packet["attachments"]] == [("chart.txt", "found-chart")]
    assert http_client.get("/packets", params={"key": "never-sent"}).json() == {"packets": []}


def test_the_ledger_counts_every_write_and_never_deduplicates(cases: CaseSystem, http_client: httpx.Client) -> None:
    first, second = (create(http_client, "twice").json()["packet_id"] for _ in range(2))
    assert first != second
    attach(http_client, first, "a.txt", "twice")
    counts = cases.ledger()
    assert (counts["twice|packet|"], counts["twice|attachment|a.txt"]) == (2, 1)
    assert http_client.get("/ledger").json() == counts
    record, _, attachment = cases.ledger_rows(key="twice")
    assert (record.kind, record.path, record.ref) == ("packet", "/cases/case_0001/packets", first)
    assert attachment.digest != record.digest
    assert record.at_ms <= attachment.at_ms <= time.time_ns() // 1_000_000


def test_a_write_that_is_refused_leaves_no_row(cases: CaseSystem, http_client: httpx.Client) -> None:
    before = cases.ledger_rows()
    assert http_client.post("/cases/case_0001/packets", json={"packet_ref": "P", "title": "T"}).status_code == 400
    assert create(http_client, "bad", case_id="case_x").status_code == 404
    assert attach(http_client, "pkt_none", "a.txt", "bad").status_code == 404
    malformed = http_client.post("/cases/case_0001/packets", content=b"{", headers={"Idempotency-Key": "bad"})
    assert malformed.status_code == 422
    assert create(http_client, "bad", **{"X-Demo-Fault": "nonsense"}).status_code == 400
    assert cases.ledger_rows() == before


def test_one_connection_serves_many_requests(cases: CaseSystem) -> None:
    connection = http.client.HTTPConnection(cases.host, cases.port, timeout=DEADLINE_S)
    try:
        connection.connect()
        own_port = connection.sock.getsockname()[1]
        for _ in range(3):
            connection.request("GET", "/cases/case_0001")
            assert connection.getresponse().read()
            assert connection.sock.getsockname()[1] == own_port
    finally:
        connection.close()


# --- case system: what it does wrong ---------------------------------------------------------------------------------


def test_an_answer_dropped_after_the_write_leaves_the_row(cases: CaseSystem, http_client: httpx.Client) -> None:
    cases.arm(match="case_0010", fault="drop_after_write")
    http_client.get("/cases/case_0010").raise_for_status()  # a read of the case does not set it off
    with pytest.raises(httpx.RemoteProtocolError):
        create(http_client, "dropped", case_id="case_0010")
    assert cases.ledger()["dropped|packet|"] == 1
    assert cases.fired(match="case_0010") == 1
    assert create(http_client, "dropped-next", case_id="case_0010").status_code == 201


def test_the_answer_to_one_attachment_can_be_dropped(cases: CaseSystem, http_client: httpx.Client) -> None:
    cases.arm(match="case_0011/b.txt", fault="drop_after_write")
    packet_id = create(http_client, "partial", case_id="case_0011").raise_for_status().json()["packet_id"]
    attach(http_client, packet_id, "a.txt", "partial-a").raise_for_status()
    with pytest.raises(httpx.RemoteProtocolError):
        attach(http_client, packet_id, "b.txt", "partial-b")
    assert cases.ledger()["partial-b|attachment|b.txt"] == 1


def test_an_error_after_the_write_leaves_the_row(cases: CaseSystem, http_client: httpx.Client) -> None:
    assert create(http_client, "error", **{"X-Demo-Fault": "500_after_write"}).status_code == 500
    assert cases.ledger()["error|packet|"] == 1


def test_429_writes_nothing_and_says_when_to_come_again(cases: CaseSystem, http_client: httpx.Client) -> None:
    cases.arm(match="limited", fault="429", times=2)
    for _ in range(2):
        refused = create(http_client, "limited")
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1")
    assert "limited|packet|" not in cases.ledger()
    assert create(http_client, "limited").status_code == 201


def test_a_refused_connection_writes_nothing(cases: CaseSystem, http_client: httpx.Client) -> None:
    cases.arm(match="refused", fault="refuse")
    with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError)):
        create(http_client, "refused")
    assert "refused|packet|" not in cases.ledger()


def test_a_slow_answer_is_written_before_its_caller_gives_up(cases: CaseSystem, http_client: httpx.Client) -> None:
    with pytest.raises(httpx.ReadTimeout):
        http_client.post(
            "/cases/case_0001/packets",
            json={"packet_ref": "P", "title": "T"},
            headers={"Idempotency-Key": "slow", "X-Demo-Fault": f"slow_after_write:{LONG_MS}"},
            timeout=0.3,
        )
    until(lambda: cases.ledger().get("slow|packet|") == 1)


def test_a_held_write_lands_after_its_caller_has_gone(cases: CaseSystem, http_client: httpx.Client) -> None:
    sent_at_ms = time.time_ns() // 1_000_000
    with pytest.raises(httpx.ReadTimeout):
        http_client.post(
            "/cases/case_0001/packets",
            json={"packet_ref": "P", "title": "T"},
            headers={"Idempotency-Key": "held", "X-Demo-Fault": "hold_before_write:1000"},
            timeout=0.2,
        )
    until(lambda: cases.ledger().get("held|packet|") == 1)
    assert cases.ledger_rows(key="held")[0].at_ms >= sent_at_ms + 1_000


def test_faults_are_armed_over_http_and_a_star_takes_the_next_request(
    cases: CaseSystem, http_client: httpx.Client
) -> None:
    http_client.post("/faults", json={"match": "*", "fault": "429"}).raise_for_status()
    assert http_client.get("/ledger").status_code == 200  # asking about the ledger is not a request of a tool
    assert http_client.get("/cases/case_0001").status_code == 429
    assert http_client.get("/cases/case_0001").status_code == 200
    for wrong in ({"match": "*"}, {"match": "*", "fault": "nonsense"}, {"match": "*", "fault": "429", "times": 0}):
        assert http_client.post("/faults", json=wrong).status_code == 422
    with pytest.raises(ValueError, match="unknown fault"):
        cases.arm(match="*", fault="drop_after_accept")


# --- mail system ------------------------------------------------------------------------------------------------------


def test_an_accepted_message_is_one_row_per_recipient(mail: MailSystem) -> None:
    send(mail, message("accepted", to="a@clients.example, b@clients.example"))
    rows = mail.ledger_rows(key="accepted")
    assert [(r.kind, r.name, r.ref) for r in rows] == [
        ("mail", "a@clients.example", "<accepted@demo.example>"),
        ("mail", "b@clients.example", "<accepted@demo.example>"),
    ]
    send(mail, message("accepted", to="a@clients.example"))
    assert mail.ledger()["accepted|mail|a@clients.example"] == 2
    assert len({r.digest for r in mail.ledger_rows(key="accepted")}) == 1


def test_a_message_without_an_effect_key_is_counted_by_its_message_id(mail: MailSystem) -> None:
    plain = message("plain", to="a@clients.example")
    del plain["X-Effect-Key"]
    send(mail, plain)
    assert mail.ledger()["<plain@demo.example>|mail|a@clients.example"] == 1


def test_a_connection_cut_after_the_mail_was_accepted_leaves_the_row(mail: MailSystem) -> None:
    to = "contact_0020_1@clients.example"
    mail.arm(match=to, fault="drop_after_accept")
    with pytest.raises(smtplib.SMTPServerDisconnected):
        send(mail, message("cut", to=to))
    assert mail.ledger()[f"cut|mail|{to}"] == 1
    assert mail.fired(match=to) == 1
    send(mail, message("cut-next", to=to))


def test_a_slow_mail_is_stored_before_its_sender_gives_up(mail: MailSystem) -> None:
    client = smtplib.SMTP(mail.host, mail.port, local_hostname="localhost", timeout=DEADLINE_S)
    slow = message("slow", **{"X-Demo-Fault": f"slow_after_accept:{LONG_MS}"})
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(client.send_message, slow)
        until(lambda: mail.ledger().get("slow|mail|contact_0001_1@clients.example") == 1)
        assert not call.done()
        assert client.sock is not None
        client.sock.shutdown(socket.SHUT_RDWR)
        assert isinstance(call.exception(timeout=DEADLINE_S), smtplib.SMTPServerDisconnected)


@pytest.mark.parametrize(("fault", "code"), [("reject", 550), ("greylist", 451)])
def test_a_recipient_that_is_refused_gets_nothing(mail: MailSystem, fault: str, code: int) -> None:
    armed = f"{fault}-armed@clients.example"
    mail.arm(match=armed, fault=fault)
    for to in (f"{fault}@clients.example", f"any+{fault}@clients.example", armed):
        with pytest.raises(smtplib.SMTPRecipientsRefused) as refused:
            send(mail, message(f"{fault}-{to}", to=to))
        assert refused.value.recipients[to][0] == code
    with pytest.raises(smtplib.SMTPDataError) as late:
        send(mail, message(f"{fault}-header", **{"X-Demo-Fault": fault}))
    assert late.value.smtp_code == code
    assert not [label for label in mail.ledger() if label.startswith(fault)]
    send(mail, message(f"{fault}-second", to=armed))
    assert mail.ledger()[f"{fault}-second|mail|{armed}"] == 1


# --- both, as processes -----------------------------------------------------------------------------------------------

CLIENT = """
import http.client, json, smtplib, sys
http_port, smtp_port, name = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
cases = http.client.HTTPConnection("127.0.0.1", http_port, timeout=20)
mail = smtplib.SMTP("127.0.0.1", smtp_port, local_hostname="localhost", timeout=20)
for number in range(20):
    for key in ("crowd-shared", f"crowd-{name}-{number}"):
        body = json.dumps({"packet_ref": key, "title": "T"})
        cases.request("POST", "/cases/case_0050/packets", body, {"Idempotency-Key": key})
        answer = cases.getresponse()
        answer.read()
        assert answer.status == 201, answer.status
        mail.sendmail("a@b.example", ["c@d.example"], f"X-Effect-Key: {key}\\r\\n\\r\\nhello")
cases.close()
mail.quit()
"""


def test_several_processes_at_once_lose_no_row_and_no_fault(cases: CaseSystem, mail: MailSystem) -> None:
    command = [sys.executable, "-W", "error", "-c", CLIENT, str(cases.port), str(mail.port)]
    with ThreadPoolExecutor(3) as pool:
        ended = list(pool.map(lambda name: subprocess.run([*command, name], timeout=60, check=False).returncode, "abc"))
    assert ended == [0, 0, 0]
    for counts, suffix in ((cases.ledger(), "packet|"), (mail.ledger(), "mail|c@d.example")):
        crowd = {label: count for label, count in counts.items() if label.startswith("crowd-")}
        assert crowd.pop(f"crowd-shared|{suffix}") == 60
        assert len(crowd) == 60
        assert set(crowd.values()) == {1}


def test_a_fault_armed_once_fires_once_among_many_callers(cases: CaseSystem) -> None:
    cases.arm(match="case_0051", fault="429")

    def call(number: int) -> int:
        with httpx.Client(base_url=cases.url, timeout=DEADLINE_S, trust_env=False) as client:
            return create(client, f"once-{number}", case_id="case_0051").status_code

    with ThreadPoolExecutor(8) as pool:
        answers = sorted(pool.map(call, range(16)))
    assert answers == [201] * 15 + [429]


@pytest.mark.parametrize("system", [CaseSystem, MailSystem])
def test_a_provider_stops_cleanly_in_the_middle_of_a_call_and_comes_back_with_its_ledger(
    tmp_path: Path, system: type[CaseSystem] | type[MailSystem]
) -> None:
    provider = system(data_dir=tmp_path).start()
    try:
        port = provider.port
        fault = "slow_after_write" if isinstance(provider, CaseSystem) else "slow_after_accept"
        provider.arm(match="*", fault=f"{fault}:{LONG_MS}")
        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(_one_write, provider)
            until(lambda: len(provider.ledger()) == 1)
            assert provider.stop() == 0
            assert call.exception(timeout=DEADLINE_S) is not None
        assert provider.stop() is None
        kept = provider.ledger()
        assert list(kept.values()) == [1]
        provider.start()
        assert (provider.port, provider.ledger()) == (port, kept)
        with pytest.raises(EffectsvcError, match="started already"):
            provider.start()
        _one_write(provider)
        assert list(provider.ledger().values()) == [2]
    finally:
        assert provider.stop() == 0


def _one_write(provider: CaseSystem | MailSystem) -> None:
    if isinstance(provider, MailSystem):
        send(provider, message("one"))
    else:
        with httpx.Client(base_url=provider.url, timeout=DEADLINE_S, trust_env=False) as client:
            create(client, "one").raise_for_status()


def test_a_held_write_is_dropped_when_the_provider_stops_first(tmp_path: Path) -> None:
    with CaseSystem(data_dir=tmp_path) as provider, ThreadPoolExecutor(1) as pool:
        provider.arm(match="*", fault=f"hold_before_write:{LONG_MS}")
        call = pool.submit(_one_write, provider)
        until(lambda: provider.fired(match="*") == 1)
        assert provider.stop() == 0
        assert call.exception(timeout=DEADLINE_S) is not None
        assert provider.ledger() == {}


def test_what_was_applied_survives_a_kill_of_the_provider(tmp_path: Path) -> None:
    with CaseSystem(data_dir=tmp_path) as provider:
        _one_write(provider)
        assert provider.pid is not None
        os.kill(provider.pid, signal.SIGKILL)
        assert provider.stop() == -signal.SIGKILL
        assert provider.ledger() == {"one|packet|": 1}


STARTER = """
import os, pathlib, sys
from effectsvc.demo.case_system import CaseSystem
from effectsvc.demo.mail_system import MailSystem
folder = pathlib.Path(sys.argv[1])
systems = [CaseSystem(data_dir=folder).start(), MailSystem(data_dir=folder).start()]
print(*(system.pid for system in systems), flush=True)
os.kill(os.getpid(), 9)
"""


def test_providers_end_with_the_process_that_started_them_even_when_it_is_killed(tmp_path: Path) -> None:
    starter = subprocess.run(
        [sys.executable, "-c", STARTER, str(tmp_path)], stdout=subprocess.PIPE, text=True, timeout=60, check=False
    )
    assert starter.returncode == -signal.SIGKILL
    pids = [int(pid) for pid in starter.stdout.split()]
    assert len(pids) == 2
    until(lambda: not any(_runs(pid) for pid in pids))


def _runs(pid: int) -> bool:
    """Whether the process lives; one that has ended and waits to be reaped does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize("module", ["case_system", "mail_system"])
def test_a_provider_runs_from_the_command_line_without_a_parent_to_watch(tmp_path: Path, module: str) -> None:
    port_file = tmp_path / "port"
    command = [sys.executable, "-m", f"effectsvc.demo.{module}", "--data", str(tmp_path), "--port-file", str(port_file)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        until(port_file.exists)
        assert int(port_file.read_text()) > 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=DEADLINE_S) == 0
    finally:
        process.kill()
        process.wait()


def test_a_provider_that_cannot_start_says_where_its_log_is(tmp_path: Path, cases: CaseSystem) -> None:
    second = CaseSystem(data_dir=tmp_path)
    second.port = cases.port  # taken
    with pytest.raises(EffectsvcError, match=r"case_system\.sqlite3\.log"):
        second.start()
    assert second.pid is None


def test_starting_and_reading_needs_no_mail_library_and_raises_no_warning(tmp_path: Path) -> None:
    code = (
        "import json, pathlib, sys\n"
        "from effectsvc.demo.mail_system import MailSystem\n"
        "with MailSystem(data_dir=pathlib.Path(sys.argv[1])) as mail:\n"
        "    print(json.dumps([mail.ledger(), 'aiosmtpd' in sys.modules]))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert json.loads(ran.stdout) == [{}, False]
