# Everything a person or CI does with this repository. Each target sets up what it needs; nothing is installed twice.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
TYPES := build/types/twostep

.DEFAULT_GOAL := help
.PHONY: help demo test test-unit check check-full storm fmt lint types proto proto-check wire chart chart-check model

help:
	@echo 'make demo        start a prefill and a decode node, ask SmolLM2 a question, print the bill'
	@echo 'make test        all tests, with real processes and the real model'
	@echo 'make test-unit   the tests that need neither, in seconds'
	@echo 'make check       exactly what CI runs: format, lint, types, generated files, all tests'
	@echo 'make check-full  the same, and what takes long'
	@echo 'make storm       SEEDS=20000 START=0 JOBS=2: simulated clusters under storms of faults, then the mutants'
	@echo 'make fmt lint types proto chart'

demo: model
	$(BIN)/twostep demo

# Two at a time: programs mostly wait for each other. The tests of a module share what it has started.
test: test-unit model
	$(BIN)/python -m pytest -n 2 --dist loadscope --no-loadscope-reorder -m '(processes or model) and not long'

test-unit: $(INSTALLED)
	$(BIN)/python -m pytest -n 2 -m 'not processes and not model and not long'

check: lint types proto-check chart-check test

check-full: check
	$(BIN)/python -m pytest -m long

SEEDS ?= 20000
START ?= 0
JOBS ?= $(shell nproc)

storm: $(INSTALLED)
	$(BIN)/python -m twostep.tests.simulator --seeds $(SEEDS) --start $(START) --jobs $(JOBS)
	$(BIN)/python -m twostep.tests.simulator --mutants --jobs $(JOBS)

fmt: $(INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(INSTALLED) $(TYPES)
	$(BIN)/mypy
	MYPYPATH=build/types:deploy/helm $(BIN)/mypy deploy/helm

proto: $(INSTALLED)
	PYTHON=$(BIN)/python proto/generate.sh

proto-check: $(INSTALLED)
	PYTHON=$(BIN)/python proto/generate.sh --check

# Freezes what this version says on the wire, for later versions to be held against: at its release, not after.
wire: $(INSTALLED)
	$(BIN)/python -m grpc_tools.protoc -Itwostep/proto=proto --include_imports \
	  --descriptor_set_out=tests/proto/released/$$($(BIN)/python -c 'from importlib.metadata import version; print(version("twostep"))').binpb proto/*.proto

# What the Helm chart and its documentation say about values and configuration, and what it renders.
chart: $(INSTALLED)
	$(BIN)/python deploy/helm/generate.py
	$(BIN)/python -m twostep.tests.helm.goldens

chart-check: $(INSTALLED)
	$(BIN)/python deploy/helm/generate.py --check

model: $(INSTALLED)
	$(BIN)/twostep models pull smollm2

# pip's own settings (PIP_* and its configuration files) decide where packages come from.
# The build backend is installed first, pinned, so that no unpinned copy of it is fetched to build this package.
$(INSTALLED): pyproject.toml constraints.txt constraints-ucx.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "twostep needs Python 3.11 or later, $(PYTHON) is " + sys.version.split()[0] + ": make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --constraint constraints.txt hatchling
	$(BIN)/python -m pip install --no-compile --constraint constraints.txt --constraint constraints-ucx.txt --no-build-isolation --editable '.[node,dev,ucx]'
	@touch $@

# mypy sees each folder as a module of twostep through this link.
$(TYPES):
	mkdir -p $(@D)
	ln -sfn ../.. $@
