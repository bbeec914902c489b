# Every target makes the virtual environment it needs; nothing has to be done before.
PYTHON ?= python3
RUN := .venv/bin/python -m
SCALE ?= 0.01
# What is imported is compiled once, and kept: without this variable of whoever calls, which has each
# of the tests' dozens of processes compile all modules anew
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo demo-remote notebook docs test integrations chromium quick thorough soak lint types bench \
	clean

demo: .venv/demo.stamp
	.venv/bin/python examples/demo.py

# Processes of their own for a coordinator, four parties and an analyst, over TLS
demo-remote: .venv/demo.stamp
	.venv/bin/python examples/distributed/run.py

notebook: .venv/notebook.stamp
	cd examples && ../.venv/bin/python -m jupyterlab 01_quickstart.ipynb

# The site, with the notebooks run: build/site/index.html
docs: .venv/docs.stamp
	$(RUN) mkdocs build --quiet

# Workers share the cores, which the threads of numpy's BLAS would take from each other. The order of
# a set of texts follows from the seed too
ENVIRONMENT = OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 PYTHONHASHSEED=$(or $(SQLFL_SEED),0)
PYTEST = $(ENVIRONMENT) $(RUN) pytest -n auto

# All tests but the integrations. The types are checked on one core while the tests begin on the
# others. Where they are right pytest's closing line is the last line, else what mypy says is
test: lint
	@$(RUN) mypy > .venv/types.txt 2>&1 & types=$$!; \
	$(PYTEST); tests=$$?; \
	wait $$types || { cat .venv/types.txt; exit 1; }; exit $$tests

# Tests with Ray, NVFlare, Flower and a browser, at full depth. A skipped test is a failure here. Only
# their files are read: others import packages that this environment does without
integrations: chromium .venv-integrations/integrations.stamp
	SQLFL_DEPTH=thorough $(ENVIRONMENT) .venv-integrations/bin/python -m pytest -m integration \
		--no-skips $$(grep -rl --include='test_*.py' 'mark[.]integration' tests)

# From the packages of Debian, by root; elsewhere whoever runs the tests installs it
chromium:
	@tests/chromium.sh

# For the edit loop: two cases of each test that is not slow
quick: .venv/dev.stamp
	SQLFL_DEPTH=quick $(PYTEST)

# The same tests at full depth, with a new seed: hundreds of random examples, all combinations, 200
# kills. make thorough SHARD=3/20 runs the third of 20 parts, and adds its result to tests/thorough.md
thorough: export SQLFL_DEPTH := thorough
thorough: export SQLFL_SEED := $(or $(SQLFL_SEED),$(shell date +%s))
thorough: .venv/dev.stamp
	$(PYTEST) $(SHARD:%=--shard %)

# Real processes that are killed, stopped and cut off: 200 schedules, and an hour of restarts. A short
# one: make soak SOAK='--schedules 10 --minutes 5'
soak: .venv/dev.stamp
	OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(RUN) tests.soak $(SOAK)

lint: .venv/dev.stamp
	$(RUN) ruff check .
	$(RUN) ruff format --check .

types: .venv/dev.stamp
	$(RUN) mypy

# MovieLens, UCI HAR and Phishing may not be passed on: make bench MOVIELENS=folder HAR=folder
# PHISHING=folder, with their Parquet files. SCALE=1 makes the generated tables as large as the
# paper's, and the generated joins 100 million rows
bench: .venv/bench.stamp
	.venv/bin/python benchmarks/speed.py $(MOVIELENS:%=--movielens %) --rows $(SCALE)e8
	.venv/bin/python benchmarks/coordinator.py executors
	.venv/bin/python benchmarks/dp_overhead.py
	.venv/bin/python benchmarks/privacy.py flights
	$(if $(MOVIELENS),.venv/bin/python benchmarks/privacy.py movielens $(MOVIELENS))
	.venv/bin/python benchmarks/generated.py mimic --scale $(SCALE)
	.venv/bin/python benchmarks/generated.py yelp --scale $(SCALE)
	$(if $(MOVIELENS),.venv/bin/python benchmarks/coordinator.py epoch $(MOVIELENS))
	$(if $(MOVIELENS)$(HAR),.venv/bin/python benchmarks/har.py \
		$(MOVIELENS:%=--movielens %) $(HAR:%=--har %))
	.venv/bin/python benchmarks/protection.py sums
	.venv/bin/python benchmarks/pbm.py --join 1 $(PHISHING:%=--phishing %) $(HAR:%=--activity %)

clean:
	rm -rf .venv .venv-integrations build sqlfl/models/native/_compiled.so sqlfl.egg-info .pytest_cache .mypy_cache \
		.ruff_cache .hypothesis

SOURCES := pyproject.toml setup.py $(wildcard sqlfl/models/native/*.[ch])
# pip would compile all 17,000 modules, on one core, of which a third is ever imported; and the pip
# that comes with Python takes twice as long as today's
INSTALL = $(@D)/bin/python -m pip install --quiet --no-compile --editable '.[$*]' && touch $@

.venv/%.stamp: $(SOURCES) | .venv/bin/python
	$(INSTALL)

# Apart from .venv: Flower holds back protobuf and others, which all tests would then use
.venv-integrations/%.stamp: $(SOURCES) | .venv-integrations/bin/python
	$(INSTALL)

.venv/bin/python .venv-integrations/bin/python:
	$(PYTHON) -m venv $(@:/bin/python=)
	$@ -m pip install --quiet --upgrade pip
