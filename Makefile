# Everything from two commands: `make demo` and `make test`. Both set up .venv by themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO := demo

.PHONY: demo test check docs clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	touch $(READY)

demo: $(READY)
	$(BIN)/clew extract --questions facts --num-samples 300 --batch-size 100 --out $(DEMO)/traces_data
	$(BIN)/clew inspect $(DEMO)/traces_data
	$(BIN)/clew verify $(DEMO)/traces_data
	$(BIN)/clew label $(DEMO)/traces_data --out $(DEMO)/ground_truth_scores.csv --overwrite
	$(BIN)/clew preprocess $(DEMO)/traces_data --scores-file $(DEMO)/ground_truth_scores.csv --out $(DEMO)/preprocessed_data
	$(BIN)/clew inspect $(DEMO)/preprocessed_data
	$(BIN)/clew train --preprocessed-dir $(DEMO)/preprocessed_data --epochs 20 --output-dir $(DEMO)/results

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: check
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile

docs: $(READY)
	$(BIN)/python docs/make_commands.py

clean:
	rm -rf $(VENV) $(DEMO)
