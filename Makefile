# The two most important targets are `make run`, a demonstration, and `make test`, all checks. Each installs what it needs.
#
# Required: GNU make and Python 3.11 or newer with its venv module. Everything else is installed into .venv from the pinned
# files in requirements/, and again when one of them or pyproject.toml changes. All output stays in this folder. The only
# exception: as root, `make test` installs a few system packages that some tests need.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
STAMPS := $(VENV)/stamps
PIP := $(PY) -m pip --quiet --quiet --disable-pip-version-check --no-input

# The newest interpreter that works (a name on the PATH may be a shim without an installed version). Searched once, and only
# when a target needs it.
ifndef PYTHON
PYTHON = $(eval PYTHON := $(shell for each in python3.14 python3.13 python3.12 python3.11 python3 python; do \
	if $$each -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then echo $$each; break; fi; done))$(PYTHON)
endif

# Ignore variables of the caller's shell that belong to other environments. Also PYTHONDONTWRITEBYTECODE: the tests start a
# thousand interpreters, and without cached bytecode each would compile the package again.
unexport PYTHONDONTWRITEBYTECODE PYTHONHOME PYTHONPATH PIP_PREFIX PIP_REQUIRE_VIRTUALENV PIP_TARGET PIP_USER VIRTUAL_ENV

# Two per core, because many tests wait for a process or for the end of a lease.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) \* 2)
SEEDS ?= 1000
FIRST ?= 0
CAMPAIGN ?= build/campaign.json
ARGS ?=

.PHONY: help run test test-full test-fast test-lowest coverage lint format types collect bench drill soak simulate fuzz crowds model docs ledger lock sbom install clean

help: ## Print this list
	@echo "Holdfast: distributed leases that survive incidents."
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo "PYTHON=... sets the interpreter, WORKERS=... the number of test processes, ARGS=... more arguments of the command."

run: $(STAMPS)/run ## Start a plane with sample agents and a status page in the browser; Ctrl-C ends it
	@mkdir -p build
	@$(BIN)/holdfast up --sample --database sqlite:///build/sample.db $(ARGS)

test: $(STAMPS)/dev $(STAMPS)/system ## Run all checks: style, strict types, all tests on real servers, small campaigns
	@$(MAKE) --no-print-directory --jobs 2 lint types collect
	@echo "== tests (random order, in parallel)"
	@$(PY) -m pytest -q -n $(WORKERS) --maxprocesses 8 --dist worksteal $(ARGS)

test-full: ## Run `make test` with full campaigns: more seeds, examples and rounds of the same checks
	@CAMPAIGNS=full $(MAKE) --no-print-directory test

test-fast: $(STAMPS)/dev ## Run the tests that need no server and no other process
	@$(PY) -m pytest -q -n $(WORKERS) --maxprocesses 8 -m "not server and not slow" $(ARGS)

coverage: $(STAMPS)/dev ## Measure which lines the fast tests execute; HTML in build/coverage/html
	@mkdir -p build/coverage
	@$(BIN)/coverage erase
	@$(BIN)/coverage run -m pytest -q -n $(WORKERS) --maxprocesses 8 -m "not server and not slow" $(ARGS)
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage html --quiet
	@$(BIN)/coverage report

# The lowest version of every dependency that pyproject.toml allows, in a separate environment. It uses the oldest Python,
# because newer ones have no wheels of these versions. The tests of the drivers need servers.
LOWEST := .venv-lowest
LOWEST_PYTHON ?= python3.11
DRIVERS := tests/integration/contract tests/integration/stores tests/integration/guards tests/unit/observe \
	tests/integration/plane/bus tests/integration/plane/db/test_database_postgres.py

test-lowest: ## Run the fast tests and those of the drivers with the lowest version of every dependency
	@$(MAKE) --no-print-directory VENV=$(LOWEST) PYTHON=$(LOWEST_PYTHON) $(LOWEST)/stamps/lowest
	@$(LOWEST)/bin/python -m pytest -q -n $(WORKERS) --maxprocesses 8 -m "not server and not slow" $(ARGS)
	@$(LOWEST)/bin/python -m pytest -q -n $(WORKERS) --maxprocesses 8 -m "server and not slow" $(DRIVERS) $(ARGS)

lint: $(STAMPS)/dev ## Check the style; changes nothing
	@echo "== style"
	@$(BIN)/ruff check --quiet --output-format concise .
	@$(BIN)/ruff format --check --quiet . || { echo "run \`make format\`" >&2; exit 1; }

# Compiles all tests once, while mypy runs. Otherwise each test process would compile them.
collect: $(STAMPS)/dev ## Import all tests without running them
	@$(PY) -m pytest -q -q --collect-only -p no:cacheprovider > $(STAMPS)/collected || { cat $(STAMPS)/collected; exit 1; }

format: $(STAMPS)/dev ## Format the code and apply safe fixes
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format .

types: $(STAMPS)/dev ## Check strict types
	@echo "== types"
	@$(BIN)/mypy --no-error-summary

bench: $(STAMPS)/bench ## Measure Holdfast and comparable libraries in one run
	@$(PY) -m benchmarks $(ARGS)

drill: $(STAMPS)/run ## Run a fault drill on a new file: pauses, kills, stale writes; writes a report with charts
	@mkdir -p build
	@$(BIN)/holdfast drill quick --report build/drill.html $(ARGS)

soak: $(STAMPS)/dev ## Repeat all drills and check that memory, threads and files do not grow: HOURS=1 or MINUTES=10
	@mkdir -p build
	@$(BIN)/holdfast drill soak --duration $$(( $(or $(HOURS),0) * 3600 + $(or $(MINUTES),$(if $(HOURS),0,10)) * 60 )) --report build/soak.html $(ARGS)

simulate: $(STAMPS)/dev ## Run simulated worlds: SEEDS=1000 FIRST=0; or a campaign that can be interrupted and resumed: HOURS=1000 lock-hours
ifdef HOURS
	@mkdir -p $(dir $(CAMPAIGN))
	@$(PY) -m holdfast.testing.simulate --hours $(HOURS) --first $(FIRST) --campaign $(CAMPAIGN) $(ARGS)
else
	@$(PY) -m holdfast.testing.simulate --seeds $(SEEDS) --first $(FIRST) $(ARGS)
endif

fuzz: $(STAMPS)/dev ## Fuzz all targets for MINUTES=1 each; TARGET=redis-url for one of them
	@$(PY) tools/fuzz.py $(TARGET) --seconds $$(( $(or $(MINUTES),1) * 60 )) $(ARGS)

crowds: $(STAMPS)/dev ## Test every store with 100,000 waiters and a million expired leases: time and memory
	@$(PY) tools/crowds.py $(ARGS)

model: $(STAMPS)/dev ## Check every state of the model of leases and fences with Spin: minutes; ARGS=--small: seconds
	@$(PY) tools/model.py $(ARGS)

docs: $(STAMPS)/dev ## Regenerate the generated pages
	@$(PY) tools/states.py --write
	@$(PY) tools/job_states.py --write
	@$(PY) tools/reference.py --write
	@$(PY) tools/states.py --write
	@$(PY) tools/store_tables.py --write
	@$(PY) tools/inventory.py --write
	@$(PY) tools/metrics_page.py --write
	@$(PY) tools/alerts.py --write
	@$(PY) tools/dashboard.py --write
	@$(PY) tools/runbooks.py --write
	@$(PY) tools/mutants_page.py --write
	@$(PY) tools/example_pages.py --write
	@$(PY) tools/threats.py --write
	@$(PY) tools/track_record.py --write
	@$(PY) tools/walks.py --write
	@$(PY) tools/ledger.py --write

ledger: $(STAMPS)/dev ## List each requirement with its state (proven, covered, open) and tests; ARGS=R4 for one
	@$(PY) tools/ledger.py $(ARGS)

lock: $(STAMPS)/dev ## Pin new dependencies of pyproject.toml for all supported Pythons; ARGS=--upgrade for the newest versions of all
	@$(PIP) install uv
	@$(PY) tools/lock.py $(ARGS)

sbom: $(STAMPS)/dev ## Write a bill of materials (CycloneDX) of the pinned packages
	@$(PY) tools/sbom.py $(ARGS)

install: $(STAMPS)/dev ## Set up the environment
	@echo "ready: $(VENV)"

clean: ## Remove the environment and all output
	rm -rf $(VENV) $(LOWEST) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp file is newer than the files it depends on. All versions come from the lock files: with --no-deps, pip resolves
# nothing, and the package itself is built with the pinned hatchling.

$(STAMPS)/run $(STAMPS)/dev $(STAMPS)/bench $(STAMPS)/lowest: $(STAMPS)/%: requirements/%.txt pyproject.toml $(STAMPS)/venv
	@echo "== setting up $(VENV) ($*)"
	@$(PIP) install --no-deps --require-hashes -r requirements/$*.txt
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

$(STAMPS)/bench: $(STAMPS)/dev

$(STAMPS)/venv:
	@test -n "$(PYTHON)" || { echo "found no Python 3.11 or newer on the PATH; install one, or run: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is older than 3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) has no venv module; install it (on Debian and Ubuntu: the package python3-venv)" >&2; exit 1; }
	@test -x $(PY) && $(PY) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS)
	@touch $@

# Programs that are not available as wheels: a browser for the status page, promtool for the metrics, Spin for the model.
# As root with apt-get they are installed; elsewhere the tests that need them are skipped, and the summary of the run lists
# them. The stamp is written when all are installed; until then every run checks again.

$(STAMPS)/system: $(STAMPS)/venv
	@missing=; left=; \
	command -v chromium >/dev/null 2>&1 || missing="$$missing chromium"; \
	command -v promtool >/dev/null 2>&1 || missing="$$missing prometheus"; \
	command -v spin >/dev/null 2>&1 || missing="$$missing spin"; \
	command -v gcc >/dev/null 2>&1 || missing="$$missing gcc libc6-dev"; \
	test -x /usr/sbin/pgbouncer || missing="$$missing pgbouncer"; \
	if [ -n "$$missing" ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
		echo "== installing system packages:$$missing"; \
		install="env DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends$$missing"; \
		$$install >/dev/null 2>&1 || { apt-get update >/dev/null 2>&1 && $$install >/dev/null 2>&1; } || true; \
	fi; \
	command -v chromium >/dev/null 2>&1 || left="tests of the status page in a browser (package chromium)"; \
	command -v promtool >/dev/null 2>&1 || left="$${left:+$$left, }tests of the metrics with promtool (package prometheus)"; \
	command -v spin >/dev/null 2>&1 && command -v gcc >/dev/null 2>&1 || left="$${left:+$$left, }tests of the model (packages spin, gcc)"; \
	test -x /usr/sbin/pgbouncer || left="$${left:+$$left, }tests of leases behind PgBouncer (package pgbouncer)"; \
	if [ -n "$$left" ]; then echo "skipped, because a system package is missing: $$left"; else touch $@; fi
