"""A second verifier, written from deploy/log-format.md alone: the standard library and `cryptography`, no effectsvc."""
import base64, functools, hashlib, json, re
from pathlib import Path
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
OPEN = {"decision": str, "due": int, "effect": str, "i": int, "intent": str, "rerun_safe": bool, "unknown": bool}
SOURCE, COUNTS, D = "answer epoch from id layer n op rule to type", "format size after_n next_n", "[0-9]" * 20
ANCHOR, GAP = "cursor ended ended_from frontier gaps head keys open origin rollbacks size v", "after_n next_n reason"
OWN = {"genesis": "format key origin", "keyroll": "key old_key", "prune": "anchor size", "discontinuity": GAP}
PLACE = re.compile("[0-9a-f]{16} [1-9][0-9]* (0|[1-9][0-9]{0,19})-(0|[1-9][0-9]{0,19})")
NOTE = re.compile(r"([^\n]+)\n(0|[1-9][0-9]{0,15})\n([A-Za-z0-9+/]{43}=)\n\n((?:— [^\s+]+ [A-Za-z0-9+/]{7,}=*\n)+)")
FAULTS = (ValueError, LookupError, TypeError, AttributeError, AssertionError, RecursionError)
Y8 = int.from_bytes(bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"), "little")
WEAK = {0, 1, 2**255 - 20, Y8, 2**255 - 19 - Y8}  # the y of the points of small order: anybody can sign for them
def sha(data): return hashlib.sha256(data).digest()
def canonical(value): return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
def root_of(peaks): return functools.reduce(lambda right, left: sha(b"\1" + left + right), peaks[-2::-1], peaks[-1])
def b64(text): return {base64.b64encode(raw := base64.b64decode(text, validate=True)).decode(): raw}[text]  # canonical
def sigs(lines): return [(line.split(" ")[1], b64(line.split(" ")[2])) for line in lines.split("\n")[:-1]]
def fits(v, room):
    if isinstance(v, dict): return all(re.fullmatch("[a-z][a-z0-9_]*", key) for key in v) and fits([*v.values()], room)
    if isinstance(v, list): return room > 0 and all(fits(each, room - 1) for each in v)
    return v is None or isinstance(v, str) or (isinstance(v, int) and abs(v) < 2**53)
def parse(line):
    value = json.loads(line.decode() if len(line) < 65536 else "", parse_constant=int)
    if type(value["v"]) is int and 1 < value["v"] < 2**53: raise EOFError  # nothing behind this can be looked at
    e, i, p, s, v = (value[key] for key in "eipsv")
    assert canonical(value) == line and len(value) == 5 and type(v) is type(i) is int and v == 1
    own, who = OWN.get(s["type"]), e if s["type"] in OWN else s
    assert (s["x"] is not True and s == {"type": s["type"], "x": 1}) if own else " ".join(sorted(s)) == SOURCE
    assert isinstance(e, dict) and fits(e, 8) and fits(s, 1)
    assert all(type(who[n]) is (int if n in COUNTS and who[n] >= 0 else str) for n in (own or SOURCE).split())
    assert e["kind"] == s["type"] if own else PLACE.fullmatch("{epoch} {n} {id}".format(**s))
    return e, i, p, s, line[5 : len(line) - len(canonical({key: value[key] for key in "ipsv"}))]
def public_of(vkey, kinds=(1,)):  # a key that signs a log
    name, key_id, text = (*vkey.split("+", 2), "", "")[:3]
    raw, y = b64(text), int.from_bytes(b64(text)[1:], "little") % 2**255 % (2**255 - 19)
    assert len(raw) == 33 and raw[0] in kinds and sha(name.encode() + b"\n" + raw)[:4].hex() == key_id and y not in WEAK
    return name, raw[1:]
def signed(body, lines, vkey):  # whether this key signed, plainly and with the time; None: one of the two is missing
    (name, public), seen = public_of(vkey), set()
    ids = {sha(name.encode() + b"\n" + bytes([kind]) + public)[:4]: kind for kind in (1, 4)}
    for kind, raw in ((ids[raw[:4]], raw[4:]) for who, raw in sigs(lines) if who == name and raw[:4] in ids):
        timed = b"cosignature/v1\ntime %d\n" % int.from_bytes(raw[:8]) if kind == 4 else b""
        try: Ed25519PublicKey.from_public_bytes(public).verify(raw[8 if timed else 0 :], timed + body)
        except InvalidSignature: return False
        seen.add(kind)
    return True if seen == {1, 4} else None
class Effects:  # of each, what is said of each decision: whether allowed, safe, intent, due, closed, spoken of
    def __init__(self): self.of, self.did, self.wrong, self.gaps, self.now = {}, {}, False, False, 0
    def before(self, a, kept):  # what an anchor, and the file beside it, say of the records before
        rows, self.gaps = [kept[at : at + 65] for at in range(0, len(kept), 65)], a.get("gaps", 0)
        assert len(kept) % 65 == 0 and rows == sorted({*rows}) and type(self.gaps) is int and 0 <= self.gaps < 2**53
        fields = OPEN | ({"in_doubt": bool} if a["v"] > 2 else {})
        assert all({name: type(value) for name, value in each.items()} == fields for each in a["open"])
        told = [(o["i"], 0, o["effect"], o["decision"], 1 + 8 * o["rerun_safe"], o["intent"], o["due"], o["unknown"],
                 b"") for o in a["open"]]
        for r, name in ((r, base64.urlsafe_b64encode(r[16:32]).decode()) for r in rows):
            told.append((int.from_bytes(r[57:]), 1, r[:16].hex(), name, r[56], r[32:48].hex(), 0, True, r[48:56]))
        for _, _, effect, name, flags, intent, due, spoken, ref in sorted(told, key=lambda each: each[:2]):
            fact = self.of.setdefault(effect, {}).setdefault(name[:21], [flags & 1, False, intent, due, False, spoken])
            fact[1], fact[4] = fact[1] or flags & 8, fact[4] or flags & 2
            if flags & 4: self.did.setdefault(intent, []).append((effect, ref))
    def take(self, e, s, entry):
        self.now, to, ref = int(s["id"].split("-")[0]), s["to"], str(e.get("provider_ref", "none"))
        kind, effect = s["type"] * isinstance(e.get("effect"), str), sha(str(e.get("effect")).encode())[:16].hex()
        if kind == "decision":
            safe = e.get("reversibility") == "reversible" or s["rule"] in ("reversible", "read_safe")
            intent = s["op"] != "admit_read" and sha(f"{e.get('intent')}:{e.get('occurrence')}".encode())[:16].hex()
            fact = [s["answer"] in ("granted", "admitted"), safe, intent, e.get("due_ms"), False, False]
            self.of.setdefault(effect, {})[base64.urlsafe_b64encode(sha(b"\2" + entry)[:16]).decode()[:21]] = fact
        elif kind in ("outcome", "late", "resolve", "reconcile"):
            decisions, ends = self.of.get(effect, {}), kind == "outcome"
            fact, closes = decisions.get(str(e.get("decision_hash"))[:21]), ends and to != "unknown"
            bad = ends and (fact is None or not fact[0] or (fact[4] and closes))
            self.wrong |= bad and (fact is not None or not self.gaps)  # a gap before it may have its decision
            for each in [] if bad else [fact] if ends else decisions.values(): each[4:] = each[4] or closes, True
            did = {kind, to} & {"late", "committed"} or (ends and s["answer"] in ("stored", "contradicted"))
            intent = (fact or [*decisions.values(), [None] * 3][max(0, len(decisions) - 1)])[2]
            ref = bytes(8) if ref == "none" else sha(ref.encode())[:8]
            if did and intent and not bad: self.did.setdefault(intent, []).append((effect, ref))
    def broken(self):
        for happened in self.did.values():
            effects, refs = (set(each) for each in zip(*happened, strict=True))
            twice = len(refs - {bytes(8)}) > 1 or (len(effects) > 1 and bytes(8) in refs)
            self.wrong |= twice and not any(fact[1] for each in effects for fact in self.of.get(each, {}).values())
        due = [f[3] for of in self.of.values() for f in of.values() if f[0] and not f[5] and type(f[3]) is int]
        return self.wrong or any(0 < ms < self.now - 3_600_000 for ms in due)
def verify(log, key=None, pin=None):  # the exit code that `effectsvc log verify` ends with
    key, segments = key and public_of(key.strip(), (1, 4)) and key.strip(), sorted(Path(log).glob(f"seg/{D}.jsonl"))
    log, found, notes, said, told, effects, sizes, start = Path(log), set(), [], {}, {}, Effects(), {}, None
    for path in [*log.glob(f"ckpt/{D}.note"), *log.glob("ckpt/latest")]:
        try:
            match = len(raw := path.read_bytes()) <= 65536 and NOTE.fullmatch(raw.decode())
            assert path.name in (f"{int(match[2]):020}.note", "latest") and sigs(match[4])
            notes.append((int(match[2]), match[1], b64(match[3]), match[0].split("\n\n")[0].encode() + b"\n", match[4]))
        except FAULTS: found.add(1)
    size, head, peaks, keys, origin, want, last_id, whole = 0, "0" * 64, [], [], None, 1, (0, 0), False
    anchors = {int(p.stem): p.read_bytes() for p in log.glob(f"prune/{D}.json")}
    try:
        if not segments or (first := int(segments[0].stem)):
            start = size = min([at for at in anchors if segments and at >= first] or [max([-1, *anchors])])
            if start < 0 or (type((a := json.loads(anchors[size]))["v"]) is int and a["v"] > 3): raise EOFError
            assert {*ANCHOR.split()} ^ {*a} == {1: {"ended", "ended_from", "gaps"}, 2: {"gaps"}, 3: set()}[a["v"]]
            assert canonical(a) == anchors[size] and a["size"] == size and len(a["frontier"]) == size.bit_count()
            peaks, keys, origin = [*map(bytes.fromhex, a["frontier"])], a["keys"], a["origin"]
            head, last_id = bytes.fromhex(a["head"]).hex(), tuple(map(int, a["cursor"]["id"].split("-")))
            want, sizes[size], ended = a["cursor"]["next_n"], root_of(peaks), a.get("ended", "not_kept")
            kept = [path.read_bytes() for path in log.glob(f"prune/{size:020}.ended") if ended != "not_kept"]
            assert type(want) is type(a.get("ended_from", 0)) is int and all(public_of(k) for k, _ in keys)
            assert [sha(raw).hex() for raw in kept] in ([], [ended])
            if ended != "not_kept" and not kept: found.add(4)
            effects.before(a, b"".join(kept))
        for path in [path for path in segments if int(path.stem) >= (start or 0)]:
            if int(path.stem) != size: raise EOFError if int(path.stem) > size != start else ValueError
            *lines, tail = path.read_bytes().split(b"\n")
            for line, (e, i, p, s, entry) in ((line, parse(line)) for line in lines):
                assert (i, p, s["type"] == "genesis") == (size, head, size == 0)
                if s["type"] in ("genesis", "keyroll"):
                    new = {} if not size and e["key"] == "none" else {e["key"]: size and size + 1}
                    assert all(map(public_of, new)) and (e["old_key"] == keys[-1][0] if size else e["format"] == 1)
                    origin, keys = origin if size else e["origin"], [*keys, *new.items()]
                elif s["type"] == "prune": told[e["size"]] = e["anchor"]
                elif s["type"] == "discontinuity": effects.gaps, want, last_id = True, e["next_n"], (0, 0)
                else:
                    assert s["n"] >= want and last_id < (last_id := tuple(map(int, s["id"].split("-"))))
                    effects.gaps, want = effects.gaps or s["n"] > want, s["n"] + 1
                    effects.take(e, s, entry)
                leaf, at, head = sha(b"\0" + line), size, sha(b"\0" + line).hex()
                while at & 1: leaf, at = sha(b"\1" + peaks.pop() + leaf), at >> 1
                sizes[size + 1], peaks, size = root_of([*peaks, leaf]), [*peaks, leaf], size + 1
            assert not tail or path == segments[-1]
        whole = True
    except (EOFError, *FAULTS) as error: found.add(4 if isinstance(error, EOFError) else 1)
    key = key or b"".join(p.read_bytes() for p in log.glob("origin.pub")).decode(errors="replace").strip()
    for at, of, what, body, lines in notes if key and (key in dict(keys) or not keys) else []:
        last = max([since for _, since in keys if since <= at], default=None)
        valid = [k for k, since in keys if since == last] + [k for k, since in keys if since < at][-1:] * (at == last)
        answers, others = ([signed(body, lines, k) for k, _ in keys if (k in valid) is here] for here in (True, False))
        if answers and all(answers) and of == origin: said.setdefault(at, set()).add(what)
        elif valid: found.add(1 if False in answers or all(answers) or any(others) else 4)
    end = min([since for _, since in keys if since > dict(keys).get(key, 0) and since not in said], default=2**53)
    for at, of in said.items():
        found |= {4} if at > end else {3} if len(of) > 1 or (whole and at > size) else {1} - {sizes.get(at, *of) in of}
    found |= {1 for at, raw in anchors.items() if whole and told.get(at, sha(raw).hex()) != sha(raw).hex()}
    found |= {4} if whole and start is not None and start not in told.keys() & {note[0] for note in notes} else set()
    for _, at, root, *_ in [Path(pin).read_text().split("\n")] if pin and (whole or not (segments or anchors)) else []:
        found |= {3} if int(at) > size or sizes.get(int(at), b64(root)) != b64(root) else set()
    found |= ({4} if not said or (whole and effects.gaps) else set()) | ({5} if whole and effects.broken() else set())
    return next((code for code in (1, 3, 5, 4) if code in found), 0)
