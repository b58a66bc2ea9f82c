"""Names of all instruments, of spans and of their attributes.

:mod:`dart_streams.telemetry.instrument_table` has the kind, unit and meaning of each instrument.
"""

METER = "dart_streams"
TRACER = "dart_streams"

# Environment workers
ENV_SLOTS = "env.slots"
ENV_SLOTS_BUSY = "env.slots.busy"
ENV_SLOT_MS = "env.slot_ms"
ENV_EPISODES = "env.episodes"
ENV_STEPS = "env.steps"
ENV_RESET_MS = "env.reset_ms"
ENV_EXECUTE_MS = "env.execute_ms"
ENV_EVALUATE_MS = "env.evaluate_ms"
ENV_COMPRESS_MS = "env.compress_ms"
ENV_BLOB_WRITE_MS = "env.blob_write_ms"
ENV_REQUEST_MS = "env.request_ms"
ENV_OVERHEAD_MS = "env.overhead_ms"
ENV_REQUESTS_SENT = "env.requests.sent"
ENV_REQUESTS_ANSWERED = "env.requests.answered"
ENV_REQUESTS_TIMED_OUT = "env.requests.timed_out"
ENV_REQUESTS_ABANDONED = "env.requests.abandoned"
ENV_ANSWERS_WRONG = "env.answers.wrong"
ENV_REPLIES_IGNORED = "env.replies.ignored"
ENV_BROWSER_RESTARTS = "env.browser.restarts"
ENV_BROWSER_MEMORY = "env.browser.memory"
ENV_DOCUMENTS_LOADED = "env.documents.loaded"
ENV_PROBLEMS_RESTARTED = "env.problems.restarted"
ENV_SANDBOXES_STARTED = "env.sandboxes.started"
ENV_DESKTOPS_PREPARED = "env.desktops.prepared"
ENV_DESKTOPS_RESTLESS = "env.desktops.restless"
ENV_RESTS = "env.rests"
ENV_ORDERS_SET_ASIDE = "env.orders_set_aside"
ENV_FAULT_SCORE = "env.fault_score"

# Rollout workers
ROLLOUT_IN_FLIGHT = "rollout.in_flight"
ROLLOUT_QUEUE_MS = "rollout.queue_ms"
ROLLOUT_GENERATE_MS = "rollout.generate_ms"
ROLLOUT_BLOB_READ_MS = "rollout.blob_read_ms"
ROLLOUT_TOKENS = "rollout.tokens"
ROLLOUT_PROMPT_TOKENS = "rollout.prompt_tokens"
ROLLOUT_SCREENSHOTS = "rollout.screenshots"
ROLLOUT_ENCODINGS = "rollout.encodings"
ROLLOUT_RECALLED = "rollout.recalled"
ROLLOUT_REQUESTS = "rollout.requests"
ROLLOUT_VERSION = "rollout.version"
ROLLOUT_SWITCH_PAUSE_MS = "rollout.switch.pause_ms"
ROLLOUT_SWITCH_LOAD_MS = "rollout.switch.load_ms"
ROLLOUT_SWITCHES = "rollout.switches"

# Recorder
RECORDER_STEPS = "recorder.steps"
RECORDER_TRAJECTORIES = "recorder.trajectories"
RECORDER_WRITE_MS = "recorder.write_ms"

# Curator
CURATOR_EVENTS = "curator.events"
CURATOR_DECISIONS = "curator.decisions"
CURATOR_GROUPS = "curator.groups"
CURATOR_FEEDBACK = "curator.feedback"
CURATOR_LOST = "curator.lost"
CURATOR_APPLY_MS = "curator.apply_ms"

# Trainer
TRAINER_STEP = "trainer.step"
TRAINER_STEP_MS = "trainer.step_ms"
TRAINER_WAIT_MS = "trainer.wait_ms"
TRAINER_READ_MS = "trainer.read_ms"
TRAINER_PUBLISH_MS = "trainer.publish_ms"
TRAINER_CHECKPOINT_MS = "trainer.checkpoint_ms"
TRAINER_GROUPS = "trainer.groups"
TRAINER_STALENESS = "trainer.staleness"
TRAINER_FIGURE = "trainer.figure"
TRAINER_DROPPED = "trainer.dropped"
TRAINER_MISMATCH = "trainer.mismatch"

# All processes
DEAD_LETTERS = "dead_letters"
SPANS_DROPPED = "telemetry.spans.dropped"

# Monitor
MONITOR_LAG = "monitor.lag"
MONITOR_SILENT_S = "monitor.silent_s"
MONITOR_STALLS = "monitor.stalls"

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
