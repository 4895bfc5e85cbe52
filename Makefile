# Two commands: `make serve` and `make test`. Both set up what is missing, on a machine with Python 3.11+, pip and make.
#   make serve PORT=8080 HOST=127.0.0.1 DATA=/var/lib/stemma CONFIG=configs/default.toml

PYTHON ?= python3
VENV ?= .venv
PIP_ARGS ?=
# of `make test`: each wants a core and 2 GiB of memory
WORKERS ?= 2
# Only what was said to make: a shell's own HOST or PORT is not meant.
given = $(if $(filter command,$(firstword $(origin $(1)))),$(2) $($(1)))
SERVE_ARGS = $(call given,CONFIG,--config) $(call given,DATA,--data) $(call given,HOST,--host) \
	$(call given,PORT,--port) $(call given,MODEL,--model)

BIN := $(VENV)/bin
RUNTIME := $(VENV)/.runtime-installed
TOOLS := $(VENV)/.tools-installed
OLDEST := $(VENV)-oldest/.installed
CLIENTS := $(VENV)-clients/.installed
DESCRIBED := $(VENV)-described/.installed
NODE := tests/clients/node
NODE_CLIENTS := $(NODE)/node_modules/.installed

.PHONY: serve pull test test-served test-benches test-clients node test-gpu-check test-oldest test-compile test-described soak check format clean
.DELETE_ON_ERROR:

serve: $(RUNTIME)
	@$(BIN)/stemma serve $(SERVE_ARGS)

pull: $(RUNTIME)
	@$(BIN)/stemma pull $(call given,DATA,--data)

test: $(TOOLS)
	@$(BIN)/stemma pull --data data
	GOMP_SPINCOUNT=2000 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# The default model behind a running server; servers killed and started again; and what their clocks give away, so
# that nothing else may run beside it.
test-served: $(TOOLS)
	@$(BIN)/stemma pull --data data
	GOMP_SPINCOUNT=2000 $(BIN)/python -m pytest tests/integration tests/processes

# The programs of `stemma bench`, at tiny sizes.
test-benches: $(TOOLS)
	@$(BIN)/stemma pull --data data
	GOMP_SPINCOUNT=2000 $(BIN)/python -m pytest tests/benchmarks

# The GPU's path and the check for GPUs at tiny sizes, in Triton's interpreter, and attention compiled for every chip.
test-gpu-check: $(TOOLS)
	GOMP_SPINCOUNT=2000 $(BIN)/python -m pytest tests/gpu tests/scripts

# Real clients, unchanged, against a running server: they have an environment of their own, and Node's packages.
test-clients: node $(RUNTIME) $(CLIENTS) $(NODE_CLIENTS)
	@$(BIN)/stemma pull --data data
	SERVER_PYTHON=$(abspath $(BIN)/python) $(VENV)-clients/bin/python -m pytest -c tests/clients/pytest.ini tests/clients

node:
	@{ command -v curl && command -v npm && node -e 'parseInt(process.versions.node) >= 20 || process.exit(1)'; } >/dev/null 2>&1 || \
		{ echo "make test-clients needs curl, and Node.js 20 or newer with npm: install curl, nodejs and npm" >&2; exit 1; }

# With the oldest torch and Triton that are promised. Triton 3.6 interprets with NumPy before 2.4 only.
test-oldest: $(OLDEST)
	GOMP_SPINCOUNT=2000 $(VENV)-oldest/bin/python -m pytest -W "ignore:Conversion of an array:DeprecationWarning" \
		tests/kernels tests/gpu tests/engine/test_graphs.py tests/engine/test_transfer.py \
		tests/engine/test_kv_pool.py tests/engine/test_sampling.py -k "not (compiled and (sm_80 or gfx942))"

# Every shape of heads and blocks for every chip: half an hour on an idle machine.
test-compile: $(TOOLS)
	$(BIN)/python -m pytest tests/gpu/compile_matrix.py

# What is served is what /openapi.json says, as a tool that makes requests of it finds.
test-described: $(TOOLS) $(DESCRIBED)
	$(BIN)/python -m pytest tests/gateway/fuzzed.py

soak: $(TOOLS)
	$(BIN)/python -m tests.simulation.soak --steps 1000000
	$(BIN)/python -m pytest --hypothesis-profile=soak tests/prefix_cache tests/simulation

check: $(TOOLS)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(TOOLS)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) $(VENV)-oldest $(VENV)-clients $(VENV)-described $(NODE)/node_modules build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit("Stemma needs Python 3.11 or newer, and this is " + sys.version.split()[0] + ": run make with PYTHON=python3.11, for one" if sys.version_info < (3, 11) else 0)'
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "python -m venv failed: on Debian and Ubuntu, install python3-venv" >&2; exit 1; }

$(RUNTIME): pyproject.toml requirements.lock | $(BIN)/python
	$(BIN)/python -m pip install $(PIP_ARGS) --constraint requirements.lock --editable .
	@touch $@

$(TOOLS): $(RUNTIME)
	$(BIN)/python -m pip install $(PIP_ARGS) --constraint requirements.lock --editable '.[dev]'
	@touch $@

$(OLDEST): pyproject.toml requirements-oldest.txt
	@$(PYTHON) -m venv $(VENV)-oldest
	$(VENV)-oldest/bin/python -m pip install $(PIP_ARGS) --constraint requirements-oldest.txt --editable '.[dev]'
	@touch $@

$(CLIENTS): tests/clients/requirements.txt
	@$(PYTHON) -m venv $(VENV)-clients
	$(VENV)-clients/bin/python -m pip install $(PIP_ARGS) --requirement tests/clients/requirements.txt
	@touch $@

$(NODE_CLIENTS): $(NODE)/package.json $(NODE)/package-lock.json
	npm ci --prefix $(NODE) --no-audit --no-fund
	@touch $@

$(DESCRIBED): requirements-described.txt
	@$(PYTHON) -m venv $(VENV)-described
	$(VENV)-described/bin/python -m pip install $(PIP_ARGS) --requirement requirements-described.txt
	@touch $@
