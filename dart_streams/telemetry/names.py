"""All instruments, and the names of spans and of their attributes. ``docs/metrics.md`` is made of the instruments.

Units are of UCUM, as OpenTelemetry asks: ``ms``, ``s``, ``1`` for a share, and ``{episode}`` for a count of episodes.
A name has its unit as a suffix where it is a time (``_ms``).
"""

from dart_streams.telemetry.instrument import Instrument, counter, gauge, histogram

METER = "dart_streams"
TRACER = "dart_streams"

# Environment workers
ENV_SLOTS = gauge("env.slots", "{slot}", "Slots of the process.")
ENV_SLOTS_BUSY = gauge("env.slots.busy", "{slot}", "Slots with an episode.")
ENV_SLOT_MS = counter("env.slot_ms", "ms", "Slot time by state, such as idle or wait.", "state")
ENV_EPISODES = counter("env.episodes", "{episode}", "Finished episodes.", "outcome", "purpose", "page")
ENV_STEPS = counter("env.steps", "{action}", "Executed actions.", "purpose")
ENV_RESET_MS = histogram("env.reset_ms", "ms", "Reset of an environment, from the order to the first screen.")
ENV_EXECUTE_MS = histogram("env.execute_ms", "ms", "Execution of one action, its screenshot included.")
ENV_EVALUATE_MS = histogram("env.evaluate_ms", "ms", "Evaluation of an episode's end.")
ENV_COMPRESS_MS = histogram("env.compress_ms", "ms", "Compression of a screenshot (`env.screenshots`).")
ENV_BLOB_WRITE_MS = histogram("env.blob_write_ms", "ms", "Write of a screenshot to the store.")
ENV_REQUEST_MS = histogram("env.request_ms", "ms", "Round trip of an answered action request.")
ENV_OVERHEAD_MS = histogram("env.overhead_ms", "ms", "Round trip less the reply's time in queue and generation.")
ENV_REQUESTS_SENT = counter("env.requests.sent", "{request}", "Published action requests, repeats included.")
ENV_REQUESTS_ANSWERED = counter("env.requests.answered", "{request}", "Requests whose reply was used.")
ENV_REQUESTS_TIMED_OUT = counter("env.requests.timed_out", "{request}", "Requests without a reply in time.")
ENV_REQUESTS_ABANDONED = counter("env.requests.abandoned", "{request}", "Requests whose episode ended before a reply.")
ENV_ANSWERS_WRONG = counter("env.answers.wrong", "{fault}", "Faults of answers.", "kind", "treated")
ENV_REPLIES_IGNORED = counter("env.replies.ignored", "{reply}", "Replies to abandoned or timed-out requests.")
ENV_BROWSER_RESTARTS = counter("env.browser.restarts", "{restart}", "Browsers started again after a crash.")
ENV_BROWSER_MEMORY = counter("env.browser.memory", "{process}", "Browser processes killed for memory.", "kind")
ENV_DOCUMENTS_LOADED = counter("env.documents.loaded", "{reset}", "Resets that loaded the document.")
ENV_PROBLEMS_RESTARTED = counter("env.problems.restarted", "{reset}", "Resets that reused a loaded document.")
ENV_SANDBOXES_STARTED = counter("env.sandboxes.started", "{sandbox}", "Started desktops, replacements included.")
ENV_DESKTOPS_PREPARED = counter("env.desktops.prepared", "{episode}", "Episodes that got a desktop prepared for them.")
ENV_DESKTOPS_RESTLESS = counter("env.desktops.restless", "{screen}", "Desktop screens taken before they were stable.")
ENV_RESTS = counter("env.rests", "{rest}", "Rests after failed resets, of a slot, task or host.", "kind")
ENV_ORDERS_SET_ASIDE = counter("env.orders_set_aside", "{order}", "Orders that crashed their worker repeatedly.")
ENV_FAULT_SCORE = gauge("env.fault_score", "1", "Moving share of this host's resets that fail.")

# Rollout workers
ROLLOUT_IN_FLIGHT = gauge("rollout.in_flight", "{request}", "Requests being generated.")
ROLLOUT_QUEUE_MS = histogram("rollout.queue_ms", "ms", "Wait of a request until its generation starts.")
ROLLOUT_GENERATE_MS = histogram("rollout.generate_ms", "ms", "Generation of one answer.")
ROLLOUT_BLOB_READ_MS = histogram("rollout.blob_read_ms", "ms", "Read of a prompt's screenshots from the store.")
ROLLOUT_TOKENS = counter("rollout.tokens", "{token}", "Generated tokens.")
ROLLOUT_PROMPT_TOKENS = counter("rollout.prompt_tokens", "{token}", "Prompt tokens, computed or cached.", "source")
ROLLOUT_SCREENSHOTS = counter("rollout.screenshots", "{screen}", "Screenshots that were prepared for the model.")
ROLLOUT_ENCODINGS = counter("rollout.encodings", "{screen}", "Screenshots that the vision tower computed.")
ROLLOUT_RECALLED = counter("rollout.recalled", "{answer}", "Earlier answers in prompts, by their tokens.", "tokens")
ROLLOUT_REQUESTS = counter("rollout.requests", "{request}", "Requests answered, failed or late.", "result")
ROLLOUT_VERSION = gauge("rollout.version", "{version}", "Number of the served weight version.")
ROLLOUT_SWITCH_PAUSE_MS = histogram("rollout.switch.pause_ms", "ms", "Pause of generation for a switch of weights.")
ROLLOUT_SWITCH_LOAD_MS = histogram("rollout.switch.load_ms", "ms", "Fetch, check and load of a weight version.")
ROLLOUT_SWITCHES = counter("rollout.switches", "{switch}", "Weight switches served or failed.", "result")

# Recorder
RECORDER_STEPS = counter("recorder.steps", "{step}", "Written rows of steps.")
RECORDER_TRAJECTORIES = counter("recorder.trajectories", "{trajectory}", "Announced trajectories.", "outcome")
RECORDER_WRITE_MS = histogram("recorder.write_ms", "ms", "Write of one step's row to the store.")

# Curator
CURATOR_EVENTS = counter("curator.events", "{event}", "Applied inputs.", "agent")
CURATOR_DECISIONS = counter("curator.decisions", "{decision}", "Decisions.", "agent", "kind")
CURATOR_GROUPS = counter("curator.groups", "{group}", "Fates of groups and their members.", "fate")
CURATOR_FEEDBACK = counter("curator.feedback", "{feedback}", "Feedback by what became of it.", "fate")
CURATOR_LOST = counter("curator.lost", "{order}", "Orders that ended as lost.")
CURATOR_APPLY_MS = histogram("curator.apply_ms", "ms", "One call of a reducer.", "agent")

# Trainer
TRAINER_STEP = gauge("trainer.step", "{step}", "Optimizer steps made.")
TRAINER_STEP_MS = histogram("trainer.step_ms", "ms", "One optimizer step, without the wait for data.")
TRAINER_WAIT_MS = histogram("trainer.wait_ms", "ms", "Wait for curated groups before a step.")
TRAINER_READ_MS = histogram("trainer.read_ms", "ms", "Read of a batch's steps and screenshots from the store.")
TRAINER_PUBLISH_MS = histogram("trainer.publish_ms", "ms", "Write and announcement of a weight version.")
TRAINER_CHECKPOINT_MS = histogram("trainer.checkpoint_ms", "ms", "Write of one checkpoint.")
TRAINER_GROUPS = counter("trainer.groups", "{group}", "Curated groups taken.")
TRAINER_STALENESS = histogram("trainer.staleness", "{version}", "Trained version less the acting one, a trajectory.")
TRAINER_FIGURE = gauge("trainer.figure", "1", "Metric of the newest optimizer step, in its unit.", "name")
TRAINER_DROPPED = counter("trainer.dropped", "{item}", "Data left out: stale groups, other steps.", "why")
TRAINER_MISMATCH = histogram("trainer.mismatch", "{nat}", "Gap of log-probabilities, engine to trainer.")

# All processes
DEAD_LETTERS = counter("dead_letters", "{record}", "Records sent to dead-letter topics.", "topic")
SPANS_DROPPED = counter("telemetry.spans.dropped", "{span}", "Spans lost to a full queue or a failed export.")

# Monitor
MONITOR_LAG = gauge("monitor.lag", "{record}", "Lag of a consumer group.", "group", "topic")
MONITOR_SILENT_S = gauge("monitor.silent_s", "s", "Time since the newest record of a topic.", "topic")
MONITOR_STALLS = counter("monitor.stalls", "{stall}", "Reported stalls of the run.", "topic")

# Spans and their attributes
SPAN_TRAJECTORY = "trajectory"  # env: an episode and its trace; its ids derive from the trajectory's id
SPAN_STEP = "step"  # env: from a screen to the next observation; child of its trajectory, which it links too
SPAN_REQUEST = "request"  # env: an action request until its reply; child of the step
SPAN_GENERATE = "generate"  # rollout worker: from taking a request to its reply; child of the request
SPAN_ENGINE = "engine"  # rollout worker: the engine's answer, prompt included; child of the generation
SPAN_EXECUTE = "execute"  # env: an action and the screenshot after it; child of the step
SPAN_RECORD = "record"  # recorder: an observation's row into the store; child of the step that led to it
SPAN_DECIDE = "decide"  # curator: an agent applied a record of a trajectory; child of the trajectory
SPAN_GROUP = "group"  # curator: a curated group; links its trajectories
SPAN_TRAIN_STEP = "train step"  # trainer: an optimizer step; links its groups
SPAN_TRAIN = "train"  # trainer: an optimizer step, in the trace of each trajectory that it trained on; links it
SPAN_SWITCH = "switch"  # rollout worker: new weights loaded; links the optimizer step that made them
ATTR_RUN = "dart.run.id"  # of the resource: every metric and span of a process has it
ATTR_TRAJECTORY = "dart.trajectory.id"
ATTR_TASK = "dart.task.id"
ATTR_REQUEST = "dart.request.id"
ATTR_STEP = "dart.step"
ATTR_TAKE_OVER = "dart.take_over.id"  # of a step whose action a person was asked for
ATTR_VERSION = "dart.weights.version"
ATTR_TRAIN_STEP = "dart.train_step"
ATTR_GROUP = "dart.group.id"
ATTR_HOST = "dart.host"
ATTR_QUEUE_MS = "dart.queue_ms"
ATTR_FETCH_MS = "dart.fetch_ms"
ATTR_GENERATE_MS = "dart.generate_ms"
ATTR_PREFILL_MS = "dart.prefill_ms"  # of the generation: until the first token
ATTR_DECODE_MS = "dart.decode_ms"  # of the generation: from the first token on
ATTR_TOKENS = "dart.tokens"
ATTR_KEPT = "dart.kept"  # true on a span outside the sample that was written because it failed
ATTR_AGENT = "dart.agent"
ATTR_OUTCOME = "dart.outcome"
# Of OpenTelemetry's semantic conventions
ATTR_ERROR = "error.type"
ATTR_MESSAGING = "messaging.system"
ATTR_OPERATION = "messaging.operation.type"
ATTR_DESTINATION = "messaging.destination.name"
ATTR_PARTITION = "messaging.destination.partition.id"
ATTR_OFFSET = "messaging.kafka.offset"
ATTR_CONSUMER_GROUP = "messaging.consumer.group.name"
ATTR_GEN_OPERATION = "gen_ai.operation.name"
ATTR_GEN_PROVIDER = "gen_ai.provider.name"
ATTR_GEN_MODEL = "gen_ai.request.model"
ATTR_GEN_INPUT = "gen_ai.usage.input_tokens"
ATTR_GEN_OUTPUT = "gen_ai.usage.output_tokens"
ATTR_DB = "db.system.name"
ATTR_DB_TABLE = "db.collection.name"
ATTR_DB_OPERATION = "db.operation.name"

BY_NAME = {str(one): one for one in list(globals().values()) if isinstance(one, Instrument)}
