# Needs Python 3.11 or newer, git and make; finds or installs everything else.
.DEFAULT_GOAL := help
SHELL := /bin/sh
# The code is checked while tests run, for much of their preparation and some of them only wait.
MAKEFLAGS += --jobs=3

CANDIDATES := python3 python3.11 python3.12 python3.13 python3.14
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in $(CANDIDATES); do "$$p" -c '$(NEW_ENOUGH)' 2>/dev/null && echo "$$p" && break; done)
BIN := .venv/bin
PACKAGES := .venv/packages.stamp
COMPILED := .venv/compiled.stamp
CODE := $(wildcard txmq jobs)
PROJECT := '.[demo,spark,dev]'
STATE_MACHINE := tests/tables/test_store_state_machine.py
# uv takes a third of pip's time; it is told of pip's mirror, and where it fails pip does it.
INSTALL_QUICKLY := index=$$($(BIN)/pip config get :env:.index-url || $(BIN)/pip config get global.index-url); \
	$(BIN)/pip install -qq uv && \
	$${index:+env UV_DEFAULT_INDEX=$$index} $(BIN)/uv pip install -q -p $(BIN)/python -e $(PROJECT)

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' $(MAKEFILE_LIST) | while IFS='|' read -r t s; do printf '  make %-12s %s\n' "$$t" "$$s"; done

demo: ready ## run the demo: flights, a crash, and messages that tell the truth
	$(BIN)/txmq demo

test: lint all-tests ## check the code and run the tests, three at a time; `make long` runs the longest

# Three workers on a few cores: threads of delta-rs for each would only take turns.
all-tests: archive $(COMPILED)
	TOKIO_WORKER_THREADS=1 $(BIN)/pytest -n 3 --dist loadgroup -m "not long"

long: archive ## run the tests that take longest: notebooks, killed jobs, the checker against its oracle
	TOKIO_WORKER_THREADS=1 $(BIN)/pytest -n 3 --dist loadgroup -m long

# Once, for else each of the workers compiles every module that tests import.
$(COMPILED): $(PACKAGES)
	@$(BIN)/pytest -n 0 --collect-only -qq >/dev/null || true
	@touch $@

quick: $(PACKAGES) ## run the tests that open no table: below a minute, for every save
	$(BIN)/pytest -q tests/pure

lint: $(PACKAGES) ## ruff, mypy --strict, layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy --strict $(CODE)
	$(BIN)/lint-imports

house: $(PACKAGES) ## measure the house: modules, rooms, arrows, code lines
	@$(BIN)/python -m tests.kit.house

slices: ready ## run short slices of the long stories, and the state machine with many examples
	TOKIO_WORKER_THREADS=1 STATE_MACHINE_EXAMPLES=2000 $(BIN)/pytest -n 3 --dist loadgroup tests/endurance $(STATE_MACHINE)

FOREIGN := tests/tables/test_foreign_input.py

foreign: $(PACKAGES) ## run honest days beside 10,000 rows, properties, marks and files of other programs (FOREIGN_INPUT=n: n)
	TOKIO_WORKER_THREADS=1 FOREIGN_INPUT=$${FOREIGN_INPUT:-10000} $(BIN)/pytest -n 3 --timeout 0 $(FOREIGN)

places: ready prometheus ## run Spark on S3, over Spark Connect and on a cluster, with a Prometheus, as docs/places.md says
	PROMETHEUS_FOLDER=$(PROMETHEUS)/usr/bin $(BIN)/pytest tests/places
	$(MAKE) azure container browser bundle

BUNDLES := $(CURDIR)/.venv/databricks-bundles

bundle: $(PACKAGES) ## compare the bundle for Databricks with Databricks's own types, and with its schema where `databricks` is
	@test -d $(BUNDLES) || $(BIN)/pip install -qq --no-deps --target $(BUNDLES) databricks-bundles==1.22.1 || \
	  echo "skipped  Databricks's types: pip could not fetch them"
	@DATABRICKS_BUNDLES=$$(test -d $(BUNDLES) && echo $(BUNDLES)) \
	  $(BIN)/pytest -n 0 tests/places/test_databricks_bundle.py

PROMETHEUS := $(CURDIR)/.venv/prometheus

# The package of Debian, unpacked and not installed: an installed one would start a service.
prometheus: $(PACKAGES)
	@test -x $(PROMETHEUS)/usr/bin/prometheus || command -v prometheus >/dev/null || { \
	  mkdir -p $(PROMETHEUS) && cd $(PROMETHEUS) && \
	  { apt-get update -qq; apt-get download -qq prometheus && dpkg -x prometheus_*.deb .; } >/dev/null 2>&1; } || \
	  echo "skipped  Prometheus: apt-get could not fetch it"

AZURITE := .venv/azurite/node_modules/.bin/azurite-blob

azure: ready ## run the tests of object stores on Azurite, a server of Azure's storage (needs npm; 4 minutes)
	@command -v npm >/dev/null || echo "skipped  Azurite: npm is not installed"
	@! command -v npm >/dev/null || npm install --silent --no-fund --prefix .venv/azurite azurite@3.35
	@! command -v npm >/dev/null || OBJECT_STORE=azure AZURITE=$(CURDIR)/$(AZURITE) $(BIN)/pytest -n 2 tests/process/object_store

AXE := $(CURDIR)/.venv/axe/node_modules/axe-core/axe.min.js
HAS_BROWSER := command -v chromium chromedriver

browser: ready ## open the dashboard in Chromium, with axe where npm is (needs chromium and chromium-driver)
	@$(HAS_BROWSER) >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium chromium-driver; \
	  } >/dev/null 2>&1 || echo "skipped  the browser: chromium or chromium-driver cannot be had"
	@! command -v npm >/dev/null || npm install --silent --no-fund --prefix .venv/axe axe-core@4.10
	AXE=$(AXE) $(BIN)/pytest -n 0 tests/places/test_dashboard_in_browser.py

CONTAINER_BASE := .venv/container/base.tar
CAN_BUILD := [ "$$(id -u)" = 0 ] && command -v buildah debootstrap pkill >/dev/null

container: ready ## build the image and run its broker (needs root, buildah and debootstrap; 3 minutes)
	@$(CAN_BUILD) || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends buildah debootstrap procps; \
	  } >/dev/null 2>&1 || echo "skipped  the image: buildah or debootstrap cannot be had"
	@! { $(CAN_BUILD); } || { $(MAKE) $(CONTAINER_BASE) && \
	  CONTAINER_BASE=$(CURDIR)/$(CONTAINER_BASE) $(BIN)/pytest -n 0 tests/places/test_container.py; }

# Debian with Python: an image of a registry would do as well, where one can be reached.
$(CONTAINER_BASE):
	mkdir -p $(@D) && debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates \
	  bookworm $(@D)/root >$(@D)/debootstrap.log
	tar -C $(@D)/root --exclude='./dev/*' --exclude='./proc/*' -cf $@.part . && mv $@.part $@
	rm -rf $(@D)/root

HAS_SPIN := command -v spin && command -v gcc

model: $(PACKAGES) ## search the models of docs/model, each with its mends left out (needs spin and gcc; 3 minutes)
	@{ $(HAS_SPIN); } >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends spin gcc libc6-dev; } >/dev/null 2>&1 || true
	@$(BIN)/python -m tests.kit.model

cluster: ready ## run the part of it that has a Spark cluster of its own
	$(BIN)/pytest tests/places/test_cluster.py

# A program of Go; the first build takes some minutes.
VERSITYGW := $(BIN)/versitygw
OVER_S3 := $(addprefix tests/tables/, delta store publish consumer check maintenance user_data)

object-store: $(VERSITYGW) ready ## run tests of tables through an S3 server (needs go; 12 minutes)
	VERSITYGW=$(VERSITYGW) $(BIN)/pytest -n 2 -p tests.kit.over_s3 $(OVER_S3)

$(VERSITYGW): | $(PACKAGES)
	GOBIN=$(CURDIR)/$(BIN) go install github.com/versity/versitygw/cmd/versitygw@v1.8.0

SPARK = $$($(BIN)/python -c "from txmq.spark.jars import spark_home; print(spark_home())")
DELTA = $$($(BIN)/python -c "from txmq.spark.jars import *; print(jar_folder(cache_folder()))")
JAVA_FOLDER := txmq/user_data/java

jar: ready ## build the log store for Spark on S3 anew (needs a JDK)
	rm -rf build/java && mkdir -p build/java
	javac --release 11 -Xlint:all -Werror -d build/java \
		-cp "$$(ls $(SPARK)/jars/hadoop-client-api-*.jar):$$(ls $(DELTA)/io.delta_delta-storage-*.jar)" \
		$(JAVA_FOLDER)/S3ConditionalLogStore.java
	cp $(JAVA_FOLDER)/S3ConditionalLogStore.java LICENSE build/java
	jar --create --date=2026-01-01T00:00:00Z --no-manifest --file $(JAVA_FOLDER)/txmq-s3-log-store.jar -C build/java .

wheel: $(PACKAGES) ## build the wheel and try it alone under each Python: import, send, publish, read
	$(BIN)/python -m tests.wheel

recipes: $(PACKAGES) ## run the recipes of docs/recipes with the frameworks that they are for; RECIPES="django kafka" names some
	$(BIN)/python -m tests.recipes $(RECIPES)
matrix: ready ## try the wheel with each extra and with each Spark and Delta of docs/install.md; CORNERS="http" names some
	$(BIN)/python -m tests.wheel.matrix $(CORNERS)

AUDIT := .venv/audit
AUDIT_TOOLS := cyclonedx-bom==7.5.0 pip-audit==2.10.1 pip-licenses==5.5.5

audit: $(PACKAGES) ## write a bill of materials, the licences and the known holes of all packages into build/audit
	@test -x $(AUDIT)/bin/pip-audit || { $(BIN)/python -m venv $(AUDIT) && $(AUDIT)/bin/pip install -qq $(AUDIT_TOOLS); }
	$(BIN)/python -m tests.wheel.audit $(AUDIT)

SITE := .venv/site
SITE_TOOLS := mkdocs-material==9.8.1 mkdocstrings==1.0.8 mkdocstrings-python==2.0.11 ruff
MERMAID := .venv/mermaid/node_modules/mermaid/dist/mermaid.min.js

docs: $(PACKAGES) $(MERMAID) ## build the pages as a site in build/site, strictly; links are checked
	@test -x $(SITE)/bin/mkdocs || { $(BIN)/python -m venv $(SITE) && $(SITE)/bin/pip install -qq $(SITE_TOOLS); }
	MERMAID=$(MERMAID) NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs build --quiet --strict --config-file deploy/site/mkdocs.yml
	$(BIN)/python -m tests.kit.site_links build/site

# Without npm the pages fetch it from where they are read.
$(MERMAID):
	@! command -v npm >/dev/null || npm install --silent --no-fund --prefix .venv/mermaid mermaid@11 || \
	  echo "skipped  Mermaid: npm could not fetch it"

endurance: ready ## tell the long stories in full, for an hour and a half; STORIES="torture race" names some of five
	$(BIN)/python -m tests.endurance $(STORIES) --keep

bench: ready ## measure, print tables, keep the results in bench/results
	$(BIN)/python -m bench

ready: $(PACKAGES) ## find or install Python packages, Java and Delta's jars
	@$(BIN)/python -m txmq.spark.java

archive: ready ## let Java keep the classes that tests load, so that they start quicker
	@$(BIN)/python -m tests.kit.class_archive

clean: ## remove the virtual environment and all caches of this folder
	rm -rf .venv build *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

$(PACKAGES): setup.cfg pyproject.toml | $(BIN)/pip
	@echo "install  packages into .venv (1.2 GB on disk, once; this takes half a minute or more)"
	@($(INSTALL_QUICKLY)) 2>/dev/null || $(BIN)/python -m pip install -qq -e $(PROJECT) || { \
	  echo "missing  packages: pip could not fetch them, see above"; \
	  echo "to do    check the network; behind a mirror, set PIP_INDEX_URL; then run make again"; \
	  exit 1; }
	@touch $@

# pip is what a virtual environment gets last: without it, an earlier start was cut short.
$(BIN)/pip:
	@"$(PYTHON)" -c '$(NEW_ENOUGH)' 2>/dev/null || { \
	  echo "missing  Python 3.11 or newer (tried: $(or $(PYTHON),$(CANDIDATES)))"; \
	  echo "to do    install one, or run make PYTHON=/path/to/python3"; \
	  exit 1; }
	@if "$(PYTHON)" -c 'import ensurepip' 2>/dev/null; then "$(PYTHON)" -m venv .venv; \
	elif "$(PYTHON)" -m virtualenv --version >/dev/null 2>&1; then "$(PYTHON)" -m virtualenv -q .venv; \
	elif command -v uv >/dev/null; then uv venv -q --seed --python "$(PYTHON)" .venv; \
	else \
	  echo "missing  the modules venv and ensurepip of $(PYTHON)"; \
	  echo "to do    install the package python3-venv, or virtualenv, or uv; or run make PYTHON=/path/to/another/python3"; \
	  exit 1; fi

.PHONY: help model house matrix audit docs browser bundle demo test all-tests long quick lint bench slices places prometheus cluster azure container object-store jar wheel recipes endurance ready archive clean
