# `make demo` trains two agents on this machine; `make test` checks the library.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Python compiles what it imports, which is a small part of what is installed, and keeps that: a
# process that compiles all of it anew starts in 16 seconds instead of 7 (seen on an AMD EPYC).
unexport PYTHONDONTWRITEBYTECODE
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile
# The same, in half of the time.
UV := $(BIN)/uv pip install --quiet --python $(BIN)/python
# One process more than there are cores, because tests also wait; files in the order of
# `tests/conftest.py`. A test that ends its process, as one does that takes too long, ends the run: a
# new process would begin with the same test, and wait for ever at the end.
WORKERS := $(shell $(PYTHON) -c "import os; print(os.cpu_count() + 1)")
PYTEST := $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder \
	--max-worker-restart 0

.DEFAULT_GOAL := help
.PHONY: help gpu gpu-needs gpu-archive demo demo-real real-model system-packages real-tokenizers test test-without-system-packages test-alone evidence quick coverage lint docs page page-check wheel bench bench-avx2 bench-check prove-learning clean

help:  ## Show this list.
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | sort | expand --tabs=30

$(VENV)/demo: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -c constraints.txt torch uv
	$(UV) -c constraints.txt -e .
	touch $@

$(VENV)/dev: $(VENV)/demo
	$(UV) -c constraints.txt -e ".[dev]"
	touch $@

demo: $(VENV)/demo  ## Train two agents on this machine.
	$(BIN)/rolecall train math

$(VENV)/gguf: $(VENV)/demo
	$(UV) -c constraints.txt -e ".[gguf]"
	touch $@

demo-real: $(VENV)/gguf  ## Train two agents on a pretrained language model, ten to twenty minutes.
	$(BIN)/rolecall fetch smollm2-135m
	$(BIN)/rolecall train real_math

# Installs what tests need of the system, or says how; tests that need what is missing are skipped.
system-packages:  ## Install what tests need of the system, or say how.
	.ci/system-packages

# Tokenizers of real models, kept in the user's cache; tests of those that cannot be had are skipped.
real-tokenizers: $(VENV)/dev  ## Fetch the tokenizers of real models into the cache.
	$(BIN)/python -m tests.real.fetch

# A pretrained model of 135 million weights, kept in the user's cache; without it its tests are skipped.
real-model: $(VENV)/dev  ## Fetch the small language model that tests use.
	-$(BIN)/rolecall fetch smollm2-135m

# One thread for each of the processes: threads of two processes on the same cores wait for one
# another. `OMP_NUM_THREADS=2 .venv/bin/python -m pytest` is the same with two threads.
test: $(VENV)/dev system-packages  ## Check the library, about 7 minutes on two cores.
	OMP_NUM_THREADS=1 $(PYTEST) --durations=40 -m "not evidence and not alone"

# The tests that touch system packages, on a machine that seems to have none of them. Recipes that
# need some are skipped as a whole.
SYSTEM_TESTS = $(filter-out tests/lab/% tests/recipes/%,$(shell grep --recursive \
	--files-with-matches --include='test_*.py' -e working_sandbox -e bwrap -e '"sandbox"' tests))
test-without-system-packages: $(VENV)/dev  ## Run the tests that use system packages without them.
	ROLECALL_INSTALL=0 OMP_NUM_THREADS=1 .ci/without bwrap \
		$(PYTEST) -m "not evidence and not alone" $(SYSTEM_TESTS)

# The rest of the tests: whole runs of every algorithm and recipe, and that they learn what they
# must. Only the files that hold some, because each of the processes imports all that it collects.
EVIDENCE = $(shell grep --recursive --files-with-matches --include='test_*.py' evidence tests)
evidence: $(VENV)/dev  ## Run every algorithm and recipe, and check that they learn.
	OMP_NUM_THREADS=1 $(PYTEST) -m "evidence and not alone" $(EVIDENCE)

# What is quick to answer while one works: the tests without those marked slow.
quick: $(VENV)/dev  ## Run the tests that are not slow, about 2 minutes on two cores.
	OMP_NUM_THREADS=1 $(PYTEST) -m "not slow and not evidence and not alone"

# Lines and branches that no test of TESTS runs, also as pages in build/coverage/html. Loops that numba
# compiles and processes that a test starts are not seen. `make coverage TESTS=tests/core` is quick.
TESTS := tests
coverage: $(VENV)/dev  ## Show what the tests that are not slow leave out.
	OMP_NUM_THREADS=1 $(PYTEST) -m "not slow and not evidence and not alone" \
		--cov --cov-report term --cov-report html $(TESTS)

lint: $(VENV)/dev  ## Run ruff and mypy.
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

# Pages into build/site; a link or an anchor that leads nowhere fails it.
docs: $(VENV)/dev  ## Build the pages into build/site.
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

# The page of `rolecall watch`, from page/ into src/rolecall/watch/static; both are committed, so that
# an install needs no npm. Without npm nothing is built or compared.
PAGE := page/src/api.ts src/rolecall/watch/static
page: $(VENV)/dev  ## Build the page of rolecall watch, with npm.
	cd page && npm ci --silent --no-audit --no-fund
	$(BIN)/python page/write_schema.py | (cd page && npm run --silent types)
	cd page && npm run --silent check && npm run --silent build

page-check: $(VENV)/dev  ## Build the page again and compare it with what is committed.
	@if command -v npm > /dev/null; then $(MAKE) --no-print-directory page && \
		git diff --exit-code --stat -- $(PAGE); else echo "npm is missing: the page is not compared"; fi

# sdist and wheel into dist/; the wheel alone trains two steps in an empty folder.
wheel: $(VENV)/dev  ## Build sdist and wheel, and try the wheel.
	.ci/wheel

$(VENV)/bench: $(VENV)/dev benchmarks/peers.txt benchmarks/peers-alone.txt
	$(PIP) -c constraints.txt -r benchmarks/peers.txt
	$(PIP) --no-deps -r benchmarks/peers-alone.txt
	touch $@

# llama.cpp is compiled, for some minutes; without a compiler nothing is compared with it.
$(VENV)/llama-cpp: $(VENV)/bench
	-$(PIP) --no-deps llama-cpp-python==0.3.36
	touch $@

# OpenVINO on Intel processors; on AMD's zentorch, which vLLM multiplies with where it is installed.
VENDOR := $(shell grep --only-matching --max-count 1 -e GenuineIntel -e AuthenticAMD /proc/cpuinfo)
FOR_GenuineIntel := benchmarks/peers-intel.txt
FOR_AuthenticAMD := benchmarks/peers-amd.txt
VENDOR_PEERS := $(FOR_$(VENDOR))
$(VENV)/vendor-peers: $(VENV)/bench $(VENDOR_PEERS)
	$(if $(VENDOR_PEERS),-$(PIP) --no-deps -r $(VENDOR_PEERS), \
		@echo "OpenVINO and zentorch are for processors of Intel and AMD")
	touch $@

# vLLM for a machine without a GPU, in the same environment; its tests are then no longer skipped.
$(VENV)/vllm: $(VENV)/bench
	touch $@

# Frameworks whose programs are trained as they are, each folder of examples in an environment of its
# own: rolecall runs them through `workflow.python`, and needs nothing of them.
build/camel build/frameworks build/openenv build/verifiers: build/%: examples/%/requirements.txt $(VENV)/dev
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $@
	$(BIN)/uv pip install --quiet --python $@/bin/python -r $<
	touch $@

# NeMo-Gym wants Python 3.12, of pyenv or what uv finds; its tests are skipped where there is none.
PYTHON312 := $(firstword $(wildcard $(HOME)/.pyenv/versions/3.12.*/bin/python) 3.12)
build/nemo_gym: examples/nemo_gym/requirements.txt $(VENV)/dev
	-$(BIN)/uv venv --quiet --clear --python $(PYTHON312) $@ && \
		$(BIN)/uv pip install --quiet --python $@/bin/python -r $< && touch $@

# gem, which pins other versions than rolecall needs: `environment.python` names this Python.
build/gem: $(VENV)/dev
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $@
	$(BIN)/uv pip install --quiet --python $@/bin/python gem-llm==0.1.0
	touch $@

# vLLM, Ray, TRL and torchrun start processes that use every core: they have the machine to
# themselves. Suites that pass are written into .ci/passed.json, and `.ci/run` leaves them out until
# a file changes that they depend on. `make test-alone SUITES=ray` runs one.
SUITES := all
test-alone: $(VENV)/dev  ## Run the tests with vLLM, Ray, TRL and torchrun.
	$(BIN)/python .ci/suites --record $(SUITES)

bench: $(VENV)/llama-cpp $(VENV)/vendor-peers  ## Measure speed beside other libraries, and keep it.
	$(BIN)/rolecall bench --keep benchmarks/results
	$(BIN)/python docs/generate_benchmarks.py

# Status 1 where a ratio has fallen below the committed ones: three quick pairs of small models, and
# two of larger ones, which take an hour. The better pair counts: of one alone, a quick minute of the
# peer would look like a slower rolecall.
bench-check: $(VENV)/bench  ## Fail where a ratio has fallen below the kept ones.
	$(BIN)/rolecall bench team-rollout-s update grpo-step --pairs 3 --against benchmarks/results
	$(BIN)/rolecall bench team-rollout-l team-rollout-l-bf16 grpo-step-l --peer vllm --peer trl \
		--pairs 2 --against benchmarks/results
	$(BIN)/rolecall bench real-math-to-score real-rollout --pairs 2 --against benchmarks/results

# As on a processor without AVX-512: its instructions are switched off in PyTorch, oneDNN, MKL and
# numba.
AVX2 := ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 \
	NUMBA_CPU_NAME=haswell NUMBA_CPU_FEATURES=
bench-avx2: $(VENV)/bench  ## Measure beside PyTorch's own code without AVX-512, and keep it.
	$(AVX2) $(BIN)/rolecall bench team-rollout-s team-rollout-m grpo-step update \
		--peer transformers --peer trl --peer padded --pairs 3 --keep benchmarks/results
	$(BIN)/python docs/generate_benchmarks.py

# Checks and benchmarks on a GPU; results in build/gpu.json and docs/gpu.md. `make gpu ARGS="--parts
# engine"` runs one part; what has passed is not run again unless ARGS holds --again. Without a
# network unpack the archive of `make gpu-archive` first: it is used where it lies in build/.
GPU_ARCHIVE := build/gpu-archive.tar
ifneq ($(wildcard $(GPU_ARCHIVE)),)
GPU_PYTHON := GPU_COMMIT=$$(cat build/gpu-wheels/commit) PYTHONPATH=src:build/gpu-site $(PYTHON)
gpu-needs: build/gpu-site
else
GPU_PYTHON := $(BIN)/python
gpu-needs: $(VENV)/dev
endif

build/gpu-site: $(GPU_ARCHIVE)
	rm -rf build/gpu-wheels $@ && mkdir -p build/gpu-wheels
	tar --extract --file $(GPU_ARCHIVE) --directory build/gpu-wheels
	$(PYTHON) -m pip install --quiet --no-index --no-deps --no-compile --target $@ build/gpu-wheels/*.whl
	touch $@

gpu: gpu-needs  ## Check and measure every path that needs a GPU.
	$(GPU_PYTHON) -m benchmarks.gpu $(ARGS)

gpu-archive: $(VENV)/dev  ## Pack what make gpu needs without a network.
	benchmarks/gpu/pack_archive.sh $(BIN)/pip $(GPU_ARCHIVE)

prove-learning: $(VENV)/dev  ## Train each small recipe, and write docs/learning.md.
	$(BIN)/python benchmarks/prove_learning.py

clean:  ## Remove the environment and caches.
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache
