"""The kind, unit, meaning and attributes of every instrument, by process. ``docs/metrics.md`` is made of it.

Units are of UCUM, as OpenTelemetry asks: ``ms``, ``s``, ``1`` for a share, and ``{episode}`` for a count of episodes.
A name has its unit as a suffix where it is a time (``_ms``).
"""

from typing import Literal, NamedTuple

from dart_streams.telemetry import names

Kind = Literal["counter", "gauge", "histogram"]


class Instrument(NamedTuple):
    """An instrument; ``meaning`` is its description, and ``attributes`` distinguish its series."""

    name: str
    kind: Kind
    unit: str
    meaning: str
    attributes: tuple[str, ...] = ()


ENVIRONMENT = (
    Instrument(names.ENV_SLOTS, "gauge", "{slot}", "Slots of the process."),
    Instrument(names.ENV_SLOTS_BUSY, "gauge", "{slot}", "Slots with an episode."),
    Instrument(names.ENV_SLOT_MS, "counter", "ms", "Slot time by state, such as idle or wait.", ("state",)),
    Instrument(names.ENV_EPISODES, "counter", "{episode}", "Finished episodes.", ("outcome", "purpose", "page")),
    Instrument(names.ENV_STEPS, "counter", "{action}", "Executed actions.", ("purpose",)),
    Instrument(names.ENV_RESET_MS, "histogram", "ms", "Reset of an environment, from the order to the first screen."),
    Instrument(names.ENV_EXECUTE_MS, "histogram", "ms", "Execution of one action, its screenshot included."),
    Instrument(names.ENV_EVALUATE_MS, "histogram", "ms", "Evaluation of an episode's end."),
    Instrument(names.ENV_COMPRESS_MS, "histogram", "ms", "Compression of a screenshot (`env.screenshots`)."),
    Instrument(names.ENV_BLOB_WRITE_MS, "histogram", "ms", "Write of a screenshot to the store."),
    Instrument(names.ENV_REQUEST_MS, "histogram", "ms", "Round trip of an answered action request."),
    Instrument(names.ENV_OVERHEAD_MS, "histogram", "ms", "Round trip less the reply's time in queue and generation."),
    Instrument(names.ENV_REQUESTS_SENT, "counter", "{request}", "Published action requests, repeats included."),
    Instrument(names.ENV_REQUESTS_ANSWERED, "counter", "{request}", "Requests whose reply was used."),
    Instrument(names.ENV_REQUESTS_TIMED_OUT, "counter", "{request}", "Requests without a reply in time."),
    Instrument(names.ENV_REQUESTS_ABANDONED, "counter", "{request}", "Requests whose episode ended before the reply."),
    Instrument(names.ENV_ANSWERS_WRONG, "counter", "{fault}", "Faults of answers.", ("kind", "treated")),
    Instrument(names.ENV_REPLIES_IGNORED, "counter", "{reply}", "Replies to abandoned or timed-out requests."),
    Instrument(names.ENV_BROWSER_RESTARTS, "counter", "{restart}", "Browsers started again after a crash."),
    Instrument(names.ENV_BROWSER_MEMORY, "counter", "{process}", "Browser processes killed for memory.", ("kind",)),
    Instrument(names.ENV_DOCUMENTS_LOADED, "counter", "{reset}", "Resets that loaded the document."),
    Instrument(names.ENV_PROBLEMS_RESTARTED, "counter", "{reset}", "Resets that reused a loaded document."),
    Instrument(names.ENV_SANDBOXES_STARTED, "counter", "{sandbox}", "Started desktops, replacements included."),
    Instrument(names.ENV_DESKTOPS_PREPARED, "counter", "{episode}", "Episodes that got a desktop prepared for them."),
    Instrument(names.ENV_DESKTOPS_RESTLESS, "counter", "{screen}", "Desktop screens taken before they were stable."),
    Instrument(names.ENV_RESTS, "counter", "{rest}", "Rests after failed resets, of a slot, task or host.", ("kind",)),
    Instrument(names.ENV_ORDERS_SET_ASIDE, "counter", "{order}", "Orders that crashed their worker repeatedly."),
    Instrument(names.ENV_FAULT_SCORE, "gauge", "1", "Moving share of this host's resets that fail."),
)
ROLLOUT = (
    Instrument(names.ROLLOUT_IN_FLIGHT, "gauge", "{request}", "Requests being generated."),
    Instrument(names.ROLLOUT_QUEUE_MS, "histogram", "ms", "Wait of a request until its generation starts."),
    Instrument(names.ROLLOUT_GENERATE_MS, "histogram", "ms", "Generation of one answer."),
    Instrument(names.ROLLOUT_BLOB_READ_MS, "histogram", "ms", "Read of a prompt's screenshots from the store."),
    Instrument(names.ROLLOUT_TOKENS, "counter", "{token}", "Generated tokens."),
    Instrument(names.ROLLOUT_PROMPT_TOKENS, "counter", "{token}", "Prompt tokens, computed or cached.", ("source",)),
    Instrument(names.ROLLOUT_SCREENSHOTS, "counter", "{screen}", "Screenshots that were prepared for the model."),
    Instrument(names.ROLLOUT_ENCODINGS, "counter", "{screen}", "Screenshots that the vision tower computed."),
    Instrument(
        names.ROLLOUT_RECALLED,
        "counter",
        "{answer}",
        "Answers of the history in prompts: same tokens, other tokens, or rewritten.",
        ("tokens",),
    ),
    Instrument(names.ROLLOUT_REQUESTS, "counter", "{request}", "Requests answered, failed or late.", ("result",)),
    Instrument(names.ROLLOUT_VERSION, "gauge", "{version}", "Number of the served weight version."),
    Instrument(names.ROLLOUT_SWITCH_PAUSE_MS, "histogram", "ms", "Pause of generation for a switch of weights."),
    Instrument(names.ROLLOUT_SWITCH_LOAD_MS, "histogram", "ms", "Fetch, check and load of a weight version."),
    Instrument(names.ROLLOUT_SWITCHES, "counter", "{switch}", "Weight switches served or failed.", ("result",)),
)
RECORDER = (
    Instrument(names.RECORDER_STEPS, "counter", "{step}", "Written rows of steps."),
    Instrument(names.RECORDER_TRAJECTORIES, "counter", "{trajectory}", "Announced trajectories.", ("outcome",)),
    Instrument(names.RECORDER_WRITE_MS, "histogram", "ms", "Write of one step's row to the store."),
)
CURATOR = (
    Instrument(names.CURATOR_EVENTS, "counter", "{event}", "Applied inputs.", ("agent",)),
    Instrument(names.CURATOR_DECISIONS, "counter", "{decision}", "Decisions.", ("agent", "kind")),
    Instrument(names.CURATOR_GROUPS, "counter", "{group}", "Fates of groups and their members.", ("fate",)),
    Instrument(names.CURATOR_FEEDBACK, "counter", "{feedback}", "Feedback by what became of it.", ("fate",)),
    Instrument(names.CURATOR_LOST, "counter", "{order}", "Orders that ended as lost."),
    Instrument(names.CURATOR_APPLY_MS, "histogram", "ms", "One call of a reducer.", ("agent",)),
)
TRAINER = (
    Instrument(names.TRAINER_STEP, "gauge", "{step}", "Optimizer steps made."),
    Instrument(names.TRAINER_STEP_MS, "histogram", "ms", "One optimizer step, without the wait for data."),
    Instrument(names.TRAINER_WAIT_MS, "histogram", "ms", "Wait for curated groups before a step."),
    Instrument(names.TRAINER_READ_MS, "histogram", "ms", "Read of a batch's steps and screenshots from the store."),
    Instrument(names.TRAINER_PUBLISH_MS, "histogram", "ms", "Write and announcement of a weight version."),
    Instrument(names.TRAINER_CHECKPOINT_MS, "histogram", "ms", "Write of one checkpoint."),
    Instrument(names.TRAINER_GROUPS, "counter", "{group}", "Curated groups taken."),
    Instrument(names.TRAINER_STALENESS, "histogram", "{version}", "Trained version less the acting one, a trajectory."),
    Instrument(names.TRAINER_FIGURE, "gauge", "1", "Metric of the newest optimizer step, in its unit.", ("name",)),
    Instrument(names.TRAINER_DROPPED, "counter", "{item}", "Data left out: stale groups, other steps.", ("why",)),
    Instrument(names.TRAINER_MISMATCH, "histogram", "{nat}", "Gap of log-probabilities, engine to trainer."),
)
MONITOR = (
    Instrument(names.MONITOR_LAG, "gauge", "{record}", "Lag of a consumer group.", ("group", "topic")),
    Instrument(names.MONITOR_SILENT_S, "gauge", "s", "Time since the newest record of a topic.", ("topic",)),
    Instrument(names.MONITOR_STALLS, "counter", "{stall}", "Reported stalls of the run.", ("topic",)),
)
EVERY_PROCESS = (
    Instrument(names.DEAD_LETTERS, "counter", "{record}", "Records sent to dead-letter topics.", ("topic",)),
    Instrument(names.SPANS_DROPPED, "counter", "{span}", "Spans lost to a full queue or a failed export."),
)
GROUPS: dict[str, tuple[Instrument, ...]] = {
    "Environment workers": ENVIRONMENT,
    "Rollout workers": ROLLOUT,
    "Recorder": RECORDER,
    "Curator": CURATOR,
    "Trainer": TRAINER,
    "Monitor": MONITOR,
    "Every process": EVERY_PROCESS,
}
BY_NAME = {instrument.name: instrument for group in GROUPS.values() for instrument in group}

SHORT_BOUNDS = (0, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000)
LONG_BOUNDS = (10_000, 20_000, 30_000, 45_000, 60_000, 90_000, 120_000, 300_000, 600_000, 1_800_000)
BOUNDS: dict[str, tuple[float, ...]] = {
    "ms": SHORT_BOUNDS + LONG_BOUNDS,
    "{version}": (0, 1, 2, 3, 4, 6, 8, 12, 16, 32),
    "{nat}": (1e-6, 1e-5, 1e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0),
}
"""Upper bounds of a collector's buckets, by unit. Answers and resets may take minutes, optimizer steps half an hour."""
