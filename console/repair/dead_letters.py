"""Lists a deployment's dead letters, from its ``<topic>.dlq`` topics, and redrives them to the topics they came from.

Stubs (:mod:`dart_streams.bus.dead_letters`) lack the record, so they are listed and not redriven. A redriven record
carries its letter's place in a header. A second redrive reads the target topic from the letter's time on, and skips
letters that it finds there.
"""

import contextlib
from collections import Counter
from typing import Any

import msgspec
from kafka import TopicPartition
from kafka.errors import KafkaError, KafkaTimeoutError

from console.runs.bundle import BundleRecord
from console.runs.run_log import headers_of, present_records
from dart_streams.bus import sync_clients
from dart_streams.bus.dead_letters import AT_MS, ERROR, KEY_SIZE, OFFSET, PARTITION, SHA256, SIZE, STUB, TOPIC, TRIES
from dart_streams.bus.topology import DEAD_LETTERS, find_topic
from dart_streams.config import Bus
from dart_streams.errors import ServiceUnavailable, UserError
from topics import ALL, Topic

REDRIVEN = "dlq-redriven"
SEND_TIMEOUT_S = 30.0
NOT_SENT = "not sent"
PARTITION_DIGITS = 9
SHOWN_CHARACTERS = 2000


class DeadLetterSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of one topic's dead letters; ``reasons`` counts them by the beginning of the error."""

    topic: str
    letters: int
    stubs: int
    newest_ms: int
    reasons: dict[str, int]


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter as text; ``stub`` describes the record that a stub lacks."""

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
    """Return the topic of a name or of its dead-letter topic's; raise :class:`UserError` if there is none."""
    return find_topic(name.removesuffix(DEAD_LETTERS))


def summarize_letters(bus: Bus) -> list[DeadLetterSummary]:
    """Return a row for each topic that has dead letters."""
    rows = []
    for topic in topics_with_letters(bus):
        if letters := list(present_records(bus, dead_letter_topic(topic))):
            reasons = Counter(header_text(letter, ERROR).partition(":")[0][:80] for letter in letters)
            rows.append(
                DeadLetterSummary(
                    topic=topic.name,
                    letters=len(letters),
                    stubs=sum(STUB in letter_headers(letter) for letter in letters),
                    newest_ms=max(letter.at_ms for letter in letters),
                    reasons=dict(reasons.most_common()),
                )
            )
    return rows


def topics_with_letters(bus: Bus) -> list[Topic]:
    """Return the topics that have dead letters, or had some."""
    with contextlib.closing(sync_clients.create_consumer(bus, "dead-letters")) as client:
        present = sync_clients.ask_until_answered(client.topics, bus)
        places = {
            TopicPartition(name, number): topic
            for topic in ALL
            if (name := bus.prefix + dead_letter_topic(topic).name) in present
            for number in client.partitions_for_topic(name)
        }
        ends = client.end_offsets([*places]) if places else {}
    return [*dict.fromkeys(topic for place, topic in places.items() if ends[place])]


def read_letters(bus: Bus, topic: Topic, place: str = "") -> list[DeadLetter]:
    """Return a topic's dead letters, or the one at ``place`` (``partition@offset``)."""
    return [describe_letter(letter) for letter in choose_letters(bus, topic, place)]


def describe_letter(letter: BundleRecord) -> DeadLetter:
    """Return a letter as text."""
    stub = ""
    if STUB in (headers := letter_headers(letter)):
        size, sha256, key_size = (header_text(letter, name) for name in (SIZE, SHA256, KEY_SIZE))
        value = f"{size} bytes, sha256 {sha256}" if SIZE in headers else "no value"
        key = f"a key of {key_size} bytes" if KEY_SIZE in headers else "no key"
        stub = f"{header_text(letter, STUB)}; the record had {value}, and {key}"
    return DeadLetter(
        place=place_of(letter),
        came_from=origin_of(letter),
        tries=header_text(letter, TRIES),
        at_ms=header_text(letter, AT_MS),
        why=header_text(letter, ERROR),
        key=(letter.key or b"").decode(errors="replace"),
        value=(letter.value or b"").decode(errors="replace")[:SHOWN_CHARACTERS],
        stub=stub,
    )


def letters_about(bus: Bus, identity: str) -> list[DeadLetter]:
    """Return the dead letters of a place (``observations[0]@17``), or whose record names an id."""
    place, named = bus.prefix + identity.removeprefix(bus.prefix), identity.encode()
    return [
        describe_letter(letter)
        for topic in topics_with_letters(bus)
        for letter in present_records(bus, dead_letter_topic(topic))
        if origin_of(letter) == place or letter.key == named or b'"%s"' % named in (letter.value or b"")
    ]


def origin_of(letter: BundleRecord) -> str:
    """Return the place from which a letter's record was read."""
    return f"{header_text(letter, TOPIC)}[{header_text(letter, PARTITION)}]@{header_text(letter, OFFSET)}"


def redrive(bus: Bus, topic: Topic, place: str = "") -> list[RedriveResult]:
    """Send a topic's dead letters, or the one at ``place``, back to the topic; skip stubs and letters sent before.

    Letters that the broker rejects, or that came from another topic, are not sent, and their outcome says why. Raises
    UserError if there is no such letter, and ServiceUnavailable if the broker does not answer.
    """
    if not (letters := choose_letters(bus, topic, place)):
        return []
    to = bus.prefix + topic.name
    # Kafka stores -1 for a record without a time.
    records = present_records(bus, topic, since_ms=max(0, min(letter.at_ms for letter in letters)))
    sent_before = {header_text(record, REDRIVEN) for record in records}
    producer = sync_clients.create_producer(bus, "redrive")
    results = []
    try:
        for letter in letters:
            outcome = skip_reason(letter, sent_before, to) or send_letter(producer, to, letter)
            results.append(RedriveResult(place=place_of(letter), to=to, outcome=outcome))
    except KafkaTimeoutError as error:
        raise ServiceUnavailable(
            f"the broker at {bus.servers} accepted no letter for {SEND_TIMEOUT_S:g} s ({error}); {len(results)} of "
            f"{len(letters)} are done: redrive them again later, letters that were sent are skipped"
        ) from None
    finally:
        producer.close(timeout=SEND_TIMEOUT_S)
    return results


def skip_reason(letter: BundleRecord, sent_before: set[str], to: str) -> str:
    """Return why a letter is not sent, empty if it is to be; ``sent_before`` has places of letters."""
    if (origin := header_text(letter, TOPIC)) not in ("", to):
        return f"{NOT_SENT}: it came from {origin}; is this the right bus.prefix?"
    if STUB in letter_headers(letter):
        return f"a stub, not sent: the record is at {origin_of(letter)}, as long as that topic keeps it"
    return "sent before" if place_of(letter) in sent_before else ""


def send_letter(producer: Any, to: str, letter: BundleRecord) -> str:
    """Send a letter to the partition it came from; return its new place, or why it was rejected.

    Raises ``KafkaTimeoutError`` if the broker does not answer.
    """
    headers = [(name, value) for name, value in letter.headers if not name.startswith("dlq-")]
    text = header_text(letter, PARTITION)
    is_number = text.isascii() and text.isdecimal() and len(text) <= PARTITION_DIGITS
    partition = int(text) if is_number and int(text) in (producer.partitions_for(to) or ()) else None
    try:
        future = producer.send(
            to,
            value=letter.value,
            key=letter.key,
            headers=[*headers, (REDRIVEN, place_of(letter).encode())],
            partition=partition,
        )
        sent = future.get(timeout=SEND_TIMEOUT_S)
    except KafkaTimeoutError:
        raise
    except (KafkaError, ValueError, TypeError, AssertionError) as error:
        return f"{NOT_SENT}: {error}"
    return f"sent as {to}[{sent.partition}]@{sent.offset}"


def choose_letters(bus: Bus, topic: Topic, place: str) -> list[BundleRecord]:
    """Return all letters of a topic, or the one at ``place``; raise :class:`UserError` if there is none there."""
    letters = list(present_records(bus, dead_letter_topic(topic))) if topic in topics_with_letters(bus) else []
    if chosen := [letter for letter in letters if place in ("", place_of(letter))]:
        return chosen
    if place:
        last = ", ".join(place_of(letter) for letter in letters[-5:]) or "none at all"
        raise UserError(f"no dead letter {place!r} of {topic.name}: there are {last}")
    return []


def dead_letter_topic(topic: Topic) -> Topic:
    """Return the dead-letter topic of a topic."""
    return msgspec.structs.replace(topic, name=topic.name + DEAD_LETTERS)


def letter_headers(letter: BundleRecord) -> dict[str, bytes]:
    """Return a letter's headers; the last of a name belongs to the newest failure."""
    return dict(headers_of(letter))


def header_text(letter: BundleRecord, name: str) -> str:
    """Return the text of a header, empty without one."""
    return letter_headers(letter).get(name, b"").decode(errors="replace")


def place_of(letter: BundleRecord) -> str:
    """Return a letter's place among the dead letters of its topic."""
    return f"{letter.partition}@{letter.offset}"
