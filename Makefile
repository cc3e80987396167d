# demo, test, faults, deploy-check, three-hospitals, soak, fuzz, check, proto and bench-*: every one works from a fresh clone.
VENV ?= .venv
PY := $(VENV)/bin/python
BIN := $(VENV)/bin
PYTHON ?= python3

# One OpenMP thread per process unless told otherwise: oversubscribed processes run several times slower.
export OMP_NUM_THREADS ?= 1

DATA ?= cifar10:data
EXTRACTOR ?= resnet18
BENCH_FLAGS ?=

.PHONY: demo test test-all test-fast faults deploy-check three-hospitals soak fuzz check format proto bench-cifar10 bench-cifar10-mild bench-transports bench-embedding bench-client-time bench-hostile bench-attack bench-compare bench-load clean

# The installed marker is rewritten whenever the project's description changes.
$(VENV)/.installed-%: pyproject.toml
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[$*]'
	touch $@

# Three sites, one coordinator, four processes, on handwritten digits.
demo: $(VENV)/.installed-bench
	$(BIN)/fkd-bench run --data digits --clients 3 --partition dirichlet:0.1 --public 300 --anchors 100 \
	  --extractor pretrain --rounds 10 --local-steps 20 --residual-every 5 --out demo

# Side by side: tests with real processes mostly wait.
WORKERS ?= 2
PYTEST = $(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test: $(VENV)/.installed-dev check
	$(PYTEST) -m "not slow"

# With those that take tens of seconds each.
test-all: $(VENV)/.installed-dev check
	$(PYTEST)

test-fast: $(VENV)/.installed-dev
	$(PYTEST) -m "not slow and not e2e"

# Every fault of tests/scenarios.py against the tests that cover it, as a table; fails unless every row passes.
FAULTS_FLAGS ?=
DEPLOY_FLAGS ?=
EXAMPLE_FLAGS ?=

faults: $(VENV)/.installed-dev
	$(BIN)/pytest -m scenario --scenario-table --durations=0 --durations-min=30 $(FAULTS_FLAGS)

# What deploys a run and lets people operate it, as a table; needs the Debian packages that .ci/run installs.
deploy-check: $(VENV)/.installed-dev
	FKD_REQUIRE_TOOLS=1 $(BIN)/pytest $$($(PY) -m tests.deploy_table) --deploy-table $(DEPLOY_FLAGS)

# Three hospitals, a hub, an operator and a stranger as six hosts of one machine, from certificates to predictions.
three-hospitals: $(VENV)/.installed-dev
	$(PY) -m examples.three_hospitals --transcript docs/transcripts/three-hospitals.md $(EXAMPLE_FLAGS)

# Kills and partitions at random over a live run of five clients: make soak MINUTES=10.
MINUTES ?= 10
soak: $(VENV)/.installed-dev
	$(PY) -m tests.crash.soak --minutes $(MINUTES)

# Coverage-guided fuzzing of every decoder and every request, SECONDS in all; what it finds is kept in fuzz-findings/.
SECONDS ?= 60

fuzz: $(VENV)/.installed-dev
	$(PY) -m tests.fuzz --seconds $(SECONDS) --findings fuzz-findings

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

proto: $(VENV)/.installed-dev
	PYTHON=$(PY) ./proto/generate.sh

# The figures of docs/results: full CIFAR-10, ten clients, thirty rounds, three seeds, real processes.
BENCH_CIFAR10 = $(BIN)/fkd-bench run --data $(DATA) --extractor $(EXTRACTOR) --clients 10 --rounds 30 --local-steps 150 \
  --no-correction-at-start --refine-steps 0 --update-codec fp32 --model-codec fp32 --statistics-codec fp32

bench-cifar10: $(VENV)/.installed-bench
	$(BENCH_CIFAR10) --partition dirichlet:0.1 --seeds 0,1,2 $(BENCH_FLAGS)

bench-cifar10-mild: $(VENV)/.installed-bench
	$(BENCH_CIFAR10) --partition dirichlet:0.5 --seed 0 $(BENCH_FLAGS)

# The same seed as processes and within one process: the model hashes must be equal.
bench-transports: $(VENV)/.installed-bench
	mkdir -p bench
	$(BENCH_CIFAR10) --partition dirichlet:0.1 --seed 0 --transport process --json $(BENCH_FLAGS) | tail -n 1 > bench/process.json
	$(BENCH_CIFAR10) --partition dirichlet:0.1 --seed 0 --transport inprocess --json $(BENCH_FLAGS) | tail -n 1 > bench/inprocess.json
	$(PY) -c "import json; a, b = (json.load(open(f'bench/{t}.json'))['model_hash'] for t in ('process', 'inprocess')); print(a, b, 'equal' if a == b else 'DIFFERENT'); raise SystemExit(a != b)"

# Every attack of tests/faults for half a minute: memory, its bound, and what a client at work notices.
bench-attack: $(VENV)/.installed-dev
	FKD_ATTACK_S=30 $(BIN)/pytest -s tests/faults/test_floods.py

# Embedding throughput against a bare forward loop; SHARD is any shard folder.
SHARD ?= demo/digits-dirichlet0.1-k3-s0/shards/test
bench-embedding: $(VENV)/.installed-bench
	$(BIN)/fkd-bench embedding --data $(SHARD) --extractor $(EXTRACTOR) $(BENCH_FLAGS)

# What one client computes, in CPU seconds by part: docs/client-time.md; BENCH_FLAGS="--against CHECKOUT" for two.
bench-client-time: $(VENV)/.installed-bench
	$(BIN)/fkd-bench client-time --data $(DATA) --extractor $(EXTRACTOR) $(BENCH_FLAGS)

# What hostile clients do to every model under every aggregation: docs/results/hostile.md.
bench-hostile: $(VENV)/.installed-bench
	$(BIN)/fkd-bench hostile $(BENCH_FLAGS)

# One ready experiment of `fkd-bench compare --list`, kept as docs/results/NAME: make bench-compare EXPERIMENT=e01-cifar10 DATA_FOLDER=/data
bench-compare: $(VENV)/.installed-bench
	$(BIN)/fkd-bench compare $(EXPERIMENT) --data-folder $(DATA_FOLDER) --publish docs/results/$(EXPERIMENT)

# What a round costs the coordinator with clients that compute nothing, beside two lines of Flower: docs/load.md.
bench/flower-%/bin/flower-superlink:
	PYTHON=$(PYTHON) benchmarks/flower/install '$*.*' bench/flower-$*

bench-load: $(VENV)/.installed-bench bench/flower-1.28/bin/flower-superlink bench/flower-1.42/bin/flower-superlink
	$(BIN)/fkd-bench load --against flower \
	  --flower-python bench/flower-1.28/bin/python,bench/flower-1.42/bin/python $(BENCH_FLAGS)

clean:
	rm -rf bench demo run fuzz-findings .mypy_cache .ruff_cache .pytest_cache .import_linter_cache build *.egg-info
