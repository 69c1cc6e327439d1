# Every target sets itself up: Python, pip and make are all a fresh machine needs.
PYTHON ?= python3
VENV := .venv
TORCHVISION := .venv-torchvision
RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip install --quiet --constraint constraints.txt
ARGS ?=

.PHONY: help demo test check docs pictures bench growth callbacks page compat clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 16

demo: $(VENV)/dev  ## train the three examples on two DDP ranks; the logs are for TensorBoard
	$(RUN) examples/retrieval_digits.py --devices 2
	$(RUN) examples/hashing_digits.py --devices 2
	$(RUN) examples/detection_digits.py --devices 2

test: check docs  ## check and docs, then every test and doctest (ARGS="-k hashing -x" goes to pytest)
	$(RUN) -m pytest $(ARGS)

check: $(VENV)/dev  ## format, lint, types and workflows
	$(RUN) -m ruff format --check .
	$(RUN) -m ruff check .
	$(RUN) -m mypy
	$(VENV)/bin/zizmor --quiet --offline .github/workflows

# mkdocs without --quiet, which hides the warnings from --strict as well
docs: $(VENV)/dev  ## build the site into build/site; a broken link or a name without a page is an error
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict

pictures: $(VENV)/dev  ## make the pictures of the README again from the detection demo, into docs/images (needs Chromium)
	$(RUN) docs/pictures.py

bench: $(VENV)/bench $(if $(TORCHVISION),$(TORCHVISION)/bench)  ## time us beside the peers (ARGS="--quick --only hashing --memory"; TORCHVISION= leaves out its 5.5 GB)
	$(RUN) benchmarks/run.py $(ARGS)

growth: $(VENV)/dev  ## time and memory of each metric as its input grows (ARGS="--only hashing", "--large", "--imports")
	$(RUN) benchmarks/growth.py $(ARGS)

page: $(VENV)/bench $(TORCHVISION)/bench  ## measure everything and write docs/benchmarks.md (half an hour of a quiet machine)
	$(RUN) benchmarks/run.py --full --memory --json benchmarks/measured.json
	$(RUN) benchmarks/growth.py --json benchmarks/growth.json
	$(RUN) benchmarks/page.py

callbacks: $(VENV)/dev  ## time what the Lightning callback adds at the end of an epoch (ARGS="--images 500")
	$(RUN) benchmarks/callbacks.py $(ARGS)

compat:  ## a part of the tests against the oldest and newest torchmetrics and Lightning (ARGS="oldest": one of them)
	$(PYTHON) tests/compat.py $(ARGS)

clean:  ## remove all that the other targets make
	rm -rf $(VENV) .venv-torchvision build dist logs lightning_logs wandb .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# With two threads in each of two ranks, small models train many times slower than with one.
demo test pictures callbacks: export OMP_NUM_THREADS := 1

# One stamp for each set of extras: a change of the requirements installs them again.
$(VENV)/dev: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable '.[dev]'
	touch $@

$(VENV)/bench: $(VENV)/dev
	$(PIP) --editable '.[bench]'
	touch $@

# torchvision goes with another torch than the development environment.
$(TORCHVISION)/bench: benchmarks/torchvision.txt
	$(PYTHON) -m venv $(TORCHVISION)
	$(TORCHVISION)/bin/python -m pip install --quiet --requirement $<
	touch $@
