# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check install --quiet --no-compile -c constraints.txt
BYTES  := $(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true  # on all cores; pip takes one
FILES  := pyproject.toml constraints.txt

# Bytecode is kept: without it every process of the tests compiles their files and ours again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-all test-browser same lint docs results clean

demo: $(VENV)/.installed-demo
	$(BIN)/nsde demo

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m "not slow" -n 2 --dist worksteal

test-all: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n 2 --dist worksteal

# The studio in Chromium, which is installed where that is possible; without it the tests are skipped, and say so.
test-browser: $(VENV)/.installed-dev
	command -v chromium >/dev/null || timeout 400 sh -c "apt-get update -qq && apt-get install -y -qq chromium" >/dev/null 2>&1 || true
	$(BIN)/python -m pytest tests/browser -rs

# Whether a move of code kept every number: make same BASE=<commit>
same: $(VENV)/.installed-dev
	$(BIN)/python -W ignore tests/same.py --base $(BASE)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy

docs: $(VENV)/.installed-docs
	$(BIN)/python docs/tables.py
	$(BIN)/mkdocs build --strict --quiet
	@echo "The documentation is in site/index.html"

# What in results/ is stale, and whether pages show what it holds. `nsde compare TASK` runs the rows again.
results: $(VENV)/.installed-demo
	$(BIN)/python docs/stale.py
	$(BIN)/python docs/tables.py --check

# torch first and pinned: asked for by a range it would come as several gigabytes of CUDA.
$(VENV)/.torch: constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch
	@touch $@

$(VENV)/.installed-demo: $(VENV)/.torch $(FILES)
	$(PIP) -e ".[plots,baselines]"
	$(BYTES)
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.torch $(FILES)
	$(PIP) -e ".[plots,baselines,data,pusht,video,export,studio,dev]"
	$(BYTES)
	@touch $@ $(VENV)/.installed-demo

$(VENV)/.installed-docs: $(VENV)/.torch $(FILES)
	$(PIP) -e ".[docs,plots,baselines]"
	$(BYTES)
	@touch $@

clean:
	rm -rf $(VENV) runs site dist build .pytest_cache .ruff_cache .mypy_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
