# Every target makes its own environment where there is none: a venv and pip, nothing else.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Where torch comes from, for a build that is not the package index's own: the address that
# PyTorch's install page shows for the CPU or for ROCm.
TORCH_INDEX ?=
# Spinning OpenMP threads slow every process of a busy machine several times over.
export OMP_WAIT_POLICY := PASSIVE
# Three processes, each with the files of tests that it takes, in the order of `tests/conftest.py`:
# on two cores the third finds time while others wait for daemons and browsers. Torch's own threads
# would only fight.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo serve service doctor check test test-full test-thorough test-gpu fix browser clean

help: ## Show the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

demo: $(VENV)/.runtime ## Train a small model on a small dataset, from nothing to an adapter
	$(BIN)/slidepack demo

serve: $(VENV)/.runtime ## Run the daemon: page, API and queue
	$(BIN)/slidepack serve

service: $(VENV)/.runtime ## Install and start the daemon as a systemd service of this user
	$(BIN)/slidepack service install

doctor: $(VENV)/.runtime ## Look at the hardware and the software
	$(BIN)/slidepack doctor

check: $(VENV)/.dev ## Lint, types, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy src tests
	$(BIN)/lint-imports

test: check browser ## All checks and all tests but the long suites
	$(PYTEST) -m "not full"

test-full: $(VENV)/.dev browser ## The long suites: faults, browsers, real processes
	$(PYTEST) -m "full and not thorough and not gpu"

test-thorough: $(VENV)/.dev browser ## What takes minutes of a real model, and the other targets
	$(PYTEST) -m "thorough and not gpu"

test-gpu: $(VENV)/.dev ## The tests that need a GPU
	$(BIN)/pytest -m gpu

fix: $(VENV)/.dev ## Format, and mend what the linter can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# What tests need of the system; where it cannot be installed they skip, and say so. The browser
# tests drive Chromium; those of sleep and power a private D-Bus; those of the units systemd-analyze.
browser:
	@missing=; \
	command -v chromium >/dev/null || missing="$$missing chromium fonts-dejavu-core"; \
	command -v dbus-daemon >/dev/null || missing="$$missing dbus"; \
	command -v systemd-analyze >/dev/null || missing="$$missing systemd"; \
	if [ -z "$$missing" ]; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -qq && apt-get install -y -qq $$missing >/dev/null; \
	else echo "Tests will skip: install$$missing (apt install$$missing)."; fi

clean: ## Remove the environment and what was built
	rm -rf $(VENV) node_modules build dist src/slidepack/web/static/vendor artifacts

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: pyproject.toml constraints.txt hatch_build.py package-lock.json | $(VENV)/bin/python
	$(if $(TORCH_INDEX),$(PIP) --index-url $(TORCH_INDEX) torch)
	$(PIP) --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime
	$(PIP) --editable '.[dev]'
	@touch $@
