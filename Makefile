# Works on a machine that has only Python (>= 3.11) and make: everything else is installed into .venv.
PYTHON ?= $(shell for p in python3.12 python3.11 python3.13 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test lint install docs benchmark reports clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml
	@test -n "$(PYTHON)" || { echo "shardsim needs Python 3.11 or newer; none was found on PATH" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[test,lint]'
	@touch $@

demo: install
	$(BIN)/shardsim simulate workloads/runs/megatron-8.3b-tp8.yaml
	$(BIN)/shardsim scale --model megatron-1.2b,megatron-2.5b,megatron-4.2b,megatron-8.3b --cluster dgx-2h \
		--gpus 1,2,4,8 --grow tp --weak --micro-batch 8 --global-batch 8 --seq 1024 \
		--measured workloads/measured/megatron-2019.csv
	$(BIN)/shardsim validate runs

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	$(BIN)/python -m pytest

benchmark: install
	$(BIN)/python -m benchmarks

reports: install
	for report in reports/*/run.sh; do PATH="$(CURDIR)/$(BIN):$$PATH" bash $$report || exit 1; done

docs: install
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	$(BIN)/python -m sphinx -W -b html docs docs/_build/html

clean:
	rm -rf $(VENV) build dist docs/_build .mypy_cache .ruff_cache .pytest_cache
