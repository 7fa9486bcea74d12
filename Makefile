# `make demo` and `make test` need Python 3.11 or newer, make and git, and nothing else.
#   make demo     three nodes, a real file through them while one is killed, and back (FILE=... sends yours)
#   make spark-demo  a topic becomes Parquet files by Spark, with a kill in the middle; needs Java 17
#   make quick    the inner ring of the tests: pure state, codecs, one simulated node; a minute on two cores
#   make test     the tests that need Python alone, quick's among them; ten minutes (ARGS="-k offsets" chooses
#                 some, JOBS=4 says how many processes)
#   make conformance  make test, then other languages, Spark, Apache Kafka, chaos; needs Java 17, Maven,
#                 Go, Node.js and kcat, or skips what needs them; ten minutes more
#   make outer    what `make conformance` adds to `make test`
#   make spark    the data source, and loads by Spark, tested with another PySpark (PYSPARK=4.3.0)
#   make lint     ruff, mypy --strict, import-linter
#   make docs     the documentation as a site in build/docs; a link that leads nowhere fails it
#   make sim      the simulator on fresh seeds (SECONDS=60, SEED=1 to repeat a run)
#   make bench    metaquorum and a real Kafka in one run; needs Java 17 and mvn (BENCH= for the long one, NODES=3)
#   make failover the same two, three nodes each: how long partitions have no leader when one is killed or stops (ROUNDS=3);
#                 HOW=all: when they serve again after all three were killed
#   make behind   consumers far behind, and their effect on other clients (BEHIND="--gb 10 --seconds 60")
#   make clean    removes what the others made, but never data
SHELL := /bin/bash
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
JOBS ?= auto
ARGS ?=
SECONDS ?= 60
PYSPARK ?= 4.3.0
BENCH ?= --quick
NODES ?= 1
ROUNDS ?= 3
VENV := .venv
BIN := $(VENV)/bin

# Compiled modules, and tests with rewritten assertions, are kept for the next of many processes.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: docs demo spark-demo test quick conformance outer interpreted lint sim bench failover behind clean spark-discovery
.DELETE_ON_ERROR:

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo 'make: Python 3.11 or newer with its venv module is needed; install it or say PYTHON=/path/to/python3' >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# Extras that another one contains need no installation of their own.
CONTAINED_conformance := test docs
CONTAINED_ci := conformance lint test docs

# One stamp for each extra: packages are installed again when pyproject.toml changes, or a source file
# that is compiled.
$(VENV)/installed-%: $(BIN)/python pyproject.toml $(wildcard wire/records/record_*.py wire/records/plain_batch.py wire/*/*.pxd \
		wire/protocol/produce_one.py wire/protocol/request_header.py)
	@echo 'installing what `make $*` needs into $(VENV)'
	$(BIN)/python -m pip install --disable-pip-version-check --editable '.[$*]'
	@$(MAKE) --no-print-directory spark-discovery
	@touch $@ $(addprefix $(VENV)/installed-,$(CONTAINED_$*))

# Spark finds data sources by listing packages named pyspark_*, which an editable install does not list.
spark-discovery: metaquorum/spark/discovery/__init__.py
	@site="$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" && \
		mkdir -p "$$site/pyspark_metaquorum" && cp $< "$$site/pyspark_metaquorum/"

demo: $(VENV)/installed-demo
	@$(BIN)/python -m metaquorum.cli.demo $(FILE)

spark-demo: $(VENV)/installed-spark
	@$(BIN)/python -m metaquorum.cli.spark_demo

test: $(VENV)/installed-test
	$(BIN)/python -m pytest -n $(JOBS) -rs -m 'not conformance' $(ARGS)

quick: $(VENV)/installed-test
	$(BIN)/python -m pytest -n $(JOBS:auto=logical) -m 'not slow and not conformance' --hypothesis-profile=quick \
		tests/wire tests/metaquorum tests/dataplane $(ARGS)

conformance: test
	@$(MAKE) --no-print-directory outer

outer: $(VENV)/installed-conformance
	$(BIN)/python -m pytest -n $(JOBS) -rs -m conformance $(ARGS)
	@$(MAKE) --no-print-directory interpreted spark

# The code that is compiled, again as the Python that it is (docs/decisions/055 and before).
INTERPRETED := tests/wire/records tests/wire/protocol tests/dataplane/log tests/dataplane/handlers/test_produce*.py \
	tests/dataplane/handlers/test_fetch.py tests/dataplane/maintenance/test_log_cleaner.py \
	tests/hostile/test_lying_batches.py tests/hostile/test_siege.py
interpreted: $(VENV)/installed-test
	@form="$$($(BIN)/python -c 'from metaquorum.wire.protocol import request_form; from metaquorum.wire.records import walk_form; \
		print(*sorted({request_form.form_name(), walk_form.form_name()}), sep=" and ")')"; \
	if [ "$$form" = compiled ]; then \
		METAQUORUM_INTERPRETED=1 $(BIN)/python -m pytest -n $(JOBS) $(INTERPRETED); \
	elif command -v "$${CC:-cc}" >/dev/null; then \
		echo "there is a C compiler, but the form is $$form; see the output of the installation" >&2; exit 1; \
	else \
		echo 'there is no C compiler, so there is no other form'; \
	fi

# In a folder of its own, because the environment has another release of PySpark.
$(VENV)/pyspark-%: $(BIN)/python
	rm -rf $@
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --target $@ 'pyspark==$*' || { rm -rf $@; exit 1; }

spark: $(VENV)/installed-conformance $(VENV)/pyspark-$(PYSPARK)
	PYTHONPATH="$(CURDIR)/$(VENV)/pyspark-$(PYSPARK)" SPARK_HOME="$(CURDIR)/$(VENV)/pyspark-$(PYSPARK)/pyspark" \
		$(BIN)/python -m pytest -rs -k 'not kafka' tests/metaquorum/spark/test_source.py \
		tests/metaquorum/spark/by_spark $(ARGS)

lint: $(VENV)/installed-lint
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/installed-docs
	$(BIN)/python -m sphinx -b html -W --keep-going -q -j auto docs build/docs
	@echo 'built: build/docs/index.html'

sim: $(VENV)/installed-test
	$(BIN)/python -m metaquorum.simulations run $(if $(SEED),--start $(SEED),--start $$((RANDOM * 32768 + RANDOM))) --count 1000000 --seconds $(SECONDS) $(ARGS)

bench: $(VENV)/installed-test
	BIN="$(CURDIR)/$(BIN)" NODES=$(NODES) TLS=$(TLS) tests/peers/side_by_side $(BENCH)

failover: $(VENV)/installed-test
	BIN="$(CURDIR)/$(BIN)" HOW="$(HOW)" tests/peers/failover --rounds $(ROUNDS)

behind: $(VENV)/installed-test
	BIN="$(CURDIR)/$(BIN)" $(BIN)/python tests/peers/slow_consumers $(BEHIND)

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -f wire/records/_record_*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
