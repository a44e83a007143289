# make demo    train, commit to and verify a real model, then catch three cheats
# make test    every check and every test
# make test-all  as well what repeats a test at other sizes, seeds and architectures
# make bench   every benchmark; results go into benchmarks/results/ (BENCH_ARGS=--quick for a glance)
# make server  install what the dispute service needs (the extra server) into .venv
# make zk      install what proofs need (the extra zk) into .venv
# make report  install what beacons and signed reports need (the extras report and blst) into .venv
# make store   install what published runs need (the extra store) into .venv
# make cuda    install what NVIDIA GPUs need but for their driver (the extra cuda) into .venv
# make dev     install what tests and benchmarks need (pytest, torch, every extra) into .venv
# make lint    the checks alone
# make core    the Rust core alone, for use from this checkout
# make lock    write the lock files anew from pyproject.toml
# make clean   remove what was built
#
# Everything happens in .venv, made here on first use from Python 3.11 or later and the lock files.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help

PYTHON ?= $(shell command -v python3.11 || command -v python3)
# Each process begins with a stretch of its own, so that few fixtures are made twice.
PYTEST_ARGS ?= -n auto --dist worksteal
# Each process has a core: threads of OpenMP that wait for work would spin on those of the others.
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest
CASES = -m "not exhaustive"
BENCH_ARGS ?=

BIN := .venv/bin
# Of what is installed a small part is ever imported: that is compiled then.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --require-hashes --requirement
CORE := vtrain/_core.abi3.so
CORE_SOURCES := $(shell find rust -name target -prune -o -type f -print)
# Not through make: cargo has no part in its jobs.
CARGO := env -u MAKEFLAGS cargo --quiet
MANIFEST := --manifest-path rust/Cargo.toml --locked
# Compiled for where the toolchain has its library; without BLAKE3's C, which would need a compiler.
AARCH64 := aarch64-unknown-linux-gnu
export PYO3_PYTHON := $(CURDIR)/$(BIN)/python
# Tests start hundreds of processes, each of which would compile every module anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo server zk report store cuda dev test test-all test-rust bench lint lint-rust lint-python core lock clean

help:
	@sed -n 's/^# \{0,1\}//; /^$$/q; p' Makefile

# --- .venv, in steps that are redone only when what they were made from has changed

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "vtrain needs Python 3.11 or later; name one with: make PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv .venv

.venv/base.stamp: requirements.lock | $(BIN)/python
	@echo "installing what vtrain needs into .venv (a minute or so)"
	$(PIP) $<
	touch $@

.venv/dev.stamp: requirements-dev.lock | .venv/base.stamp
	$(PIP) $<
	touch $@

.venv/server.stamp: requirements-server.lock | .venv/base.stamp
	$(PIP) $<
	touch $@

.venv/zk.stamp: requirements-zk.lock | .venv/base.stamp
	$(PIP) $<
	touch $@

.venv/report.stamp: requirements-report.lock | .venv/base.stamp
	$(PIP) $<
	touch $@

.venv/store.stamp: requirements-store.lock | .venv/base.stamp
	$(PIP) $<
	touch $@

.venv/cuda.stamp: requirements-cuda.lock | .venv/base.stamp
	$(PIP) $<
	touch $@

# An editable install: the compiled core lands beside the Python sources, the vtrain command in .venv.
$(CORE): $(CORE_SOURCES) pyproject.toml .venv/base.stamp
	@cargo --version > /dev/null 2>&1 || { echo "vtrain needs a Rust toolchain (cargo) to build its core" >&2; exit 1; }
	@echo "building the Rust core (minutes, longer on a busy machine)"
	env -u MAKEFLAGS PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

# --- what people ask for

core: $(CORE)

demo: $(CORE)
	$(BIN)/vtrain demo

server: .venv/server.stamp $(CORE)

zk: .venv/zk.stamp $(CORE)

report: .venv/report.stamp $(CORE)

store: .venv/store.stamp $(CORE)

cuda: .venv/cuda.stamp $(CORE)

dev: .venv/dev.stamp $(CORE)

lint: lint-rust lint-python

lint-rust: | $(BIN)/python
	$(CARGO) fmt --manifest-path rust/Cargo.toml --all --check
	$(CARGO) clippy $(MANIFEST) --workspace --all-targets -- -D warnings
	@if [ -n "$$(find "$$(rustc --print sysroot)/lib/rustlib/$(AARCH64)" -name 'libstd-*' 2> /dev/null)" ]; then \
	  echo "clippy for $(AARCH64)"; \
	  $(CARGO) clippy $(MANIFEST) --package vtrain-core --all-targets --target $(AARCH64) --features blake3/pure -- -D warnings; \
	else \
	  echo "NOT CHECKED: gemm/neon.rs was not compiled for NEON (only tested emulated); rustup target add $(AARCH64)" >&2; \
	fi

lint-python: .venv/dev.stamp $(CORE)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

test-rust: lint-rust
	$(CARGO) test $(MANIFEST) --package vtrain-core --lib --tests

# Cargo works while pip fetches, which takes little of a core; then all cores are for pytest.
test:
	@$(MAKE) --jobs=3 --output-sync=target lint-python test-rust
	$(BIN)/python -m tests.prove.compiler
	$(PYTEST) $(CASES) $(PYTEST_ARGS)

test-all: CASES =
test-all: test

bench: .venv/dev.stamp $(CORE)
	@failed=; missing=; mkdir -p benchmarks/results; \
	for script in benchmarks/[a-z]*.py; do \
	  name=$$(basename "$$script" .py); echo "== $$name"; \
	  $(BIN)/python "$$script" $(BENCH_ARGS) --json --out "benchmarks/results/$$name.json"; \
	  case $$? in 0) ;; 3) missing="$$missing $$name" ;; *) failed="$$failed $$name" ;; esac; \
	done; \
	if [ -n "$$missing" ]; then echo "not run, for lack of a device:$$missing" >&2; fi; \
	if [ -n "$$failed" ]; then echo "missed their targets:$$failed" >&2; exit 1; fi

UV_COMPILE := $(BIN)/uv pip compile pyproject.toml --quiet --universal --python-version 3.11 \
  --generate-hashes --no-emit-index-url --custom-compile-command "make lock" --group build

lock: .venv/dev.stamp
	$(UV_COMPILE) --output-file requirements.lock
	$(UV_COMPILE) --extra torch --extra transformers --extra server --extra postgres --extra zk --extra report --extra signing --extra blst --extra store --extra cuda --extra plot --extra tensorboard --extra wandb --group dev --constraint requirements.lock --output-file requirements-dev.lock
	$(UV_COMPILE) --extra server --constraint requirements-dev.lock --output-file requirements-server.lock
	$(UV_COMPILE) --extra zk --constraint requirements-dev.lock --output-file requirements-zk.lock
	$(UV_COMPILE) --extra report --extra blst --constraint requirements-dev.lock --output-file requirements-report.lock
	$(UV_COMPILE) --extra store --constraint requirements-dev.lock --output-file requirements-store.lock
	$(UV_COMPILE) --extra cuda --constraint requirements-dev.lock --output-file requirements-cuda.lock

clean:
	rm -rf .venv rust/target build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	rm -f $(CORE)
	find vtrain tests benchmarks -name __pycache__ -prune -exec rm -rf {} + 2> /dev/null || true
