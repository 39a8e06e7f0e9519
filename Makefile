# Targets a person needs; `make help` lists them.
PYTHON ?= python3.11
# A wheel index for CPU-only torch (saves 6 GB), for instance PyTorch's own; empty: the default index.
TORCH_INDEX_URL ?=
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup java demo serve bench distill-demo image deploy undeploy test test-versions test-container check clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*##  *\(.*\)/\1\t\2/p' Makefile | sort | while IFS="$$(printf '\t')" read -r target text; do printf '  make %-15s %s\n' "$$target" "$$text"; done

setup: $(STAMP)  ## create .venv and install everything

$(STAMP): pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "error: $(PYTHON) is needed (PYTHON=… names another one; 3.11 it must be)"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (about 4 minutes, 7 GB from the default index; see TORCH_INDEX_URL)"
	@$(BIN)/pip install --quiet --disable-pip-version-check $(if $(TORCH_INDEX_URL),--extra-index-url $(TORCH_INDEX_URL)) -e '.[demo,deploy,dev,distill,onnx,openvino]' 2>$(VENV)/install.log \
	  || { grep -m 3 -i '^error' $(VENV)/install.log; echo "error: the installation failed. No network, or no package index? All of it: $(VENV)/install.log"; exit 1; }
	@touch $@

java:
	@if [ -n "$$JAVA_HOME" ]; then test -x "$$JAVA_HOME/bin/java"; else command -v java >/dev/null; fi \
	  || { echo "error: TorchServe needs Java 11 or later, and there is none (Debian: apt-get install openjdk-17-jre-headless)"; exit 1; }

demo: java $(STAMP)  ## build both demo models, serve them here, let them answer on photos
	@$(BIN)/tscpu demo

serve: java $(STAMP)  ## serve every archive that is built, until Ctrl-C
	@exec $(BIN)/tscpu serve

bench: java $(STAMP)  ## every way of serving side by side (an hour; wants the machine for itself)
	@$(BIN)/pip install --quiet --disable-pip-version-check -e '.[bench,litserve,onnx,openvino]'
	@$(BIN)/tscpu bench --suite handler --peer litserve

distill-demo: $(STAMP)  ## a large scorer to students at least 3 times as fast, within the gate (20 minutes)
	@$(BIN)/tscpu distill image_scorer_large --data demo --runtime openvino --crops 180 --epochs 3 --loss mse \
	  --students tf_efficientnet_lite0:4@224,tf_efficientnet_lite0:4@192,tf_efficientnet_lite0@160

# TARGET=podman runs the same Deployment on this machine. CPUS is its CPU limit then.
TARGET ?= kubernetes
OVERLAY ?= $(if $(filter podman,$(TARGET)),local,shared-node)
DEPLOY = --target $(TARGET) --overlay $(OVERLAY) $(if $(NAMESPACE),--namespace $(NAMESPACE))

image: $(STAMP)  ## the container image, by docker, podman or buildah (BASE: another Debian 12)
	@test -f build/model-store/food_recognizer.mar || $(BIN)/tscpu build food_recognizer image_scorer
	@$(BIN)/tscpu image $(if $(ENGINE),--engine $(ENGINE)) $(if $(IMAGE),--image $(IMAGE)) $(if $(BASE),--base $(BASE)) \
	  $(if $(filter environment command line,$(origin TORCH_INDEX_URL)),--torch-index-url "$(TORCH_INDEX_URL)")

deploy: $(STAMP)  ## check, apply and try the manifests (OVERLAY, IMAGE, NAMESPACE; TARGET=podman: here)
	@$(BIN)/tscpu deploy $(DEPLOY) $(if $(IMAGE),--image $(IMAGE)) $(if $(CPUS),--cpus $(CPUS))

undeploy: $(STAMP)  ## end what deploy started
	@$(BIN)/tscpu undeploy $(DEPLOY)

test: java $(STAMP)  ## everything, including a real TorchServe
	@$(MAKE) --no-print-directory check
	@$(BIN)/pytest tests/integration

test-versions: java $(STAMP)  ## old TorchServes, installed aside and started for real
	@$(BIN)/pytest tests/versions

test-container: $(STAMP)  ## the image, built and run for real (root, podman, buildah, debootstrap; half an hour)
	@$(BIN)/pytest -v tests/container

check: $(STAMP)  ## lint, types and unit tests
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/pytest -q tests/unit

clean:  ## remove everything that was built
	@rm -rf build
