# Every target makes the virtual environment it needs; nothing has to be done before.
PYTHON ?= python3
RUN := .venv/bin/python -m

.PHONY: demo notebook test lint types bench clean

demo: .venv/demo.stamp
	.venv/bin/python examples/demo.py

notebook: .venv/notebook.stamp
	cd examples && ../.venv/bin/python -m jupyterlab 01_quickstart.ipynb

# pytest comes last, so that its closing line is the last line. Its workers share the cores, which
# the threads of numpy's BLAS would take from each other
test: lint types
	OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(RUN) pytest -n auto

lint: .venv/dev.stamp
	$(RUN) ruff check .
	$(RUN) ruff format --check .

types: .venv/dev.stamp
	$(RUN) mypy

# MovieLens may not be passed on: make bench MOVIELENS=folder with its Parquet files
bench: .venv/demo.stamp
	.venv/bin/python benchmarks/convergence.py $(MOVIELENS)
	.venv/bin/python benchmarks/engines.py

clean:
	rm -rf .venv build sqlfl.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

.venv/%.stamp: pyproject.toml | .venv/bin/python
	$(RUN) pip install --quiet --editable '.[$*]'
	touch $@

.venv/bin/python:
	$(PYTHON) -m venv .venv
