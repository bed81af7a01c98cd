# Each target makes .venv when it is missing and installs headwise in it; nothing has to be set up first.
#   make setup   install              make test    the whole test suite
#   make demo    the whole story      make check   format, lint, types
#   make bench   the measurements in benchmarks/
#   make tables  the tables of options and controls in docs/, from the classes
#   make sentences  what the report says, in tests/faces/report/sentences.txt: read the difference before you commit it
#   make numbers  docs/results/derived.csv from the other tables, and every number of the pages of results from its table
#   make truth   every score and role on models whose heads are known, and the tables of docs/methods/truth.md
#   make attack  files and settings mutated, command lines mistyped, runs damaged and killed: MINUTES=60, SEED=0
#   make planted  some forty mistakes planted in the source, one at a time: which does the suite find? runs/planted.json; hours
#   make families  what headwise makes of every class in transformers, in runs/families.csv, and src/headwise/models/families.csv,
#                  the table of docs/families.md: an hour
#   make docs    the Python reference and the site, in site/
#   make package  sdist and wheel in dist/, and the wheel tried in an environment of its own
#   make oldest  the tests but the slow ones, with the oldest versions that pyproject.toml allows; make newest, with the
#                newest. ONLY=tests/models/attention takes a part of them.
#   make engines  Marian itself (pymarian, 600 MB), Firefox's engine in WASM (needs Node), and the tests that they judge
#   make gpu     what needs a GPU: tests marked cuda, then benchmarks/gpu.py. make gpu-wheels packs what it needs, for a
#                machine without a network; GPU_PYTHON=python3 takes the Python there, with its torch.
# PYTHON=/path/to/python3.12 chooses the interpreter that .venv is made with.

.PHONY: setup demo test attack planted check bench truth tables numbers sentences families docs package oldest newest engines gpu gpu-wheels

NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(firstword $(foreach name,python3 python3.13 python3.12 python3.11,$(shell $(name) -c '$(NEW_ENOUGH)' 2>/dev/null && echo $(name))))
BIN := .venv/bin
INSTALLED := .venv/.installed

setup: $(INSTALLED)
	@echo "Next: source .venv/bin/activate, then headwise demo (ten minutes) or headwise story MODEL --text FILE"

# pip's own folder is asked for, not python's: a `venv` that fails half-way (Debian without python3-venv) leaves only the latter.
$(INSTALLED): pyproject.toml plugins/headwise-speech/pyproject.toml constraints.txt
	@if [ ! -x $(BIN)/pip ]; then \
	  '$(PYTHON)' -c '$(NEW_ENOUGH)' 2>/dev/null || { echo "headwise needs Python 3.11 or newer, found none; name one with 'make $(or $(MAKECMDGOALS),setup) PYTHON=/path/to/python3'." >&2; exit 1; }; \
	  echo "making .venv with $$('$(PYTHON)' -V), then installing (some minutes)"; \
	  '$(PYTHON)' -m venv .venv; \
	fi
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]' -e plugins/headwise-speech
	@touch $@

demo: $(INSTALLED)
	$(BIN)/headwise demo

# Bytecode is kept even where the environment says not to: pytest rewrites every assertion, 13 seconds for each worker.
test: $(INSTALLED)
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder 2>&1

MINUTES ?= 60
SEED ?= 0

attack: $(INSTALLED)
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -q -m campaign
	PYTHONPATH=tests:plugins/headwise-speech/tests OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python tests/attack.py --minutes $(MINUTES) --seed $(SEED)

planted: $(INSTALLED)
	@mkdir -p runs
	$(BIN)/python tests/planted.py --out runs/planted.json

check: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(INSTALLED)
	@for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python "$$script" || exit 1; done

truth: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.truth --out runs/truth --page docs/methods/truth.md
	cp runs/truth/truth-*.csv docs/methods/

tables: $(INSTALLED)
	PYTHONPATH=tools $(BIN)/python tools/option_tables.py

numbers: $(INSTALLED)
	$(BIN)/python tools/derived_numbers.py
	$(BIN)/python tools/page_numbers.py

sentences: $(INSTALLED)
	PYTHONPATH=tests $(BIN)/python -m faces.report.sentences

families: $(INSTALLED)
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python tests/models/attention/every_class.py runs/families.csv
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python tests/models/attention/every_family.py

package: $(INSTALLED)
	rm -rf dist
	$(BIN)/uv build --quiet --python $(BIN)/python
	$(BIN)/uv build --quiet --python $(BIN)/python --out-dir dist plugins/headwise-speech
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python .venv-package
	$(BIN)/uv pip install --quiet --python .venv-package -c constraints.txt dist/*.whl
	cd /tmp && env -u PYTHONPATH '$(CURDIR)/.venv-package/bin/python' -I '$(CURDIR)/tools/try_package.py'

oldest: RESOLUTION := lowest-direct
newest: RESOLUTION := highest
oldest newest: $(INSTALLED)
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python .venv-$@
	$(BIN)/uv pip install --quiet --python .venv-$@ --resolution $(RESOLUTION) -e '.[dev]' -e plugins/headwise-speech
	OMP_NUM_THREADS=1 .venv-$@/bin/python -m pytest -n auto --dist loadfile -m 'not slow' $(ONLY)

engines: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt pymarian==1.12.42
	npm install --silent --no-save --prefix .engines @browsermt/bergamot-translator@0.4.9
	HEADWISE_BERGAMOT=.engines/node_modules/@browsermt/bergamot-translator OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 \
	  $(BIN)/python -m pytest tests/models/marian/test_real_marian.py tests/models/marian/test_wasm_engine.py

# In .gpu: headwise and what a GPU machine with torch lacks, some 15 MB, for one without a network; see CONTRIBUTING.md.
GPU_PYTHON ?= $(BIN)/python
CARRIED := transformers datasets dill multiprocess conllu platformdirs pooch spacy-alignments tomli-w pydantic pydantic-core \
  annotated-types typing-inspection

gpu-wheels: $(INSTALLED)
	rm -rf .gpu
	$(BIN)/uv build --quiet --python $(BIN)/python --wheel --out-dir .gpu
	$(BIN)/python -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
	  $(foreach age,_2_28 _2_17 2014,--platform manylinux$(age)_x86_64) -c constraints.txt -d .gpu $(CARRIED)

gpu:
	@! ls .gpu/*.whl >/dev/null 2>&1 || \
	  $(GPU_PYTHON) -m pip install --quiet --no-index --no-deps --upgrade --target .gpu/site .gpu/*.whl
	PYTHONPATH=src:.gpu/site $(GPU_PYTHON) -m pytest -m cuda tests/test_gpu.py
	PYTHONPATH=src:.gpu/site $(GPU_PYTHON) benchmarks/gpu.py --out runs/gpu.json

docs: $(INSTALLED)
	$(BIN)/python tools/api_reference.py
	PYTHONPATH=tools $(BIN)/zensical build --strict --clean
