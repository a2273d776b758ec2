# Two commands matter: `make run` shows what Holdfast does, `make test` proves it. Each sets itself up.
#
# Needed: GNU make and Python 3.11 or newer with its venv module. Everything else is installed into .venv from the pinned
# files in requirements/, and again when one of them or pyproject.toml changes. What is made is made in this folder. The
# one thing outside of it: a few system packages that some tests need, where `make test` may install them.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
STAMPS := $(VENV)/stamps
PIP := $(PY) -m pip --quiet --quiet --disable-pip-version-check --no-input

# The newest interpreter that really runs (a name on the PATH may be a shim without a version behind it), looked for once
# and only when it is needed.
ifndef PYTHON
PYTHON = $(eval PYTHON := $(shell for each in python3.13 python3.12 python3.11 python3 python; do \
	if $$each -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then echo $$each; break; fi; done))$(PYTHON)
endif

# What the caller's shell says about other environments does not reach ours. Nor does a wish for no bytecode: the tests
# start a thousand interpreters, and each would compile the package again.
unexport PYTHONDONTWRITEBYTECODE PYTHONHOME PYTHONPATH PIP_PREFIX PIP_REQUIRE_VIRTUALENV PIP_TARGET PIP_USER VIRTUAL_ENV

# Two for each core: many tests wait, for a process or for a lease to expire.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) \* 2)
SEEDS ?= 1000
FIRST ?= 0
CAMPAIGN ?= build/campaign.json
ARGS ?=

.PHONY: help run test test-full test-fast test-lowest coverage lint format types collect bench drill soak simulate fuzz crowds model docs ledger lock sbom install clean

help: ## Show this list
	@echo "Holdfast: distributed leases that survive incidents."
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo "PYTHON=... picks the interpreter, WORKERS=... the test processes, ARGS=... is passed on."

run: $(STAMPS)/run ## A plane with agents at work, and a page in the browser to watch it; Ctrl-C ends it
	@mkdir -p build
	@$(BIN)/holdfast up --sample --database sqlite:///build/sample.db $(ARGS)

test: $(STAMPS)/dev $(STAMPS)/system ## Every check: style, strict types, all tests on real servers; campaigns are small
	@$(MAKE) --no-print-directory --jobs 2 lint types collect
	@echo "== tests (random order, in parallel)"
	@$(PY) -m pytest -q -n $(WORKERS) --maxprocesses 8 --dist worksteal $(ARGS)

test-full: ## The same with full campaigns: more seeds, examples and rounds of the same checks
	@CAMPAIGNS=full $(MAKE) --no-print-directory test

test-fast: $(STAMPS)/dev ## The tests that need no server and no other process: seconds
	@$(PY) -m pytest -q -n $(WORKERS) --maxprocesses 8 -m "not server and not slow" $(ARGS)

coverage: $(STAMPS)/dev ## Which lines the fast tests execute: a list in the terminal, and pages in build/coverage/html
	@mkdir -p build/coverage
	@$(BIN)/coverage erase
	@$(BIN)/coverage run -m pytest -q -n $(WORKERS) --maxprocesses 8 -m "not server and not slow" $(ARGS)
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage html --quiet
	@$(BIN)/coverage report

# The lowest version of every dependency that pyproject.toml allows, in an environment of its own, on the oldest Python:
# newer ones have no wheels of such versions. The tests of the drivers need servers.
LOWEST := .venv-lowest
LOWEST_PYTHON ?= python3.11
DRIVERS := tests/integration/contract tests/integration/stores tests/integration/guards tests/unit/observe \
	tests/integration/plane/bus tests/integration/plane/db/test_database_postgres.py

test-lowest: ## The fast tests and those of the drivers, with the lowest version of every dependency
	@$(MAKE) --no-print-directory VENV=$(LOWEST) PYTHON=$(LOWEST_PYTHON) $(LOWEST)/stamps/lowest
	@$(LOWEST)/bin/python -m pytest -q -n $(WORKERS) --maxprocesses 8 -m "not server and not slow" $(ARGS)
	@$(LOWEST)/bin/python -m pytest -q -n $(WORKERS) --maxprocesses 8 -m "server and not slow" $(DRIVERS) $(ARGS)

lint: $(STAMPS)/dev ## Style, without changing anything
	@echo "== style"
	@$(BIN)/ruff check --quiet --output-format concise .
	@$(BIN)/ruff format --check --quiet . || { echo "run \`make format\`" >&2; exit 1; }

# Each test process would compile all tests; this compiles them once, while the types are checked.
collect: $(STAMPS)/dev ## Import all tests, and run none
	@$(PY) -m pytest -q -q --collect-only -p no:cacheprovider > $(STAMPS)/collected || { cat $(STAMPS)/collected; exit 1; }

format: $(STAMPS)/dev ## Put the style right
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format .

types: $(STAMPS)/dev ## Strict types
	@echo "== types"
	@$(BIN)/mypy --no-error-summary

bench: $(STAMPS)/bench ## Holdfast beside its peers, in one run
	@$(PY) -m benchmarks $(ARGS)

drill: $(STAMPS)/run ## Break it on purpose on a file of its own: pauses, kills, stale writes, a verdict and a page with pictures
	@mkdir -p build
	@$(BIN)/holdfast drill quick --report build/drill.html $(ARGS)

soak: $(STAMPS)/dev ## All drills, round after round, and memory, threads and files flat: HOURS=1 or MINUTES=10
	@mkdir -p build
	@$(BIN)/holdfast drill soak --duration $$(( $(or $(HOURS),0) * 3600 + $(or $(MINUTES),$(if $(HOURS),0,10)) * 60 )) --report build/soak.html $(ARGS)

simulate: $(STAMPS)/dev ## Simulated worlds: SEEDS=1000 FIRST=0; or a campaign that can be stopped and goes on: HOURS=1000 lock-hours
ifdef HOURS
	@mkdir -p $(dir $(CAMPAIGN))
	@$(PY) -m holdfast.testing.simulate --hours $(HOURS) --first $(FIRST) --campaign $(CAMPAIGN) $(ARGS)
else
	@$(PY) -m holdfast.testing.simulate --seeds $(SEEDS) --first $(FIRST) $(ARGS)
endif

fuzz: $(STAMPS)/dev ## Hostile input, until something gives: MINUTES=1 for each target, TARGET=redis-url for one
	@$(PY) tools/fuzz.py $(TARGET) --seconds $$(( $(or $(MINUTES),1) * 60 )) $(ARGS)

crowds: $(STAMPS)/dev ## 100,000 waiters and a million expired leases on every store: memory, and who pays for it
	@$(PY) tools/crowds.py $(ARGS)

model: $(STAMPS)/dev ## Every state of the model of leases and fences, with Spin: minutes; ARGS=--small: seconds
	@$(PY) tools/model.py $(ARGS)

docs: $(STAMPS)/dev ## Write the generated pages again
	@$(PY) tools/states.py --write
	@$(PY) tools/reference.py --write
	@$(PY) tools/states.py --write
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

ledger: $(STAMPS)/dev ## Each requirement in full: proven, covered or open, by which tests; ARGS=R4 for one
	@$(PY) tools/ledger.py $(ARGS)

lock: $(STAMPS)/dev ## Pin what pyproject.toml newly asks for, for all supported Pythons; ARGS=--upgrade: the newest of everything
	@$(PIP) install uv
	@$(PY) tools/lock.py $(ARGS)

sbom: $(STAMPS)/dev ## A bill of materials (CycloneDX) of what is installed, from the lock alone
	@$(PY) tools/sbom.py $(ARGS)

install: $(STAMPS)/dev ## Only set up the environment
	@echo "ready: $(VENV)"

clean: ## Remove the environment and everything that is made
	rm -rf $(VENV) $(LOWEST) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is newer than what it was made from. The versions come from the lock alone: --no-deps keeps pip from choosing,
# and the package itself is built with the pinned hatchling, not with one that is fetched for the occasion.

$(STAMPS)/run $(STAMPS)/dev $(STAMPS)/bench $(STAMPS)/lowest: $(STAMPS)/%: requirements/%.txt pyproject.toml $(STAMPS)/venv
	@echo "== setting up $(VENV) ($*)"
	@$(PIP) install --no-deps --require-hashes -r requirements/$*.txt
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

$(STAMPS)/bench: $(STAMPS)/dev

$(STAMPS)/venv:
	@test -n "$(PYTHON)" || { echo "Holdfast needs Python 3.11 or newer on the PATH; or say: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is older than 3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) has no venv module; install it (on Debian and Ubuntu: the package python3-venv)" >&2; exit 1; }
	@test -x $(PY) && $(PY) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS)
	@touch $@

# Programs that no wheel brings: a browser for the status page, and promtool for the metrics. Installed where that is
# allowed (root, with apt-get); elsewhere the tests that need them are left out, and say so. The stamp is there once both
# are, so that this is asked again until they are.

$(STAMPS)/system: $(STAMPS)/venv
	@missing=; left=; \
	command -v chromium >/dev/null 2>&1 || missing="$$missing chromium"; \
	command -v promtool >/dev/null 2>&1 || missing="$$missing prometheus"; \
	command -v spin >/dev/null 2>&1 || missing="$$missing spin"; \
	command -v gcc >/dev/null 2>&1 || missing="$$missing gcc libc6-dev"; \
	if [ -n "$$missing" ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
		echo "== installing system packages:$$missing"; \
		install="env DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends$$missing"; \
		$$install >/dev/null 2>&1 || { apt-get update >/dev/null 2>&1 && $$install >/dev/null 2>&1; } || true; \
	fi; \
	command -v chromium >/dev/null 2>&1 || left="tests of the status page in a browser (package chromium)"; \
	command -v promtool >/dev/null 2>&1 || left="$${left:+$$left, }tests of the metrics with promtool (package prometheus)"; \
	command -v spin >/dev/null 2>&1 && command -v gcc >/dev/null 2>&1 || left="$${left:+$$left, }tests of the model (packages spin, gcc)"; \
	if [ -n "$$left" ]; then echo "left out, for want of a system package: $$left"; else touch $@; fi
