"""Names of all instruments with units and meanings, and of spans and their attributes.

The suffix is the unit: ``_ms`` milliseconds, none a count or a share in [0, 1]. Histograms are exponential.
"""

METER = "dart_streams"
TRACER = "dart_streams"

# Environment workers
ENV_SLOTS = "env.slots"  # gauge: slots of the process
ENV_SLOTS_BUSY = "env.slots.busy"  # gauge: slots with an episode
ENV_SLOT_MS = "env.slot_ms"  # counter: slot time; attribute state: idle, reset, wait, step, evaluate
ENV_EPISODES = "env.episodes"  # counter: finished episodes; attributes outcome, purpose, page
ENV_STEPS = "env.steps"  # counter: executed actions; attribute purpose
ENV_RESET_MS = "env.reset_ms"  # histogram: environment reset, from the order to the first screen
ENV_EXECUTE_MS = "env.execute_ms"  # histogram: execution of one action, its screenshot included
ENV_EVALUATE_MS = "env.evaluate_ms"  # histogram: evaluation of an episode's end
ENV_BLOB_WRITE_MS = "env.blob_write_ms"  # histogram: a screenshot into the store
ENV_REQUEST_MS = "env.request_ms"  # histogram: round trip of an answered action request
ENV_OVERHEAD_MS = "env.overhead_ms"  # histogram: round trip less the reply's queue and generate time
ENV_REQUESTS_SENT = "env.requests.sent"  # counter: action requests published, repeats included
ENV_REQUESTS_ANSWERED = "env.requests.answered"  # counter: used replies
ENV_REQUESTS_TIMED_OUT = "env.requests.timed_out"  # counter: requests without a reply in time
ENV_REQUESTS_ABANDONED = "env.requests.abandoned"  # counter: requests whose episode ended before the reply came
ENV_ANSWERS_WRONG = "env.answers.wrong"  # counter: faults of answers; attributes kind, treated
ENV_REPLIES_IGNORED = "env.replies.ignored"  # counter: replies to abandoned or timed-out requests
ENV_BROWSER_RESTARTS = "env.browser.restarts"  # counter: browsers started again after a crash
ENV_BROWSER_MEMORY = "env.browser.memory"  # counter: browser processes killed for their memory; attribute kind
ENV_DOCUMENTS_LOADED = "env.documents.loaded"  # counter: resets that loaded the document
ENV_PROBLEMS_RESTARTED = "env.problems.restarted"  # counter: resets that started a problem again in its document
ENV_SANDBOXES_STARTED = "env.sandboxes.started"  # counter: started desktop sandboxes, replacements included
ENV_DESKTOPS_PREPARED = "env.desktops.prepared"  # counter: episodes that got a desktop prepared for their task
ENV_DESKTOPS_RESTLESS = "env.desktops.restless"  # counter: desktop screens taken before they were stable
ENV_RESTS = "env.rests"  # counter: rests after failed resets; attribute kind: slot, task, host
ENV_ORDERS_SET_ASIDE = "env.orders_set_aside"  # counter: orders set aside because they crashed their worker repeatedly
ENV_FAULT_SCORE = "env.fault_score"  # gauge: moving share of this host's resets that fail

# Rollout workers
ROLLOUT_IN_FLIGHT = "rollout.in_flight"  # gauge: requests being generated
ROLLOUT_QUEUE_MS = "rollout.queue_ms"  # histogram: from the request's arrival to the start of its generation
ROLLOUT_GENERATE_MS = "rollout.generate_ms"  # histogram: generation of one answer
ROLLOUT_BLOB_READ_MS = "rollout.blob_read_ms"  # histogram: a prompt's screenshots from the store
ROLLOUT_TOKENS = "rollout.tokens"  # counter: generated tokens
ROLLOUT_PROMPT_TOKENS = "rollout.prompt_tokens"  # counter: tokens of prompts; attribute source: computed, cached
ROLLOUT_SCREENSHOTS = "rollout.screenshots"  # counter: screenshots prepared, again only if forgotten since
ROLLOUT_ENCODINGS = "rollout.encodings"  # counter: screenshots that the vision tower computed
ROLLOUT_RECALLED = "rollout.recalled"  # counter: answers as history has them; attribute tokens: same, other, rewritten
ROLLOUT_REQUESTS = "rollout.requests"  # counter: requests by attribute result: answered, failed, late
ROLLOUT_VERSION = "rollout.version"  # gauge: the weight version served
ROLLOUT_SWITCH_PAUSE_MS = "rollout.switch.pause_ms"  # histogram: pause of generation for a switch
ROLLOUT_SWITCH_LOAD_MS = "rollout.switch.load_ms"  # histogram: fetch, check and load of a version
ROLLOUT_SWITCHES = "rollout.switches"  # counter: weight switches; attribute result: served, failed

# Recorder
RECORDER_STEPS = "recorder.steps"  # counter: step rows written
RECORDER_TRAJECTORIES = "recorder.trajectories"  # counter: finished trajectories announced
RECORDER_WRITE_MS = "recorder.write_ms"  # histogram: one step row into the store

# Curator
CURATOR_EVENTS = "curator.events"  # counter: inputs applied; attribute agent
CURATOR_DECISIONS = "curator.decisions"  # counter: decisions; attributes agent, kind
CURATOR_GROUPS = "curator.groups"  # counter: fates of groups and members; attribute fate (see groups.Counts)
CURATOR_LOST = "curator.lost"  # counter: orders ended as lost
CURATOR_APPLY_MS = "curator.apply_ms"  # histogram: one reducer call; attribute agent

# Trainer
TRAINER_STEP = "trainer.step"  # gauge: optimizer steps made
TRAINER_STEP_MS = "trainer.step_ms"  # histogram: one optimizer step, without the wait for data
TRAINER_WAIT_MS = "trainer.wait_ms"  # histogram: wait for curated groups before a step
TRAINER_READ_MS = "trainer.read_ms"  # histogram: a batch's steps and screenshots from the store
TRAINER_PUBLISH_MS = "trainer.publish_ms"  # histogram: a version to its URI and its event
TRAINER_CHECKPOINT_MS = "trainer.checkpoint_ms"  # histogram: one checkpoint
TRAINER_GROUPS = "trainer.groups"  # counter: curated groups taken
TRAINER_STALENESS = "trainer.staleness"  # histogram: version trained less version that acted, a trajectory each
TRAINER_FIGURE = "trainer.figure"  # gauge: a figure of the newest optimizer step; attribute name (loss, entropy, …)
TRAINER_DROPPED = "trainer.dropped"  # counter: untrained data; attribute why: stale (groups), others (steps)
TRAINER_MISMATCH = "trainer.mismatch"  # histogram: |log-probability of engine less trainer's| of a token, batch mean

# All processes
DEAD_LETTERS = "dead_letters"  # counter: records sent to dead-letter topics; attribute topic
SPANS_DROPPED = "telemetry.spans.dropped"  # counter: spans lost to a full queue or a failed export

# Monitor
MONITOR_LAG = "monitor.lag"  # gauge: lag of a consumer group in records; attributes group, topic
MONITOR_SILENT_S = "monitor.silent_s"  # gauge: seconds since the newest record; attribute topic
MONITOR_STALLS = "monitor.stalls"  # counter: reported stalls of the circle; attribute topic

# Spans and their attributes
SPAN_TRAJECTORY = "trajectory"  # env: an episode; its ids derive from the trajectory's id
SPAN_STEP = "step"  # env: a separate trace from a screen to the next observation; links its trajectory
SPAN_REQUEST = "request"  # env: an action request until its reply; child of the step
SPAN_GENERATE = "generate"  # rollout worker: from taking a request to its reply; child of the request
SPAN_EXECUTE = "execute"  # env: an action and the screenshot after it; child of the step
SPAN_RECORD = "record"  # recorder: an observation's row into the store; child of the step that led to it
SPAN_GROUP = "group"  # curator: a curated group; links its trajectories
SPAN_TRAIN_STEP = "train step"  # trainer: an optimizer step; links its groups
SPAN_SWITCH = "switch"  # rollout worker: new weights loaded; links the optimizer step that made them
ATTR_TRAJECTORY = "dart.trajectory.id"
ATTR_TASK = "dart.task.id"
ATTR_REQUEST = "dart.request.id"
ATTR_STEP = "dart.step"
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
ATTR_OUTCOME = "dart.outcome"
