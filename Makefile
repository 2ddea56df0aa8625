# Everything from a fresh clone, with Python >= 3.11 and make: `make demo`, `make setup`, `make test`.
PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= constraints.txt
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS)

# Two sets of libraries, the second with all of the first, for which it stands too.
READY := $(VENV)/.ready
TEST := $(VENV)/.ready-test
$(READY): EXTRAS := baselines,report,serve
$(TEST): EXTRAS := test
$(READY): STANDS_FOR := $(READY)
$(TEST): STANDS_FOR := $(READY) $(TEST)

# Real data beside the checkout, where there is some; otherwise the catalogue's own cache.
ifneq ($(wildcard ../shared/data),)
export CONCF_DATA_HOME ?= $(abspath ../shared/data)
endif

# Python keeps what it has compiled, whatever the shell says: the tests start a hundred processes and more.
unexport PYTHONDONTWRITEBYTECODE

.NOTPARALLEL:
.PHONY: setup demo test suite test-oldest lint size docs gallery bench accuracy speed time reproduction wheels dist \
	installed clean

setup: $(READY)

# pip would compile every file of every library, of which few are ever imported. What all of concf needs is imported, and
# so compiled, at once; the rest when it is first asked for. What pip was killed over (it names itself in INSTALLER last)
# it would take for installed: that is removed first.
$(READY) $(TEST): pyproject.toml $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; sys.exit("concf needs Python 3.11 or newer" if sys.version_info < (3, 11) else 0)'
	@for info in $(VENV)/lib/python3*/site-packages/*.dist-info; do test -e "$$info/INSTALLER" || rm -rf "$$info"; done
	$(PYTHON) -m venv $(VENV)
	$(PIP) --no-compile -e '.[$(EXTRAS)]'
	$(BIN)/python -c 'import torch._dynamo, concf.cli.app, concf.data.prepare, concf.models'
	@touch $(STANDS_FOR)

demo: $(READY)
	$(BIN)/concf demo

lint: $(TEST)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

test: lint suite

# Three workers on two cores: many tests wait for processes of their own.
suite: $(TEST)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist worksteal

# Lines of code by room beside their budget: a change reports how much they grew.
size:
	@$(PYTHON) tools/size.py

# The oldest libraries that pyproject.toml allows, in an environment of their own.
OLDEST := build/constraints-oldest.txt
test-oldest: $(OLDEST)
	$(MAKE) suite VENV=.venv-oldest CONSTRAINTS=$(OLDEST)

$(OLDEST): pyproject.toml tools/oldest.py
	@mkdir -p build
	$(PYTHON) tools/oldest.py > $@

# Which of the pinned libraries have wheels where: PLATFORMS.md, as pip says it today.
wheels: $(TEST)
	$(BIN)/python tools/wheels.py --write

# The examples, run, with what they print and draw: docs/gallery/.
gallery: $(TEST)
	$(BIN)/python tools/gallery.py docs

docs: $(TEST) gallery
	$(BIN)/python tools/reference.py docs
	$(BIN)/python tools/architecture.py docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "Open site/index.html"

bench: $(READY)
	cd benchmarks/results && rm -f first_log.jsonl evaluation.jsonl splitting.jsonl loading.jsonl training.jsonl scaling.jsonl memory.jsonl
	rm -rf benchmarks/data && mkdir benchmarks/data
	$(BIN)/concf prepare citeulike --protocol released --out benchmarks/data/released
	$(BIN)/concf prepare citeulike --protocol paper --out benchmarks/data/paper
	$(BIN)/python benchmarks/bench_first_log.py
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

# Minutes: fails if the default is less accurate than its committed lines allow, or slower beside a yardstick.
accuracy: $(READY)
	$(BIN)/python benchmarks/watch.py accuracy

speed: $(READY)
	$(BIN)/python benchmarks/watch.py speed

# Hours on a CPU, minutes on a GPU: models at rolling cuts of three logs, docs/time.md.
time: $(READY)
	$(BIN)/python benchmarks/over_time.py prepare
	$(BIN)/python benchmarks/over_time.py measure
	$(BIN)/python benchmarks/over_time.py render

reproduction: $(READY)
	$(BIN)/python -m reproduction.render

# Wheel and source archive, checked; without concf's own libraries. The wheel alone, then as it is used: `make installed`.
dist:
	$(PYTHON) -m venv $(VENV)
	$(PIP) build check-wheel-contents twine
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/check-wheel-contents dist/*.whl

# The built wheel in empty environments, every supported Python with no extras, `serve` and `all`; takes half an hour.
installed: dist
	$(BIN)/python tools/installed.py dist/*.whl --suite 3.12

clean:
	rm -rf $(VENV) .venv-oldest dist build site src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
