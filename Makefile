# What a contributor runs. `make setup` brings everything; every other target brings what it needs first.
#
#   make demo    an unmodified DDP script on 2 emulated servers x 2 GPUs
#   make test    unit, property and native tests
#   make e2e     the operator on a real Kubernetes that it brings up (root, Debian packages)
#   make e2e-local  whole runs through `eidolon run`
#   make images  container images as archives in build/images
#
# Downloads go to uv's cache, outside the checkout; the environment is hard-linked from there.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/eidolon
JOBS ?= $(shell nproc)
BUILD := build/native
SANITIZERS := address thread

# Any of these changed: what is installed is stale. (A wildcard that matched nothing would hide a mistake, so `find`.)
SOURCES := pyproject.toml CMakeLists.txt README.md LICENSE \
  $(shell find proto crds operator/eidolon_operator simcore/eidolon_simcore simcore/native \
            interposer/eidolon_interposer interposer/native interposer/torch \
            -type f -not -path '*/__pycache__/*' 2>/dev/null)

export CMAKE_BUILD_PARALLEL_LEVEL ?= $(JOBS)
export EIDOLON_TESTS := ON

.PHONY: help setup setup-torch214 setup-frameworks setup-scripts setup-torchtitan03 demo test test-python test-native fuzz mutants e2e e2e-local e2e-frameworks \
  e2e-frameworks-fast e2e-scripts e2e-kubernetes e2e-observe e2e-full lint tidy \
  format generate kind-torch sanitize native-cuda12 images torch-site cluster-up cluster-down clean

help:
	@sed -n 's/^#  *\(make .*\)/\1/p' Makefile; echo 'also: setup lint tidy format generate kind-torch sanitize native-cuda12 clean'

# ---- environment -----------------------------------------------------------------------------------------------------

setup: $(VENV)/.eidolon.stamp

$(VENV)/.dependencies.stamp: pyproject.toml tools/bootstrap.py
	@command -v $(or $(CXX),g++) >/dev/null || { echo "make: a C++20 compiler is needed (Debian: apt-get install g++)"; exit 1; }
	# Compiled at once, like pip does: where PYTHONDONTWRITEBYTECODE is set, each rank would else compile torch at its start.
	$(PYTHON) tools/bootstrap.py $(VENV) --compile-bytecode --build-requires -r pyproject.toml --extra kubernetes --extra torch --extra dev
	# MLCommons' reader of Chakra traces, for tests; what it says it depends on (notebooks, plots) none of it needs.
	$(PYTHON) tools/bootstrap.py $(VENV) --quiet --no-deps mlc-chakra==1.0.*
	# Tables of GEMMs, read as files (extra aic): what it depends on only its own code needs.
	$(PYTHON) tools/bootstrap.py $(VENV) --quiet --no-deps aiconfigurator-core==0.12.*
	@touch $@

$(VENV)/.eidolon.stamp: $(VENV)/.dependencies.stamp $(SOURCES)
	$(PYTHON) tools/bootstrap.py $(VENV) --quiet --no-deps --no-build-isolation --reinstall-package eidolon .
	$(BIN)/python -m eidolon_interposer.plugin build --torch-from $(VENV)
	@touch $@

# A second environment with a newer torch, for tests that hold both versions against each other.
setup-torch214: $(CACHE)/torch214/.stamp

$(CACHE)/torch214/.stamp: tools/bootstrap.py $(VENV)/.eidolon.stamp
	$(PYTHON) tools/bootstrap.py $(CACHE)/torch214 --compile-bytecode torch==2.14.1 numpy
	$(BIN)/python -m eidolon_interposer.plugin build --torch-from $(CACHE)/torch214
	@touch $@

# The frameworks that e2e/frameworks runs, as users install them, in an environment of their own. DeepSpeed compiles none
# of its CUDA operators.
FRAMEWORKS := torch==2.11.0 torchtitan==0.2.2 'deepspeed>=0.19.8,<0.20' 'megatron-core>=0.16.1,<0.17' \
  'torchao>=0.18,<0.19' \
  'transformers>=5.17,<6' 'accelerate>=1.15,<2' 'lightning>=2.6,<3' numpy

TITAN := build/truth/titan/.sha256

setup-frameworks: $(CACHE)/frameworks/.stamp $(TITAN)

$(CACHE)/frameworks/.stamp: tools/bootstrap.py $(VENV)/.eidolon.stamp
	DS_BUILD_OPS=0 $(PYTHON) tools/bootstrap.py $(CACHE)/frameworks --compile-bytecode $(FRAMEWORKS)
	$(BIN)/python -m eidolon_interposer.plugin build --torch-from $(CACHE)/frameworks
	@touch $@

# What e2e/scripts runs, in an environment of its own: how fast a framework's Python is depends on what it finds
# installed beside it.
SCRIPTS := torch==2.11.0 torchvision==0.26.0 'trl>=1.16,<2' 'peft>=0.21,<1' 'timm>=1.0.31,<2' \
  'transformers>=5.17,<6' 'accelerate>=1.15,<2' 'deepspeed>=0.19.8,<0.20' numpy

setup-scripts: $(CACHE)/scripts/.stamp

$(CACHE)/scripts/.stamp: tools/bootstrap.py $(VENV)/.eidolon.stamp
	DS_BUILD_OPS=0 $(PYTHON) tools/bootstrap.py $(CACHE)/scripts --compile-bytecode $(SCRIPTS)
	$(BIN)/python -m eidolon_interposer.plugin build --torch-from $(CACHE)/scripts
	@touch $@

# The folder from which TorchTitan is started: a dataset and a tokenizer.
$(TITAN): bench/truth/SHA256SUMS bench/truth_files.py
	$(PYTHON) -m bench.truth_files
	@touch $@

# TorchTitan 0.3, on the torch that it needs.
setup-torchtitan03: $(CACHE)/torchtitan03/.stamp $(TITAN)

$(CACHE)/torchtitan03/.stamp: tools/bootstrap.py $(VENV)/.eidolon.stamp
	$(PYTHON) tools/bootstrap.py $(CACHE)/torchtitan03 --compile-bytecode torch==2.14.1 torchtitan==0.3.0 'torchao>=0.18,<0.19' numpy
	$(BIN)/python -m eidolon_interposer.plugin build --torch-from $(CACHE)/torchtitan03
	@touch $@

# ---- native ----------------------------------------------------------------------------------------------------------

# The package's own build, with the native tests in it; kept, so that a rebuild compiles only what changed.
test-native: setup
	$(BIN)/ctest --test-dir $(BUILD) --output-on-failure --no-tests=error

# Undefined behaviour is looked for together with addresses: the two sanitizers share a build.
sanitize: $(SANITIZERS:%=sanitize-%)

sanitize-%: $(VENV)/.dependencies.stamp
	$(BIN)/cmake -S . -B build/sanitize-$* -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja \
	  -DPython_EXECUTABLE=$(abspath $(BIN))/python -DEIDOLON_SANITIZE=$*
	$(BIN)/cmake --build build/sanitize-$*
	$(BIN)/ctest --test-dir build/sanitize-$* --output-on-failure --no-tests=error

# The shim for CUDA 12, beside the package's own for CUDA 13. Its headers come with the libraries (another 3 GB).
HEADERS12 := $(CACHE)/headers12
HEADER_WHEELS12 := $(foreach name,cuda-runtime cuda-nvcc cuda-cccl cuda-cupti cuda-nvrtc nvjitlink cublas nvml-dev,\
    nvidia-$(name)-cu12==12.8.*) \
  $(foreach name,cudnn nccl cufft curand cusolver cusparse cusparselt cufile nvshmem,nvidia-$(name)-cu12)

native-cuda12: $(VENV)/.dependencies.stamp $(HEADERS12)/.stamp
	$(BIN)/cmake -S . -B build/native12 -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja \
	  -DPython_EXECUTABLE=$(abspath $(BIN))/python -DEIDOLON_CUDA=12 -DEIDOLON_HEADERS_FROM=$(HEADERS12)
	$(BIN)/cmake --build build/native12
	$(BIN)/ctest --test-dir build/native12 --output-on-failure --no-tests=error

$(HEADERS12)/.stamp: tools/bootstrap.py
	$(PYTHON) tools/bootstrap.py $(HEADERS12) --no-deps $(HEADER_WHEELS12)
	@touch $@

# ---- images ----------------------------------------------------------------------------------------------------------

# Archives for `kind load image-archive` or `ctr --namespace=k8s.io images import`; see images/build.py.
images: setup
	$(BIN)/python images/build.py $(IMAGES)

# A stock torch in a folder, for pods to mount through a claim. Hard links to uv's cache: it costs no space.
TORCH_SITE := $(CACHE)/torch-site
torch-site: $(TORCH_SITE)/.stamp

$(TORCH_SITE)/.stamp: tools/bootstrap.py $(VENV)/.dependencies.stamp
	$(PYTHON) tools/bootstrap.py $(VENV) --quiet --target $(TORCH_SITE) torch==2.11.0 numpy
	@# Compiled here, for whoever mounts it read-only would do so at every start: 15 s of processor time each.
	$(BIN)/python -m compileall -q -j $(JOBS) $(TORCH_SITE) || true
	@touch $@

# ---- run and check ---------------------------------------------------------------------------------------------------

demo: setup
	$(BIN)/eidolon run examples/demo.yaml

test: test-native test-python

test-python: setup
	$(BIN)/python -m pytest tests $(ARGS)

# Hostile input, far more of it than the tests try: files, the command line, messages to the core. What does harm to the
# core is kept in tests/simcore/run/corpus.
fuzz: setup
	EIDOLON_FUZZ=$(or $(EXAMPLES),5000) $(BIN)/python -m pytest tests/operator/test_fuzz.py tests/simcore/run/test_fuzz.py $(ARGS)

# Small changes of simcore's Python that no test notices. MODULES are files or folders of simcore/eidolon_simcore; without
# them it takes a few central ones. It ends after MINUTES.
mutants: setup
	$(PYTHON) tools/bootstrap.py $(VENV) --quiet -r pyproject.toml --extra mutation
	nice $(BIN)/python tools/mutants.py --minutes $(or $(MINUTES),60) $(if $(TESTS),--tests $(TESTS) --) $(MODULES)

e2e: e2e-kubernetes

e2e-local: setup
	$(BIN)/python -m pytest e2e/local -m "not slow" $(ARGS)

# Needs Debian's package `prometheus`: a real server scrapes real runs.
e2e-observe: setup
	$(BIN)/python -m pytest e2e/observe $(ARGS)

# TorchTitan, DeepSpeed, Megatron-LM and others; minutes each.
e2e-frameworks: setup setup-frameworks setup-torchtitan03
	$(BIN)/python -m pytest e2e/frameworks -s $(ARGS)

# One or two configurations of each framework.
e2e-frameworks-fast: setup setup-frameworks
	$(BIN)/python -m pytest e2e/frameworks -s -m "not slow" $(ARGS)

# Scripts in the shape of public ones (ImageNet, a small GPT, TRL, timm, launchers): what they print; a minute each.
e2e-scripts: setup setup-scripts
	$(BIN)/python -m pytest e2e/scripts -s $(ARGS)

# On the cluster of e2e/cluster, which stays up for the next time (`make cluster-down`), or on that of KUBECONFIG.
# Two tests at a time: each mostly waits for its pods.
e2e-kubernetes: setup images torch-site
	$(BIN)/python -m pytest e2e/kubernetes -m "not slow" --numprocesses 2 --dist worksteal $(ARGS)

e2e-full: setup images torch-site
	$(BIN)/python -m pytest e2e/local e2e/kubernetes -s $(ARGS)

# The first time it builds Kubernetes from its Go modules, into the user's cache: a quarter of an hour on two cores.
cluster-up: setup
	$(BIN)/python -m e2e.cluster up
	$(BIN)/python -c 'from e2e.cluster import binaries; binaries.build(["helm"])'

cluster-down: setup
	$(BIN)/python -m e2e.cluster down

lint: setup
	# A cached verdict stays when a new file at the root makes a module a first-party one.
	$(BIN)/ruff check --no-cache .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/rumdl check --quiet .
	$(BIN)/python tools/sizes.py
	$(BIN)/clang-format --dry-run --Werror $$(git ls-files '*.c' '*.cpp' '*.h')

# Slow: reads every native source with all its headers.
tidy: setup
	$(BIN)/run-clang-tidy.py -quiet -p $(BUILD) -j $(JOBS) -clang-tidy-binary $(BIN)/clang-tidy \
	  '$(CURDIR)/(interposer/native/(core|libs|launcher)|simcore/native)/.*'

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/rumdl fmt --quiet .
	$(BIN)/clang-format -i $$(git ls-files '*.c' '*.cpp' '*.h')

# A stock torch where examples/kind.yaml mounts it from, for the Python of the example image. Hard links to uv's cache.
kind-torch: build/torch/.stamp

build/torch/.stamp: tools/bootstrap.py $(VENV)/.dependencies.stamp
	$(PYTHON) tools/bootstrap.py $(VENV) --quiet --target build/torch --python-version 3.11 torch==2.11.0 numpy
	@touch $@

# What is made from other files of the checkout: the chart's copy of the CRD, the reference pages.
generate: $(VENV)/.dependencies.stamp
	$(BIN)/python tools/generate.py

clean:
	rm -rf build dist
