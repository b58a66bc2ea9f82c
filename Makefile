# Each target can be repeated. `make demo` and `make test` install their requirements.
SHELL := /bin/bash
.DEFAULT_GOAL := help
STREAMS := .venv/streams/bin
PASSED = $(STREAMS)/python -m tests.lanes --passed $(BEGUN)
BEGUN := $(shell git rev-parse HEAD 2>/dev/null || echo none)
MODEL := .venv/model/bin
RECIPES := plugins/recipes/tests $(addprefix --ignore=plugins/recipes/tests/,model path)
TSC := .venv/web/node_modules/.bin/tsc
MODEL_SIDE := dart_streams/policy plugins/recipes/dart_recipes/gui_actor console/bundles/retrain.py workers/rollout trainer benchmarks/learning benchmarks/recipes examples/objective.py
# One resolution for each Python and platform; markers tell them apart where they differ.
COMPILE := .venv/tools/bin/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url

.PHONY: help dev unit lint reference docs setup data mcp desktop phone osworld adapters peers demo demo-desktop demo-phone test test-adapters test-alerts test-data test-desktops test-faults test-launch soak test-models test-osworld test-page test-phone test-cluster test-compose test-desktop-image test-s3 test-k8s test-k8s-cluster test-k8s-keda test-path test-upgrade up down clean requirements streams-environment types

help: ## Show this.
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

dev: streams-environment ## Install the Python environment of unit and lint, without JVM, torch and root.
	@echo "Next: make unit lint"

unit: streams-environment ## Run the unit tests.
	@$(STREAMS)/python -m pytest -q -n 2 --dist worksteal tests/unit $(RECIPES)

lint: streams-environment types ## Check style and types.
	@$(STREAMS)/ruff check .
	@$(STREAMS)/ruff format --check .
	@if [ -x $(MODEL)/mypy ]; then $(MODEL)/mypy $(MODEL_SIDE); \
	else echo "Left out without .venv/model (make setup): the types of $(MODEL_SIDE)"; fi
	@if [ -x $(TSC) ]; then $(TSC) -p console/views/page/jsconfig.json; \
	else echo "Left out without npm (Node): the types of the web page's scripts"; fi

reference: streams-environment ## Generate docs/configuration.md, cli.md, metrics.md, and the table of docs/reliability.md.
	@$(STREAMS)/python -m docs.reference

types: streams-environment
	@$(STREAMS)/mypy topics dart_streams workers console plugins/*/dart_* benchmarks examples --exclude '^($(subst $() ,|,$(MODEL_SIDE)))'
	@$(STREAMS)/mypy --explicit-package-bases tests/faults --exclude '/(test_|generated_records)'

docs: ## Build the documentation site, strictly.
	@deploy/local/setup.sh docs
	@NO_MKDOCS_2_WARNING=1 .venv/docs/bin/mkdocs build --strict

streams-environment:
	@deploy/local/setup.sh dev

setup: ## Install what is missing: system packages, two Python environments, jars. GPU=1: for NVIDIA GPUs; GPU=0: for a CPU.
	@deploy/local/setup.sh

demo: setup ## Train the tiny policy on web pages, and write a report.
	@$(STREAMS)/dart-streams run deploy/config/demo.toml

desktop: ## Install the environment `desktop`: sandbox, applications, LibreOffice, and the client of MCP servers (240 MB).
	@deploy/local/setup.sh desktop

demo-desktop: setup desktop ## Train the tiny policy on small tasks of real applications, in sandboxed desktops.
	@$(STREAMS)/dart-streams run deploy/config/desktop.toml

phone: ## Install the environment `phone`: Android's framework with Robolectric, and its applications (350 MB).
	@deploy/local/setup.sh phone

demo-phone: setup phone ## Train the tiny policy on small tasks of Android applications, without an emulator.
	@$(STREAMS)/dart-streams run deploy/config/phone.toml

osworld: ## Install the applications and evaluators of OSWorld's tasks (2 GB).
	@deploy/local/setup.sh osworld

adapters: ## Install the environments of BrowserGym and OpenEnv for the adapters' tests (0.5 GB).
	@deploy/local/setup.sh adapters

mcp: ## Install the package mcp, for `dart-streams mcp` and for MCP servers of env.mcp (28 MB).
	@deploy/local/setup.sh mcp

data: ## Install the Python environment of Parquet export and import, and of trackers (1 GB).
	@deploy/local/setup.sh data

peers: setup ## Install BrowserGym and TRL for the benchmarks that compare with them.
	@deploy/local/setup.sh peers

# Tests of the streams with real services run first, in three workers: they wait more than they compute, so the units run
# beside them, at a lower priority. Beside the model's tests, which fill every core, browsers get their answers too late.
# Real services are started once for all. The tests of a file stay together, as they share what it starts, and long files
# begin first (tests/durations.json). Model tests run in worker processes: one that crashes is one failure.
test: setup ## Run all tests.
	@deploy/local/setup.sh docs
	@deploy/local/setup.sh pythons
	@$(STREAMS)/python -m benchmarks.private_services bash -c ' \
		output=$$(mktemp); \
		nice -n 10 $(STREAMS)/python -m pytest -q -n 1 --durations 10 tests/unit $(RECIPES) >$$output 2>&1 & \
		$(STREAMS)/python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder --durations 20 tests $(addprefix --ignore=tests/,unit model bench cluster compose faults/full k8s k8s_cluster objects launch page path upgrade); \
		streams=$$?; wait $$!; units=$$?; cat $$output; rm $$output; \
		$(MODEL)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder --durations 20 tests/model --ignore=tests/model/breadth; \
		model=$$?; exit $$((streams || units || model))'

.PHONY: durations
durations: export DART_TEST_DURATIONS := $(CURDIR)/.dart/durations.json
durations: test ## Run all tests, and keep the seconds of each file in tests/durations.json.
	@cp .dart/durations.json tests/durations.json

.PHONY: test-all
test-all: setup ## Run all tests and every lane (tests/lanes.py), to the end even if one fails.
	@$(MAKE) --keep-going test lint $$($(STREAMS)/python -m tests.lanes --all)

.PHONY: mutants
mutants: setup ## Undo mends at random, each of which a test has to find: NUMBER=n of them (30), SEED=n for a choice again.
	@$(STREAMS)/python -m benchmarks.mutants --number $(or $(NUMBER),30) $(addprefix --seed ,$(SEED))

test-faults: setup ## Run the fault matrix in full: CASE=name for one case, RUNS=n times.
	@$(STREAMS)/python -m tests.faults.matrix $(addprefix --case ,$(CASE)) --runs $(or $(RUNS),1) --json .dart/faults.json

soak: setup ## Run a circle under random faults for HOURS=n (2), as root; SEED=n or SCHEDULE=FILE repeats a schedule.
	@$(STREAMS)/python -m tests.faults.soak --hours $(or $(HOURS),2) $(addprefix --seed ,$(SEED)) $(addprefix --schedule ,$(SCHEDULE))

test-data: setup data ## Run the tests of data sets and trackers with their libraries.
	@$(STREAMS)/python -m benchmarks.private_services .venv/data/bin/python -m pytest -q plugins/data/tests --ignore=plugins/data/tests/model

test-launch: setup ## Run the tests of local services that fail or stay, of scripts for nodes and Slurm, and of placed processes.
	@$(STREAMS)/python -m benchmarks.private_services $(STREAMS)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder --durations 20 tests/launch
	@$(PASSED) $@

test-page: setup ## Run the tests of the web page in a browser.
	@$(STREAMS)/python -m benchmarks.private_services $(STREAMS)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder --durations 20 tests/page
	@$(PASSED) $@

test-desktops: setup desktop ## Run the tests of desktops with real applications in sandboxes.
	@$(STREAMS)/python -m benchmarks.private_services $(STREAMS)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder --durations 20 plugins/desktops/tests --ignore=plugins/desktops/tests/osworld
	@$(PASSED) $@

test-models: setup ## Run the tests of other model families, ranks of vLLM, nodes, the hub, sizes, benchmarks, and recipes.
	@$(STREAMS)/python -m benchmarks.private_services bash -c ' \
		$(STREAMS)/python -m pytest -q tests/bench tests/path/test_ui_tars_page.py plugins/recipes/tests/path; streams=$$?; \
		$(MODEL)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder --durations 20 tests/model/breadth plugins/recipes/tests/model plugins/data/tests/model; \
		model=$$?; exit $$((streams || model))'
	@$(PASSED) $@

test-osworld: setup osworld ## Run the tests of OSWorld's evaluators and tasks; DART_OSWORLD=FOLDER adds its task files.
	@$(STREAMS)/python -m benchmarks.private_services $(STREAMS)/python -m pytest -q -n 2 --dist loadfile plugins/desktops/tests/osworld $(addprefix plugins/desktops/tests/test_osworld_,$(addsuffix .py,confined episodes evaluators spoiled)) plugins/desktops/tests/unit/osworld plugins/desktops/tests/unit/test_osworld_command.py
	@$(PASSED) $@

test-phone: phone ## Run the tests of phones, on real Android views.
	@$(STREAMS)/python -m pytest -q plugins/phones/tests

test-adapters: setup adapters ## Run the tests of the adapters with the real BrowserGym and OpenEnv, and of MCP.
	@deploy/local/setup.sh mcp
	@$(STREAMS)/python -m pytest -q plugins/adapters/tests

test-cluster: setup ## Run a circle on three brokers and three Cassandra nodes, each killed once.
	@$(STREAMS)/python -m pytest -q --timeout 3600 tests/cluster

test-compose: setup ## Run a short circle with faults in containers (as root).
	@tests/compose/setup.sh .dart/compose-test
	@$(STREAMS)/python -m pytest -q --timeout 7200 tests/compose --ignore=tests/compose/test_desktop.py

test-desktop-image: setup ## Build the image for desktops, and play tasks of an application and of LibreOffice in it (as root).
	@tests/compose/setup.sh .dart/compose-test images
	@DART_SLOW_TESTS=1 $(STREAMS)/python -m pytest -q --timeout 3600 tests/compose/test_desktop.py

test-s3: setup ## Run weights, checkpoints, screenshots and a whole run on a real S3 server, killed and started again.
	@tests/objects/setup.sh .dart/s3-test
	@$(MODEL)/python -m pytest -q -n 1 tests/objects/test_s3.py
	@DART_SLOW_TESTS=1 $(STREAMS)/python -m benchmarks.private_services bash -c '$(STREAMS)/python -m pytest -q tests/objects/test_rights.py tests/objects/test_circle_on_s3.py'

test-upgrade: setup ## Run release 0.2.0 and this one side by side. SHARE=0.02: that share of an hour's records.
	@tests/upgrade/setup.sh .dart/upgrade $$($(STREAMS)/python -c 'from tests.upgrade.deployment import OLD_REVISION as old; print(old)')
	@DART_UPGRADE_SHARE=$(or $(SHARE),1) $(STREAMS)/python -m pytest -q tests/upgrade

test-path: setup desktop ## Follow a user: models of a hub are trained, pushed and served again.
	@$(STREAMS)/python -m benchmarks.private_services bash -c '$(STREAMS)/python -m pytest -q --timeout 1800 tests/path'

test-alerts: streams-environment ## Run the alert rules in Prometheus's promtool, of Debian's package.
	@tests/alerts/setup.sh .dart/alerts-test
	@$(STREAMS)/python -m pytest -q tests/alerts

test-k8s: setup ## Check the rendered deploy/k8s against the schemas of Kubernetes, KEDA and Strimzi.
	@tests/k8s/setup.sh .dart/k8s-test
	@$(STREAMS)/python -m pytest -q tests/k8s

test-k8s-cluster: setup ## Run a one-node Kubernetes with the demonstration's overlay, under faults (as root).
	@tests/k8s_cluster/setup.sh .dart/k8s-cluster
	@$(STREAMS)/python -m tests.k8s_cluster.images
	@$(STREAMS)/python -m pytest -q --timeout 1800 tests/k8s_cluster --ignore=tests/k8s_cluster/test_keda.py

test-k8s-keda: setup ## Let KEDA scale workers by lag on the one-node Kubernetes (as root).
	@tests/k8s_cluster/setup.sh .dart/k8s-cluster
	@tests/k8s_cluster/build_keda.sh .dart/k8s-cluster
	@$(STREAMS)/python -m tests.k8s_cluster.images
	@$(STREAMS)/python -m pytest -q --timeout 1800 tests/k8s_cluster/test_keda.py

up: setup ## Start the local Kafka and Cassandra.
	@$(STREAMS)/dart-streams up

down: ## Stop the local Kafka and Cassandra.
	@if [ -x $(STREAMS)/dart-streams ]; then $(STREAMS)/dart-streams down; fi

clean: ## Stop the services and remove runs, topics, tables and jars, but no environment.
	@if [ -x $(STREAMS)/dart-streams ]; then $(STREAMS)/dart-streams down --wipe; fi
	@rm -rf .dart build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

requirements: streams-environment ## Compile requirements/*.txt from pyproject.toml.
	@$(COMPILE) requirements/tools.in -o requirements/tools.txt
	@$(COMPILE) requirements/k8s.in -o requirements/k8s.txt
	@$(COMPILE) pyproject.toml --extra streams --extra dev -o requirements/streams.txt
	@$(COMPILE) pyproject.toml --extra model --extra dev --override requirements/model-overrides.txt -o requirements/model.txt
	@$(COMPILE) pyproject.toml --extra model-gpu --extra dev --override requirements/model-overrides.txt -o requirements/model-gpu.txt
	@$(COMPILE) pyproject.toml --extra data --extra dev -o requirements/data.txt
	@$(COMPILE) pyproject.toml --extra docs -o requirements/docs.txt
	@$(COMPILE) requirements/browsergym.in -o requirements/browsergym.txt
	@$(COMPILE) requirements/openenv.in -o requirements/openenv.txt
	@$(COMPILE) requirements/mcp.in -c requirements/streams.txt -o requirements/mcp.txt
	@$(COMPILE) requirements/trl.in -o requirements/trl.txt
	@$(COMPILE) requirements/osworld.in -o requirements/osworld.txt
	@$(COMPILE) requirements/osworld-guest.in -c requirements/osworld.txt -o requirements/osworld-guest.txt
	@$(COMPILE) --no-deps requirements/desktop-env.in -o requirements/desktop-env.txt
