# Everything from a fresh clone, with Python >= 3.11 and make: `make demo`, `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Real data beside the checkout, where there is some; otherwise the catalogue's own cache.
ifneq ($(wildcard ../shared/data),)
export CONCF_DATA_HOME ?= $(abspath ../shared/data)
endif

# Python keeps what it has compiled, whatever the shell says: the tests start a hundred processes and more.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo test lint docs bench baselines reproduction dist clean

setup: $(READY)

# pip would compile every file of every library, of which few are ever imported. What all of concf needs is imported, and
# so compiled, at once; the rest when it is first asked for.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("concf needs Python 3.11 or newer" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[test]'
	$(BIN)/python -c 'import torch._dynamo, concf.cli, concf.data.prepare, concf.learning.train'
	touch $(READY)

demo: setup
	$(BIN)/concf demo

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

docs: setup
	$(BIN)/python -m concf.reference docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "Open site/index.html"

bench: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt matplotlib
	cd benchmarks/results && rm -f evaluation.jsonl splitting.jsonl loading.jsonl training.jsonl scaling.jsonl memory.jsonl
	rm -rf benchmarks/data && mkdir benchmarks/data
	$(BIN)/concf prepare citeulike --protocol released --out benchmarks/data/released
	$(BIN)/concf prepare citeulike --protocol paper --out benchmarks/data/paper
	$(BIN)/python benchmarks/bench_training.py benchmarks/data/released
	$(BIN)/python benchmarks/bench_training.py benchmarks/data/paper
	$(BIN)/python benchmarks/bench_scaling.py time
	$(BIN)/python benchmarks/bench_scaling.py memory
	$(BIN)/python benchmarks/bench_scaling.py memory --users 200000 --items 100000 --pairs 10000000 --steps 20
	$(BIN)/python benchmarks/bench_evaluation.py
	$(BIN)/python benchmarks/bench_splitting.py
	$(BIN)/python benchmarks/bench_loading.py
	$(BIN)/python benchmarks/bench_loading.py --users 20000 --items 500
	$(BIN)/python benchmarks/render.py

baselines: setup
	$(BIN)/python benchmarks/compare_baselines.py

reproduction: setup
	$(BIN)/concf reproduce --render

dist: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt build
	rm -rf dist
	$(BIN)/python -m build

clean:
	rm -rf $(VENV) dist build site src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
