# Every target sets up what it needs; with nothing to do it is quiet. ARGS reaches pytest, ruff's fixes stay with you.
.DEFAULT_GOAL := help
.PHONY: help setup dev demo test unit coverage lint style screenshots docs gpu bench bench-web bench-peers soak seeds images lock licences sbom audit clean

PYTHON := .venv/bin/python
# Many tests wait for other processes, so two cores are busy only with six workers.
WORKERS ?= 6
SEEDS ?= 10000
MINUTES ?= 10
ROUNDS ?= 0
DATABASE ?= both
API_EXAMPLES ?= 200
HISTORY_JOBS ?= 1000000
HISTORY_DAYS ?= 30
STUDY_KILLS ?= 10
RENTED_KILLS ?= 200
VERIFY_KILLS ?= 100
# The checker's version is pinned by the lock; do not ask the network for a newer one on each run.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

setup: ## make .venv, with this checkout and what it needs to run; and the page, where node is
	@scripts/setup.sh
	@scripts/page.sh

dev: ## make .venv, with the tools for tests, lint and documents as well
	@scripts/setup.sh dev
	@scripts/page.sh

demo: setup ## train a small GPT through the whole system
	@$(PYTHON) examples/demo.py

test: dev ## run every test, WORKERS=6 at a time; ARGS reaches pytest
	@scripts/system-packages.sh
	@$(PYTHON) -m compileall -q -j 0 src
	@$(PYTHON) -m tests.support.prepare
	@$(PYTHON) -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

unit: dev ## run only the fast tests
	@$(PYTHON) -m compileall -q -j 0 src
	@$(PYTHON) -m tests.support.bytecode tests/unit
	@$(PYTHON) -m pytest tests/unit -n 2 $(ARGS)

coverage: dev ## how much of the providers their tests run, in their own process; at least 90 %
	@scripts/system-packages.sh
	@$(PYTHON) -m coverage run --source=src/gpuyard/providers -m pytest tests/unit/providers tests/integration/providers $(ARGS)
	@$(PYTHON) -m coverage report --skip-covered --fail-under=90

lint: dev ## check style, types and the layers of packages
	@.venv/bin/ruff check --quiet .
	@.venv/bin/ruff format --check --quiet --diff .
	@.venv/bin/pyright
	@.venv/bin/lint-imports --no-logo
	@scripts/page.sh lint

style: dev ## how plain the code is, by package and beside other projects (ARGS=--json)
	@$(PYTHON) scripts/style.py $(ARGS)

screenshots: dev ## take the pictures of the page that stand in the documents
	@$(PYTHON) scripts/screenshots.py

docs: dev ## build the site of the documents in build/site
	@$(PYTHON) scripts/docs.py

gpu: dev ## tests on a real NVIDIA GPU; GPUYARD_GPU_PYTHON has PyTorch and transformers
	@$(PYTHON) -m pytest tests/gpu $(ARGS)

bench: dev ## measure the pace on this machine, each figure beside its floor
	@$(PYTHON) -m benchmarks $(ARGS)

bench-web: dev ## measure the page in Chromium, beside a bare static page
	@scripts/system-packages.sh
	@$(PYTHON) -m benchmarks web --disk as-is $(ARGS)

bench-peers: dev ## run the same work on other systems, in an environment of their own
	@scripts/system-packages.sh
	@$(PYTHON) -m benchmarks.peers $(ARGS)

soak: dev ## kill -9 for MINUTES=10 or ROUNDS=500; DATABASE=sqlite|postgresql|both, SEED=; many examples and seeds
	@scripts/system-packages.sh
	@GPUYARD_SEEDS=1000 $(PYTHON) -m pytest tests/simulation --timeout 3600
	@$(PYTHON) -m pytest -n 2 --hypothesis-profile=soak --timeout 1800 $$(grep -rlE 'hypothesis|examples\(' tests/unit tests/integration tests/security --include=test_*.py)
	@EXAMPLES=$(API_EXAMPLES) $(PYTHON) -m pytest tests/acceptance/test_openapi.py --timeout 3600
	@GPUYARD_EVERY_CASE=1 $(PYTHON) -m pytest tests/integration/providers -k "(slurm or docker or tencent or alibaba or aws or rented or skypilot) and (conformance or accounts)"
	@GPUYARD_EVERY_CASE=1 $(PYTHON) -m pytest tests/acceptance/test_pools.py tests/integration/providers/test_kubernetes_pool.py tests/integration/verification
	@GPUYARD_KILL_ROUNDS=10 $(PYTHON) -m pytest tests/acceptance/test_kubernetes.py -k rounds_of_kills --timeout 1800
	@GPUYARD_EVERY_GROUP=1 $(PYTHON) -m pytest tests/acceptance/test_benchmarks.py -k each_group
	@GPUYARD_LISTENERS=10000 $(PYTHON) -m pytest tests/acceptance/test_events.py -k thousands --timeout 1800
	@GPUYARD_SPOOL_FILES=10000 $(PYTHON) -m pytest tests/acceptance/test_spool.py -k many_files --timeout 1800
	@GPUYARD_SOAK_PAGE_JOBS=100000 $(PYTHON) -m pytest tests/soak/test_page.py
	@GPUYARD_S3=nanio $(PYTHON) -m pytest $$(grep -lrE '\bbucket\b' tests/integration/storage tests/integration/node/test_agent_bucket.py tests/integration/controller/test_workspaces.py tests/acceptance/test_workspaces.py tests/acceptance/test_datasets.py tests/acceptance/test_artifacts.py tests/acceptance/test_storage.py --include=test_*.py)
	@GPUYARD_REAL_TRACKERS=1 $(PYTHON) -m pytest tests/acceptance/test_trackers.py tests/soak/test_templates.py tests/soak/test_jupyter.py tests/soak/test_triton.py
	@GPUYARD_REAL_SCRIPTS=1 $(PYTHON) -m pytest tests/soak/test_real_scripts.py
	@GPUYARD_ALL_TEMPLATES=1 $(PYTHON) -m pytest tests/acceptance/test_templates.py
	@GPUYARD_ALL_OPENAI_CLIENTS=1 $(PYTHON) -m pytest tests/acceptance/test_openai_clients.py
	@GPUYARD_OUTPUT_MB=50 $(PYTHON) -m pytest tests/acceptance/test_progress.py -k megabytes --timeout 600
	@$(PYTHON) -m tests.soak --minutes $(MINUTES) --rounds $(ROUNDS) --database $(DATABASE) $(if $(SEED),--seed $(SEED))
	@$(PYTHON) -m tests.soak.history --jobs $(HISTORY_JOBS) --days $(HISTORY_DAYS)
	@GPUYARD_STUDY_KILLS=$(STUDY_KILLS) $(PYTHON) -m pytest tests/acceptance/test_studies.py -k killed
	@$(PYTHON) -m tests.soak.layouts
	@GPUYARD_REAL_MODELS=1 $(PYTHON) -m pytest tests/acceptance/test_verify_providers.py tests/acceptance/test_studies_kubernetes.py -k "real_models or pods_that_meet" --timeout 600
	@GPUYARD_VERIFY_KILL_ROUNDS=$(VERIFY_KILLS) $(PYTHON) -m pytest tests/acceptance/test_verify_servers.py tests/integration/verification/test_processes.py -k killed --timeout 3600
	@$(PYTHON) -m tests.soak.rented --rounds $(RENTED_KILLS)
	@scripts/apt-install.sh debootstrap systemd-container
	@$(PYTHON) -m tests.soak.service

seeds: dev ## simulated storms in virtual time: SEEDS=10000 of them
	@$(PYTHON) -m tests.simulation --seeds 0:$(SEEDS)
	@$(PYTHON) -m tests.simulation --models --seeds 0:$(SEEDS)

images: dev ## build the container images (ARGS="--registry REG --push" sends them; --help tells more)
	@$(PYTHON) deploy/images/build $(ARGS)

lock: dev ## resolve pyproject.toml into the lock files (ARGS=--upgrade takes newer versions)
	@scripts/lock.sh $(ARGS)

licences: dev ## write the tables of docs/licences.md, after a change of a lock file
	@$(PYTHON) scripts/licences.py

sbom: dev ## write what gpuyard is installed with to build/gpuyard.cdx.json, as CycloneDX
	@$(PYTHON) scripts/supply.py sbom build/gpuyard.cdx.json

audit: dev ## ask OSV for known faults of the locked packages; needs the network
	@$(PYTHON) scripts/supply.py audit

clean: ## remove .venv, caches and builds
	@rm -rf .venv build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	@find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
