"""Invalid records of every topic, derived from the contract, so that new fields are covered.

The write side as well: events as any sender can build them, for a constructor checks nothing.

``python -m tests.faults.generated_records --records 1000000`` decodes that many, and prints as JSON how many of each
kind became what, by topic. It exits with 1 if anything but an event or Undecodable came of one, or the wrong of both.
"""

import argparse
import contextlib
import json
import math
import random
import re
import resource
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

import topics
from console.runs import run_log
from console.runs.bundle import BundleRecord
from dart_streams.bus.codec import MAX_HEADER_BYTES, Undecodable, Unencodable, decode, encode
from dart_streams.config import parse
from tests.faults.largest_records import largest_event
from topics import Topic
from topics.values import HEX, IN_A_NAME

BASES = 16
"""Random valid events of a topic, into which the faults are put."""
TEXT = 'aZ09 _/#.\u00e9\u4e16\U0001f310"\\\n\0'
LETTERS = {None: TEXT, HEX: "09af", IN_A_NAME: 'aZ09 _/#\u00e9\u4e16\U0001f310"\\'}
SLOW_S = 2.0
"""CPU seconds beyond which decoding one record counts as a fault."""
GROWTH_MB = 400
"""Growth of the process beyond which the memory of decoding counts as unbounded."""

IDS = (
    b"",
    b"\xff\xfe",
    b"difficulty/trajectories/0/999999999",
    b"difficulty/trajectories/0/" + b"9" * 20,
    b"budget/task-difficulty/0/" + b"9" * 5_000,
    b"groups/trajectories/0/-1",
    b"/" * 3_000,
)
"""Ids of records: of decisions that no agent made, and of no form at all."""
FAR = (999_999_999, 2**53, 2**63 - 1, 2**64, 10**19, 10**400)
"""Numbers far beyond those that dispatch gives out, or that 64 bits hold."""
FAR_IDS = {
    "order_id": tuple(f"g{order}" for n in FAR for order in (f"{n}/0/0", f"0/{n}/0", f"0/0/{n}", f"{n}/{n}/{n}")),
    "group_id": tuple(f"g{n}" for n in FAR),
}
"""Well-formed ids with such numbers: as texts no longer than a name may be."""
LARGE = parse({"policy": {"max_tokens": 32_768, "max_texts": 14}, "curation": {"budget": {"base": 64}}})
"""A deployment of long answers."""
LARGE_STEPS = 1_000
LONGEST_NAME = 512

EVENT, UNDECODABLE, EITHER = "event", "undecodable", "either"

Path = tuple[str | int, ...]


class Record(NamedTuple):
    """A record to decode; ``expected`` is what must come of it."""

    topic: Topic
    fault: str
    expected: str
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


class Hole(NamedTuple):
    """A valid event as JSON, cut around one place of type ``kind``; ``path`` is as in the type, 0 for a list's item."""

    before: bytes
    after: bytes
    kind: Any
    path: Path

    def filled(self, text: str) -> bytes:
        """Return the event with ``text`` in that place."""
        return self.before + text.encode() + self.after


def sample(kind: Any, rng: random.Random) -> Any:
    """Return a random value of a type within its bounds, often at one of them."""
    match kind:
        case msgspec.inspect.StructType(fields=fields):
            return {
                field.encode_name: sample(field.type, rng) for field in fields if field.required or rng.random() < 0.8
            }
        case msgspec.inspect.UnionType(types=types):
            return sample(rng.choice(types), rng)
        case msgspec.inspect.ListType(item_type=item):
            return [sample(item, rng) for _ in range(rng.choice((0, 1, 3)))]
        case msgspec.inspect.DictType(key_type=key, value_type=value):
            return {sample(key, rng): sample(value, rng) for _ in range(rng.choice((0, 1, 2)))}
        case msgspec.inspect.LiteralType(values=values):
            return rng.choice(values)
        case msgspec.inspect.IntType(ge=low, le=high):
            return rng.choice((low, high, rng.randint(low, high), min(high, max(low, 1))))
        case msgspec.inspect.FloatType(ge=low, le=high):
            return rng.choice((low, high, rng.uniform(low, high), min(high, max(low, 0.5))))
        case msgspec.inspect.StrType(min_length=least, max_length=most, pattern=pattern):
            length = rng.choice((least or 0, min(most, 12), min(most, 512)))
            text = "".join(rng.choices(LETTERS[pattern], k=length))
            return re.sub("^/|(?<=/)/", "_", text) if pattern == IN_A_NAME else text
        case msgspec.inspect.NoneType() | msgspec.inspect.BoolType():
            return rng.random() < 0.5 if isinstance(kind, msgspec.inspect.BoolType) else None
    raise TypeError(f"{kind}: this generator has no values of it: add some")


def places(kind: Any, value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield each place of a valid value, with its type; of a union the member that the value is of."""
    match kind:
        case msgspec.inspect.UnionType(types=types):
            is_null = value is None
            of_value = next(of for of in types if isinstance(of, msgspec.inspect.NoneType) == is_null)
            yield from places(of_value, value, path)
            return
        case msgspec.inspect.StructType(fields=fields):
            for field in fields:
                if field.encode_name in value:
                    yield from places(field.type, value[field.encode_name], (*path, field.encode_name))
        case msgspec.inspect.ListType(item_type=item):
            for first in value[:1]:
                yield from places(item, first, (*path, 0))
        case msgspec.inspect.DictType(value_type=of):
            for name in list(value)[:1]:
                yield from places(of, value[name], (*path, name))
    if path:
        yield path, kind


def hole(event: dict[str, Any], path: Path, kind: Any) -> Hole:
    """Cut an event around a place."""
    marker = "\1place\1"
    copy = json.loads(json.dumps(event))
    parent = copy
    for step in path[:-1]:
        parent = parent[step]
    parent[path[-1]] = marker
    before, _, after = json.dumps(copy).encode().partition(json.dumps(marker).encode())
    return Hole(before, after, kind, path)


def lethal(kind: Any, rng: random.Random) -> str:
    """Return JSON that this type must refuse for its value, by the bounds that it declares."""
    match kind:
        case msgspec.inspect.IntType(ge=low, le=high):
            return rng.choice((str(low - 1), str(high + 1), str(2**63), str(-(2**63)), "1" + "0" * 400, "7" * 5_000))
        case msgspec.inspect.FloatType(ge=low, le=high):
            return rng.choice(("1e400", "-1e400", "NaN", "Infinity", repr(low * 10 - 1), repr(high * 10 + 1)))
        case msgspec.inspect.StrType(min_length=least, max_length=most, pattern=pattern):
            wrong = [json.dumps("7" * (most + 1)), '"\\ud800"', '"\\x"', *(NO_NAMES if pattern else [])]
            return rng.choice([*wrong, '""'] if least else wrong)
        case msgspec.inspect.BoolType():
            return rng.choice(("1", '"true"', "[]"))
        case msgspec.inspect.LiteralType():
            return rng.choice(('"other"', '""', '"' + "x" * 70_000 + '"'))
    return rng.choice(("[[[", "{", '"unclosed'))


NO_NAMES = ['"/a"', '"a//b"', '"/../a"', '"a/.."', '"\\u0000"', '"a\\n"']
WRONG = ("null", "true", "-1", "1.5", '"text"', "[]", "{}", "[null]", '{"x":1}', "1e3", "[" * 3_000 + "]" * 3_000)
NESTED = b"[" * 200_000 + b"]" * 200_000


class Generator:
    """Generates records of one topic from a seed."""

    def __init__(self, topic: Topic, seed: int) -> None:
        self.topic = topic
        self.rng = random.Random(f"{seed} {topic.name}")
        kind = msgspec.inspect.type_info(topic.event)
        self.events = [sample(kind, self.rng) for _ in range(BASES)]
        self.values = [json.dumps(event).encode() for event in self.events]
        self.holes = [hole(event, *place) for event in self.events for place in places(kind, event)]
        self.required = [field.encode_name for field in kind.fields if field.required]  # type: ignore[attr-defined]
        self.schema: list[tuple[str, bytes | None]] = [("schema", topic.schema.encode()), ("id", b"1")]
        self.faults: dict[str, tuple[int, Callable[[], Record]]] = {
            "none": (10, lambda: self.record("none", EVENT, self.valid())),
            "lethal value": (40, self.lethal),
            "far ahead": (10, self.far_ahead),
            "wrong type": (20, self.wrong_type),
            "truncated": (10, self.truncated),
            "garbage": (10, self.garbage),
            "missing field": (5, self.missing),
            "null": (5, self.null),
            "headers": (10, self.headers),
            "huge key": (2, self.huge_key),
            "nested": (1, lambda: self.record("nested", UNDECODABLE, NESTED)),
        }
        self.names = list(self.faults)
        self.weights = [weight for weight, _ in self.faults.values()]

    def next(self) -> Record:
        """Return the next record; one in a thousand takes about as much as a record may, or more."""
        if self.rng.random() < 0.001:
            return self.rng.choice((self.at_the_limit, self.reachable))()
        return self.faults[self.rng.choices(self.names, self.weights)[0]][1]()

    def each(self) -> Iterator[Record]:
        """Yield one record of each kind."""
        yield from (make() for _, make in self.faults.values())
        yield self.at_the_limit()
        yield self.reachable()

    def record(self, fault: str, expected: str, value: bytes | None, **parts: Any) -> Record:
        """Return a record with a small key and honest headers."""
        return Record(self.topic, fault, expected, parts.get("key", b"k"), value, parts.get("headers", self.schema))

    def valid(self) -> bytes:
        """Return a valid event; the same one comes again and again."""
        return self.rng.choice(self.values)

    def lethal(self) -> Record:
        """Return a record with a value outside of what one field declares."""
        place = self.rng.choice(self.holes)
        return self.record("lethal value", UNDECODABLE, place.filled(lethal(place.kind, self.rng)))

    def far_ahead(self) -> Record:
        """Return a valid event with an id, a version or a count that is far ahead of all that were given out."""
        ids = [place for place in self.holes if place.path[-1] in FAR_IDS]
        numbers = [place for place in self.holes if isinstance(place.kind, msgspec.inspect.IntType)]
        place = self.rng.choice(ids or numbers)
        if place.path[-1] not in FAR_IDS:
            return self.record("far ahead", EVENT, place.filled(str(place.kind.le)))
        texts = [text for text in FAR_IDS[str(place.path[-1])] if len(text) <= LONGEST_NAME]
        return self.record("far ahead", EVENT, place.filled(json.dumps(self.rng.choice(texts))))

    def wrong_type(self) -> Record:
        """Return a record with JSON of any type in one place; it may be of the right one."""
        return self.record("wrong type", EITHER, self.rng.choice(self.holes).filled(self.rng.choice(WRONG)))

    def truncated(self) -> Record:
        """Return a record whose end is missing."""
        value = self.valid()
        return self.record("truncated", UNDECODABLE, value[: self.rng.randrange(len(value))])

    def garbage(self) -> Record:
        """Return random bytes, or a valid event with some of its bytes changed."""
        if self.rng.random() < 0.5:
            return self.record("garbage", UNDECODABLE, b"\xff" + self.rng.randbytes(self.rng.randrange(200)))
        value = bytearray(self.valid())
        for _ in range(3):
            value[self.rng.randrange(len(value))] = self.rng.randrange(256)
        return self.record("garbage", EITHER, bytes(value))

    def missing(self) -> Record:
        """Return a record that lacks a field that must be there."""
        event = {**self.rng.choice(self.events)}
        del event[self.rng.choice(self.required)]
        return self.record("missing field", UNDECODABLE, json.dumps(event).encode())

    def null(self) -> Record:
        """Return a record without a value, and perhaps without a key."""
        # A broker refuses a compacted record without a key.
        keys = (b"", b"k") if self.topic.cleanup == "compact" else (None, b"", b"k")
        return self.record("null", UNDECODABLE, None, key=self.rng.choice(keys))

    def headers(self) -> Record:
        """Return a valid event under absent, null, foreign or enormous headers."""
        version, name = self.topic.version, self.topic.name.encode()
        expected, headers = self.rng.choice(
            [
                (EVENT, []),
                (EVENT, [("schema", None), ("id", None), ("x", None)]),
                (EVENT, [*self.schema, ("traceparent", b"\xff\xfe"), ("", b"")]),
                *((EVENT, [self.schema[0], ("id", identity)]) for identity in IDS),
                (UNDECODABLE, [("schema", b"")]),
                (UNDECODABLE, [("schema", b"\xff" * 50)]),
                (UNDECODABLE, [("schema", b"another/1")]),
                (UNDECODABLE, [("schema", name + b"/%d" % (version + 1))]),
                (UNDECODABLE, [("schema", name + b"/" + b"9" * 6_000)]),
                (UNDECODABLE, [*self.schema, ("x", bytes(MAX_HEADER_BYTES))]),
                (UNDECODABLE, [(f"x{number}", b"") for number in range(MAX_HEADER_BYTES)]),
            ]
        )
        return self.record("headers", expected, self.valid(), headers=headers)

    def huge_key(self) -> Record:
        """Return a valid event under a key larger than 64 KiB, or with a field that is."""
        if self.rng.random() < 0.5:
            return self.record("huge key", EVENT, self.valid(), key=bytes(70_000))
        event = {**self.rng.choice(self.events), self.topic.key: "k" * 70_000}
        return self.record("huge key", UNDECODABLE, json.dumps(event).encode())

    def at_the_limit(self) -> Record:
        """Return a record of about the largest size, or of many times that, as one that was compressed may have."""
        limit = self.topic.max_message_bytes
        size = self.rng.choice((limit - 100, limit, limit + 1, 2 * limit))
        if self.rng.random() < 0.5:
            return self.record("at the limit", UNDECODABLE, b"\x7b" * size)
        value = self.valid()
        expected = EVENT if size <= limit else UNDECODABLE
        return self.record("at the limit", expected, value + b" " * (size - len(value)))

    def reachable(self) -> Record:
        """Return the largest record that an honest producer of a large deployment sends."""
        event = largest_event(self.topic.name, LARGE, max_steps=LARGE_STEPS)
        return self.record("reachable", EVENT, msgspec.json.encode(event))


class FloatOfItsOwn(float):
    """As numpy's: no encoder of JSON knows it."""


UNFIT: tuple[Any, ...] = (
    *(math.nan, math.inf, -math.inf, -1, 1.7, 10**400, 2**63, True, None, "", "\ud83d", "7" * (2**20 + 1), b"bytes"),
    *(FloatOfItsOwn(0.5), object(), 1j, [], [None], {}, {"\ud83d": 1}, {1: 2}, (1,), {1}, msgspec.UNSET, Hole, BASES),
)
"""What a faulty sender may have put anywhere."""


def with_value(value: Any, path: Path, unfit: Any) -> Any:
    """Return an event, or a part of one, with another value at a path."""
    if not path:
        return unfit
    name, *rest = path
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.replace(value, **{str(name): with_value(getattr(value, str(name)), tuple(rest), unfit)})
    changed = value.copy()
    changed[name] = with_value(value[name], tuple(rest), unfit)
    return changed


def built(topic: Topic, seed: int, events: int) -> Iterator[tuple[Path, msgspec.Struct]]:
    """Yield events of a topic, each with a value in one place that may not be there, and the place."""
    generator = Generator(topic, seed)
    bases = [msgspec.convert(event, topic.event) for event in generator.events]
    kind = msgspec.inspect.type_info(topic.event)
    where = [
        (base, path) for base, event in zip(bases, generator.events, strict=True) for path, _ in places(kind, event)
    ]
    for _ in range(events):
        base, path = generator.rng.choice(where)
        yield path, with_value(base, path, generator.rng.choice(UNFIT))


def sent_wrongly(topic: Topic, event: msgspec.Struct) -> str:
    """Return what is wrong with how an event is encoded: neither refused nor read as it was sent; empty if nothing."""
    try:
        record = encode(topic, event)
    except Unencodable:
        return ""
    except Exception as error:  # noqa: BLE001 - any other one is what this looks for
        return repr(error)
    try:
        read = decode(topic, record.value, record.headers)
    except Undecodable as error:
        return f"its readers refuse it: {error}"
    return "" if as_json(read) == as_json(event) else f"it is read as {read}"


def as_json(event: msgspec.Struct) -> Any:
    """Return an event as JSON has it, in which all sequences are lists, but with NaN."""
    return json.loads(json.dumps(msgspec.to_builtins(event)))


class Outcome(NamedTuple):
    """The outcome of a record: ``event``, ``undecodable`` or another exception's name, and the CPU seconds."""

    result: str
    seconds: float


def outcome_of(record: Record) -> Outcome:
    """Decode a record; an event must also be encoded again, as whoever passes it on does.

    The history's readers decode less of some topics: they may take what others refuse, and raise nothing else.
    """
    started = time.process_time()
    try:
        encode(record.topic, decode(record.topic, record.value, record.headers))  # type: ignore[arg-type]
        result = EVENT
    except Undecodable:
        result = UNDECODABLE
    except Exception as error:  # noqa: BLE001 - any other one is what this looks for
        result = type(error).__name__
    with contextlib.suppress(Undecodable):
        run_log.event_of(record.topic.name, BundleRecord(0, 0, 0, record.key, record.value, record.headers))
    return Outcome(result, time.process_time() - started)


def as_expected(record: Record, outcome: Outcome) -> bool:
    """Return whether a record had the expected outcome in bounded time."""
    allowed = (EVENT, UNDECODABLE) if record.expected == EITHER else (record.expected,)
    return outcome.result in allowed and outcome.seconds <= SLOW_S


def generated(records: int, seed: int) -> Iterator[Record]:
    """Yield records of all topics in turn."""
    generators = [Generator(topic, seed) for topic in topics.ALL]
    for number in range(records):
        yield generators[number % len(generators)].next()


def measure(records: int, seed: int) -> dict[str, Any]:
    """Decode records; return the counts by topic, fault and outcome, and what was not as expected."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    outcomes: Counter[str] = Counter()
    wrong: list[str] = []
    slowest, before_mb = 0.0, peak_mb()
    for record in generated(records, seed):
        outcome = outcome_of(record)
        counts[record.topic.name][f"{record.fault}: {outcome.result}"] += 1
        outcomes[outcome.result] += 1
        slowest = max(slowest, outcome.seconds)
        if not as_expected(record, outcome):
            wrong.append(f"{record.topic.name}, {record.fault}: {outcome} of {(record.value or b'')[:300]!r}")
    grown_mb = peak_mb() - before_mb
    return {
        "records": records,
        "seed": seed,
        "outcomes": dict(outcomes),
        "by_topic": {name: dict(sorted(of_topic.items())) for name, of_topic in counts.items()},
        "slowest_ms": round(slowest * 1000, 1),
        "grown_mb": round(grown_mb, 1),
        "wrong": len(wrong) + (grown_mb > GROWTH_MB),
        "examples": wrong[:20],
    }


def measure_sent(events: int, seed: int) -> dict[str, Any]:
    """Encode events that a faulty sender might build; return what was wrong."""
    wrong = [
        f"{topic.name}, with another value at {path}: {fault[:300]}"
        for topic in topics.ALL
        for path, event in built(topic, seed, events // len(topics.ALL))
        if (fault := sent_wrongly(topic, event))
    ]
    return {"events": events, "wrong": len(wrong), "examples": wrong[:20]}


def peak_mb() -> float:
    """Return the largest size that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> int:
    """Measure, print, and return 1 if something was wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    figures = measure(arguments.records, arguments.seed)
    figures["sent"] = measure_sent(arguments.records // 10, arguments.seed)
    sys.stdout.write(json.dumps(figures, indent=2) + "\n")
    return int(figures["wrong"] + figures["sent"]["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main())
