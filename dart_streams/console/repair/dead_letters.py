"""Dead letters: lists a deployment's ``<topic>.dlq`` topics, and redrives letters to the topics they came from.

A stub (:mod:`dart_streams.bus.dead_letters`) is shown as what it is, and not redriven: the record is not in it.
A redriven record has its place among the dead letters in a header, so a second redrive is recognized: the target topic
is read from the time of the letter on.
"""

import contextlib
from collections import Counter
from typing import Any

import msgspec
from kafka import TopicPartition
from kafka.errors import KafkaError, KafkaTimeoutError

from dart_streams.bus import sync_clients
from dart_streams.bus.dead_letters import AT_MS, ERROR, KEY_SIZE, OFFSET, PARTITION, SHA256, SIZE, STUB, TOPIC, TRIES
from dart_streams.bus.topology import DEAD_LETTERS, find_topic
from dart_streams.config import Bus
from dart_streams.console.runs.bundle import BundleRecord
from dart_streams.console.runs.run_log import headers_of, present_records
from dart_streams.errors import ServiceUnavailable, UserError
from topics import ALL, Topic

REDRIVEN = "dlq-redriven"
SEND_S = 30.0
NOT_SENT = "not sent"
DIGITS = 10
"""Of a partition's number."""
LONGEST = 2000
"""Characters of a value that are shown."""


class DeadLetterSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The dead letters of one topic, stubs among them; ``reasons`` counts them by the beginning of the error."""

    topic: str
    letters: int
    stubs: int
    newest_ms: int
    reasons: dict[str, int]


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter as text: its place, its origin, the reason, and the record, or what a stub has of it."""

    place: str
    came_from: str
    tries: str
    at_ms: str
    why: str
    key: str
    value: str
    stub: str = ""


class RedriveResult(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a redrive of one letter."""

    place: str
    to: str
    outcome: str


def topic_of(name: str) -> Topic:
    """Return a topic by its name, or its dead-letter topic's; raise :class:`UserError` if there is none such."""
    return find_topic(name.removesuffix(DEAD_LETTERS))


def summarize_letters(bus: Bus) -> list[DeadLetterSummary]:
    """Return a row for each topic that has dead letters."""
    found = []
    for topic in with_letters(bus):
        if letters := list(present_records(bus, dead_letter_topic(topic))):
            reasons = Counter(header_text(letter_headers(letter), ERROR).partition(":")[0][:80] for letter in letters)
            found.append(
                DeadLetterSummary(
                    topic=topic.name,
                    letters=len(letters),
                    stubs=sum(STUB in letter_headers(letter) for letter in letters),
                    newest_ms=max(letter.at_ms for letter in letters),
                    reasons=dict(reasons.most_common()),
                )
            )
    return found


def with_letters(bus: Bus) -> list[Topic]:
    """Return the topics that have dead letters, or had some."""
    with contextlib.closing(sync_clients.create_consumer(bus, "dead-letters")) as client:
        there = sync_clients.ask_until_answered(client.topics, bus)
        places = {
            TopicPartition(name, number): topic
            for topic in ALL
            if (name := bus.prefix + dead_letter_topic(topic).name) in there
            for number in client.partitions_for_topic(name)
        }
        ends = client.end_offsets([*places]) if places else {}
    return [*dict.fromkeys(topic for place, topic in places.items() if ends[place])]


def read_letters(bus: Bus, topic: Topic, place: str = "") -> list[DeadLetter]:
    """Return a topic's dead letters, or the one at ``place`` (``partition@offset``)."""
    return [describe_letter(letter) for letter in choose_letters(bus, topic, place)]


def describe_letter(letter: BundleRecord) -> DeadLetter:
    """Return a letter as text."""
    known = letter_headers(letter)
    return DeadLetter(
        place=place_of(letter),
        came_from=origin_of(known),
        tries=header_text(known, TRIES),
        at_ms=header_text(known, AT_MS),
        why=header_text(known, ERROR),
        key=(letter.key or b"").decode(errors="replace"),
        value=(letter.value or b"").decode(errors="replace")[:LONGEST],
        stub=stub_text(known) if STUB in known else "",
    )


def origin_of(known: dict[str, bytes]) -> str:
    """Return where the record of a letter with these headers was read."""
    return f"{header_text(known, TOPIC)}[{header_text(known, PARTITION)}]@{header_text(known, OFFSET)}"


def stub_text(known: dict[str, bytes]) -> str:
    """Return what a stub says of its record."""
    value = f"{header_text(known, SIZE)} bytes, sha256 {header_text(known, SHA256)}" if SIZE in known else "no value"
    key = f"a key of {header_text(known, KEY_SIZE)} bytes" if KEY_SIZE in known else "no key"
    return f"{header_text(known, STUB)}; the record had {value}, and {key}"


def redrive(bus: Bus, topic: Topic, place: str = "") -> list[RedriveResult]:
    """Send a topic's dead letters, or the one at ``place``, back to the topic; stubs and those sent before are skipped.

    A letter that the broker rejects, or that came from another topic, is not sent and says why.

    Raises
    ------
    UserError
        If there is no such letter.
    ServiceUnavailable
        If the broker does not answer; what was sent until then is skipped when it is done again.
    """
    if not (letters := choose_letters(bus, topic, place)):
        return []
    to = bus.prefix + topic.name
    # A client may have given a record no time, which Kafka has as -1.
    records = present_records(bus, topic, since_ms=max(0, min(letter.at_ms for letter in letters)))
    before = {header_text(letter_headers(record), REDRIVEN) for record in records}
    producer = sync_clients.create_producer(bus, "redrive")
    result = []
    try:
        for letter in letters:
            outcome = skip_reason(letter, before, to) or send_letter(producer, to, letter)
            result.append(RedriveResult(place=place_of(letter), to=to, outcome=outcome))
    except KafkaTimeoutError as error:
        raise ServiceUnavailable(
            f"the broker at {bus.servers} takes no letter for {SEND_S:g} s ({error}); {len(result)} of {len(letters)} "
            "are done: redrive them again later, those that were sent are skipped"
        ) from None
    finally:
        producer.close(timeout=SEND_S)
    return result


def skip_reason(letter: BundleRecord, before: set[str], to: str) -> str:
    """Return why a letter is not sent, empty if it is to be; ``before`` has the places of those sent before."""
    known = letter_headers(letter)
    if (origin := header_text(known, TOPIC)) not in ("", to):
        return f"{NOT_SENT}: it came from {origin}; is this the right bus.prefix?"
    if STUB in known:
        return f"a stub, not sent: the record is at {origin_of(known)}, as long as that topic keeps it"
    return "sent before" if place_of(letter) in before else ""


def send_letter(producer: Any, to: str, letter: BundleRecord) -> str:
    """Send one letter with its own headers to the partition it came from; return where it is, or why it is not.

    Raises ``KafkaTimeoutError`` if the broker does not answer.
    """
    own = [(name, value) for name, value in letter.headers if not name.startswith("dlq-")]
    partition = header_text(letter_headers(letter), PARTITION)
    known = producer.partitions_for(to) or set()
    wanted = int(partition) if partition.isascii() and partition.isdecimal() and len(partition) < DIGITS else None
    try:
        future = producer.send(
            to,
            value=letter.value,
            key=letter.key,
            headers=[*own, (REDRIVEN, place_of(letter).encode())],
            partition=wanted if wanted in known else None,
        )
        done = future.get(timeout=SEND_S)
    except KafkaTimeoutError:
        raise
    except (KafkaError, ValueError, TypeError, AssertionError) as error:
        return f"{NOT_SENT}: {error}"
    return f"sent as {to}[{done.partition}]@{done.offset}"


def choose_letters(bus: Bus, topic: Topic, place: str) -> list[BundleRecord]:
    """Return all letters of a topic, or the one at ``place``; raise :class:`UserError` if there is none there."""
    letters = list(present_records(bus, dead_letter_topic(topic))) if topic in with_letters(bus) else []
    if not place:
        return letters
    found = [letter for letter in letters if place_of(letter) == place]
    if not found:
        there = ", ".join(place_of(letter) for letter in letters[-5:]) or "none at all"
        raise UserError(f"no dead letter {place!r} of {topic.name}: there are {there}")
    return found


def dead_letter_topic(topic: Topic) -> Topic:
    """Return the dead-letter twin of a topic."""
    return msgspec.structs.replace(topic, name=topic.name + DEAD_LETTERS)


def letter_headers(letter: BundleRecord) -> dict[str, bytes]:
    """Return a letter's headers; of those called the same the last, which is of the newest failure."""
    return dict(headers_of(letter))


def header_text(known: dict[str, bytes], name: str) -> str:
    """Return a header's text, empty if it is not there."""
    return known.get(name, b"").decode(errors="replace")


def place_of(letter: BundleRecord) -> str:
    """Return a letter's place among the dead letters of its topic."""
    return f"{letter.partition}@{letter.offset}"
