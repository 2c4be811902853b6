# The two commands of a fresh machine: `make demo` and `make test`. Both set up what they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OBSERVER := .venv-observer
FLOWER := .venv-flower
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# Hundreds of processes are started, and each would compile our code again.
export PYTHONDONTWRITEBYTECODE =

.PHONY: demo test test-long mutants check format bench docs lock clean mosquitto chromium gstreamer prometheus postgresql postgresql-package rtsp-server-package flower

demo: $(VENV)/demo.stamp $(OBSERVER)/installed.stamp ## the main job on real sensor data, with an embedded broker
	$(BIN)/lichen demo --observer-python $(OBSERVER)/bin/python $(ARGS)

# Half of the tests wait for processes that they start: five workers for two cores. tests/conftest.py orders the files.
test: $(VENV)/compiled.stamp mosquitto chromium gstreamer prometheus postgresql ## the suite without the long tests (ARGS="-k spool": a part of all)
ifeq ($(strip $(ARGS)),)
	$(BIN)/python -P -m pytest -n 5 --dist loadfile --no-loadscope-reorder -m 'not long' --durations=15 tests
else
	$(BIN)/python -P -m pytest $(ARGS)
endif

test-long: $(VENV)/compiled.stamp mosquitto chromium gstreamer prometheus postgresql ## whole demos, faults at every step of a round, releases, exports, types
	$(BIN)/python -P -m pytest -n 3 --dist load -m long --durations=15 tests

mutants: $(VENV)/dev.stamp ## small faults in the decision modules; lists those that no test notices (ARGS="--seed 1 --count 300")
	$(BIN)/python -m tests.mutants $(ARGS)

check: $(VENV)/dev.stamp ## style, types and import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/dev.stamp
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/dev.stamp $(OBSERVER)/installed.stamp $(FLOWER)/installed.stamp ## every figure of docs/benchmarks (ARGS=--quick: one seed)
	$(BIN)/lichen bench all $(ARGS)

docs: $(VENV)/dev.stamp ## pages that are generated from the code and from stored results
	$(BIN)/python -P -m protocol.asyncapi > docs/protocol/asyncapi.json
	$(BIN)/python -P -m lichen.commands.task_reference > docs/task.md
	$(BIN)/python -P -m coordinator.observability.dashboards
	$(BIN)/lichen bench pages

# torch first and alone: the exact pin is the CPU build, and no resolver may choose another. The pip that Python brings
# resolves at half the speed of today's. Nothing is compiled: of what is installed, most is never imported.
$(VENV)/torch.stamp:
	$(PYTHON) -m venv $(VENV)
	-$(BIN)/pip install -q --no-compile --upgrade pip
	$(BIN)/pip install -q --no-compile torch==2.13.0
	touch $@

$(VENV)/demo.stamp: $(VENV)/torch.stamp pyproject.toml lichen_lab/pyproject.toml
	$(BIN)/pip install -q --no-compile -e '.[coordinator,export]' -e ./lichen_lab
	touch $@

$(VENV)/dev.stamp: $(VENV)/torch.stamp pyproject.toml lichen_lab/pyproject.toml
	$(BIN)/pip install -q --no-compile -e '.[dev]' -e ./lichen_lab
	touch $@ $(VENV)/demo.stamp

# Every worker of pytest would compile all that it imports: two processes do it once. The run itself reports errors.
COLLECT := $(BIN)/python -P -m pytest -q --collect-only -p no:cacheprovider
$(VENV)/compiled.stamp: $(VENV)/dev.stamp
	@$(COLLECT) tests/unit >/dev/null 2>&1 & $(COLLECT) $(filter-out tests/unit,$(wildcard tests/[a-z]*)) >/dev/null 2>&1; wait
	@touch $@

# The installation of an observing device: no torch, no web parts. Not editable: as on a device.
$(OBSERVER)/installed.stamp: pyproject.toml $(shell find protocol runtime models export edge_agent coordinator console lichen -name '*.py' -newer $(OBSERVER)/installed.stamp 2>/dev/null)
	test -x $(OBSERVER)/bin/python || $(PYTHON) -m venv $(OBSERVER)
	$(OBSERVER)/bin/pip install -q '.[infer]'
	$(OBSERVER)/bin/pip install -q --force-reinstall --no-deps '.'
	touch $@

# Tests against a real broker and a real browser skip, loudly, without one; it is installed here if we may.
define installed
	@command -v $(1) >/dev/null 2>&1 || test -x /usr/sbin/$(1) || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
	    echo "installing $(or $(2),$(1)) for the tests that need it"; \
	    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(or $(2),$(1)); } >/dev/null 2>&1 \
	      || echo "could not install $(or $(2),$(1)): those tests will be skipped"; \
	  else echo "$(1) is not installed: those tests will be skipped (apt-get install $(or $(2),$(1)))"; fi; }
endef

mosquitto:
	$(call installed,mosquitto)

chromium:
	$(call installed,chromium)

gstreamer:
	$(call installed,gst-launch-1.0,gstreamer1.0-tools gstreamer1.0-plugins-base gstreamer1.0-plugins-good)
	@/usr/bin/python3 -c "import gi; gi.require_version('GstRtspServer', '1.0')" 2>/dev/null || $(MAKE) --no-print-directory rtsp-server-package

# A library for Debian's own Python, and no program.
rtsp-server-package:
	$(call installed,rtsp-server,gir1.2-gst-rtsp-server-1.0 python3-gi)

prometheus:
	$(call installed,prometheus)
	$(call installed,chromedriver,chromium-driver)

# Its programs are in no folder of PATH; a server that Debian starts with it is not used.
postgresql:
	@ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || $(MAKE) --no-print-directory postgresql-package

postgresql-package:
	$(call installed,postgresql)

# Flower and what our training needs, apart from our own environment: both ask for versions of the same libraries.
flower: $(FLOWER)/installed.stamp ## the environment of Flower, for `lichen bench peers` and `simulation`
$(FLOWER)/installed.stamp: pyproject.toml
	test -x $(FLOWER)/bin/python || $(PYTHON) -m venv $(FLOWER)
	$(FLOWER)/bin/pip install -q torch==2.13.0
	$(FLOWER)/bin/pip install -q '.' 'flwr[simulation]==1.41.0'
	touch $@

lock: ## the libraries of install.sh, resolved again, with hashes (Python 3.11, x86_64)
	$(PYTHON) install/lock.py

clean:
	rm -rf $(VENV) $(OBSERVER) $(FLOWER) build *.egg-info demo-out bench-out mutants-out .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
