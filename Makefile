# Two commands set up a checkout: `make demo` and `make test`.

CARGO ?= cargo
# Checks the HTTP API against docs/openapi.json.
export PENSTOCK_SCHEMATHESIS ?= $(CURDIR)/target/schemathesis/bin/schemathesis

.PHONY: help demo test clients forecast-training sequence-training build image package quick check bench fuzz clean

help:
	@echo "make demo    install missing packages, build, and copy a dataset between two agents"
	@echo "make test    install missing packages, check the sources and run every test"
	@echo "make clients copy 2,000 files between gateways, and with XRootD, while servers are killed"
	@echo "make build   build target/release/penstock, and its symbols in penstock.debug beside it"
	@echo "make image   build the OCI image with buildah, as root: target/image"
	@echo "make package build a deb, an rpm, an archive and a wheel: target/package"
	@echo "make quick   checks between edits: format, clippy, tidy, unit tests"
	@echo "make check   only the checks of the sources: format, clippy, tidy, licences, documentation, eBPF objects"
	@echo "make bench   compare with other movers (as root; installs them)"
	@echo "make forecast-training  install Python with xgboost for penstock tune train: target/forecast-training"
	@echo "make sequence-training  install Python with JAX for python/training/sequence.py: target/sequence-training"
	@echo "make fuzz    feed the parsers and state machines damaged input, ten seconds each"
	@echo "make clean   remove build outputs and measurements"

demo:
	./tools/setup.sh build demo
	$(CARGO) build --release --locked --package penstock
	./tools/strip.sh target/release/penstock
	./demo/run.sh target/release/penstock

test:
	./tools/setup.sh build test bpf
	$(MAKE) check
	# Helm, built once from its Go modules in a few minutes. Without it the tests of the Helm chart are listed as skipped.
	-timeout 600 $(CARGO) xtask kubernetes
	# From PyPI in half a minute. Without it the test of the API against its document is listed as skipped.
	-$(MAKE) $(PENSTOCK_SCHEMATHESIS)
	# Ten thousand connections take as many descriptors.
	ulimit -n $$(ulimit -Hn); $(CARGO) xtask test

$(CURDIR)/target/schemathesis/bin/schemathesis:
	python3 -m venv target/schemathesis
	timeout 300 target/schemathesis/bin/pip install --quiet --disable-pip-version-check schemathesis==4.32.5

# Python with xgboost, for `penstock tune train` (docs/forecast.md).
forecast-training: target/forecast-training/bin/python
target/forecast-training/bin/python: python/training/requirements.txt
	python3 -m venv target/forecast-training
	timeout 600 target/forecast-training/bin/pip install --quiet --disable-pip-version-check -r python/training/requirements.txt
	touch $@

# Python with JAX, for models of running transfers (docs/forecast.md).
sequence-training: target/sequence-training/bin/python
target/sequence-training/bin/python: python/training/requirements-sequence.txt
	python3 -m venv target/sequence-training
	timeout 600 target/sequence-training/bin/pip install --quiet --disable-pip-version-check -r python/training/requirements-sequence.txt
	touch $@

clients:
	./tools/setup.sh build test
	PENSTOCK_TEST_COPIES=2000 $(CARGO) test --locked --package penstock --test gateway many_copies:: -- --nocapture

build:
	./tools/setup.sh build
	$(CARGO) build --release --locked --package penstock
	./tools/strip.sh target/release/penstock

image:
	./tools/setup.sh build image
	$(CARGO) xtask image

package:
	./tools/setup.sh build package
	$(CARGO) xtask package
	python3 -m venv target/wheel
	PENSTOCK_BINARY=$(CURDIR)/target/x86_64-unknown-linux-gnu/release/penstock target/wheel/bin/pip wheel --quiet \
		--disable-pip-version-check --no-deps --wheel-dir target/package python/cli

quick:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) xtask tidy
	$(CARGO) test --workspace --locked --lib --bins

check:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) xtask tidy
	$(CARGO) xtask bpf --check
	# Without libFuzzer itself, which needs a C++ compiler.
	cd fuzz && CUSTOM_LIBFUZZER_PATH=/libfuzzer.a CARGO_TARGET_DIR=../target/fuzz-check $(CARGO) check --locked --bins
	./tools/setup.sh deny
	$(CARGO) deny --locked --log-level error check licenses bans sources
	RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links --document-private-items" $(CARGO) doc --workspace --no-deps --locked

bench:
	./tools/setup.sh build
	$(CARGO) xtask bench mover --install

fuzz:
	./tools/setup.sh build
	$(CARGO) xtask fuzz

clean:
	$(CARGO) clean
