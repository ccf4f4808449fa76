# Two commands need nothing but this: make demo, make test. `make help` lists the rest.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

BIN := $(CURDIR)/bin
K8S_VERSION ?= 1.37.1
export K8S_VERSION
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)

# go-nvml wraps functions that NVML deprecates; the same flags everywhere keep one build cache.
export CGO_CFLAGS := -O2 -g -Wno-deprecated-declarations
# NVML's functions are bound when they are first called, as a driver may lack some: linking with -z now, which some
# compilers do by default, would end the program at its start (github.com/NVIDIA/go-nvml, README).
GO_LDFLAGS := -s -w -X github.com/cleave-dra/cleave/pkg/cli.version=$(VERSION) -extldflags=-Wl,-z,lazy
# gRPC's tracing pages draw in html/template, and with it the linker keeps every method there is: 15 MB of them.
GO_TAGS := grpcnotrace
# The directory of nvml.h. Asked of a package, go downloads its module; asked of a module (go list -m) it prints nothing for
# one that was never downloaded, which is every module on a fresh machine.
NVML_HEADER = $$(go list -f '{{.Dir}}' github.com/NVIDIA/go-nvml/pkg/nvml)
LINT := $(BIN)/golangci-lint
HELM := $(BIN)/helm
CHART := deployments/helm/cleave

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

.PHONY: build
build: sim hook ## build cleave, nvml-sim and libnvidia-ml.so.1 into bin/
	go build -trimpath -tags $(GO_TAGS) -ldflags "$(GO_LDFLAGS)" -o $(BIN)/cleave ./cmd/cleave

# kube-scheduler with Cleave's plugin, as the cluster of e2e builds kube-scheduler: the same cache serves both. No other
# target builds it, as it compiles Kubernetes, for ten minutes where nothing is cached.
KUBERNETES := $(shell sed -n 's|^\tk8s.io/kubernetes v||p' cmd/cleave-scheduler/go.mod)
.PHONY: scheduler
scheduler: ## build bin/cleave-scheduler: kube-scheduler that packs GPUs
	cd cmd/cleave-scheduler && CGO_ENABLED=0 go build -trimpath -ldflags "-s -w $(foreach pkg,k8s.io/component-base k8s.io/client-go/pkg, \
		-X $(pkg)/version.gitVersion=v$(KUBERNETES) -X $(pkg)/version.gitMajor=$(word 1,$(subst ., ,$(KUBERNETES))) \
		-X $(pkg)/version.gitMinor=$(word 2,$(subst ., ,$(KUBERNETES))))" -o $(BIN)/cleave-scheduler .

# The simulated library is a Go program in C's clothes: it exports every function that NVML's header declares.
.PHONY: sim
sim: ## build the simulated node: nvml-sim and libnvidia-ml.so.1
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o $(BIN)/nvml-sim ./cmd/nvml-sim
	header=$(NVML_HEADER); CGO_CFLAGS="$(CGO_CFLAGS) -I$$header" \
		go build -trimpath -tags nvmlsim -buildmode=c-shared -ldflags "-s -w -extldflags '-Wl,-soname,libnvidia-ml.so.1 -Wl,--version-script=$(CURDIR)/cmd/nvml-sim/libnvidia-ml/exports.map'" \
		-o $(BIN)/libnvidia-ml.so.1 ./cmd/nvml-sim/libnvidia-ml
	rm -f $(BIN)/libnvidia-ml.so.h
	go build -trimpath -tags nvmlsimdynamic,osusergo,netgo -ldflags '-s -w' -o $(BIN)/nvidia-programs ./cmd/nvml-sim

# The hook programs, which cleave carries and which run on the host. The first is static, as the host's C library may be
# any. The second loads the driver's library, so it cannot be; it is installed only where the driver is new enough.
HOOKS := pkg/cdi/hook/dist
.PHONY: hook
hook:
	go build -trimpath -tags osusergo,netgo -ldflags '-s -w -linkmode=external "-extldflags=-static -Wl,-z,lazy -Wl,--no-warnings"' \
		-o $(HOOKS)/nvidia-cdi-hook ./cmd/nvidia-cdi-hook
	go build -trimpath -tags osusergo,netgo -ldflags '-s -w -extldflags=-Wl,-z,lazy' -o $(HOOKS)/cleave-memory-limit ./cmd/cleave-memory-limit
	gzip -9 -n -f $(HOOKS)/nvidia-cdi-hook $(HOOKS)/cleave-memory-limit

.PHONY: image-root
# What is run is built with -trimpath, too, so that Go takes most of it from the cache of the build.
image-root: build ## lay out the root file system of the image in bin/image
	go run -trimpath ./hack/image-root -program $(BIN)/cleave -o $(BIN)/image

.PHONY: scheduler-image-root
scheduler-image-root: scheduler ## lay out the root file system of the scheduler's image in bin/scheduler-image
	go run -trimpath ./hack/image-root -program $(BIN)/cleave-scheduler -o $(BIN)/scheduler-image

.PHONY: demo
demo: image-root $(HELM) ## run the main job on a simulated node and a real local Kubernetes
	go run -trimpath ./e2e/cmd/demo

.PHONY: test
test: lint unit e2e ## everything that runs without a GPU: lint, unit with race detector, end to end

.PHONY: unit
unit: build $(HELM) ## unit tests with the race detector, and the Helm chart rendered in many ways
	go test -race -short ./api/... ./cmd/... ./pkg/... ./hack/gen-deviceclasses/... ./hack/gen-nodemodels/... ./hack/gen-policyschema/... ./hack/gen-reference/... ./hack/image-root/... ./e2e/cluster/... ./e2e/conformance/...
	go test ./e2e/chart
	@# A thousand plugins are started and killed: the race detector would make each start slow.
	go test -run TestPreparer_Killed ./pkg/claims

.PHONY: quick
quick: ## unit tests alone, on a fresh checkout: no root, no Helm, nothing built before
	go test -short ./pkg/...

.PHONY: e2e
e2e: image-root scheduler-image-root $(HELM) ## tests on a real local Kubernetes node (K8S_VERSION=1.37.1 or 1.36.4)
	@# -p 1: one cluster at a time; two that start at once may want the same port.
	CLEAVE_E2E=1 go test -p 1 -count=1 -timeout 40m -v ./e2e/...

.PHONY: conformance
conformance: image-root ## run e2e/conformance, the behaviour suite for DRA drivers, against Cleave and Kubernetes' own test driver
	go build -trimpath -ldflags '-s -w' -o $(BIN)/dra-conformance ./e2e/conformance
	CLEAVE_E2E=1 CLEAVE_CONFORMANCE_TEST_DRIVER=1 go test -count=1 -timeout 20m -v -run '^TestConformance' ./e2e

.PHONY: lint
lint: $(LINT) ## gofmt, go vet and the rules of .golangci.yaml
	$(LINT) run ./...
	go mod tidy -diff
	@# Its go.mod follows ours: a version that is newer here than in Kubernetes is excluded there.
	cd cmd/cleave-scheduler && go list -m all > /dev/null

$(LINT): hack/tools/go.mod
	@echo "Building golangci-lint (some minutes the first time)"
	cd hack/tools && CGO_ENABLED=0 go build -trimpath -o $@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint

.PHONY: bench
bench: build ## measure against the floor of this machine; prints a table, writes bin/bench.json
	go run -trimpath ./e2e/cmd/bench -o $(BIN)/bench.json

.PHONY: bench-scale
bench-scale: ## compare schedulers on 1,000 nodes without kubelets; prints a table, writes bin/bench-scale.json
	go run -trimpath ./e2e/cmd/bench-scale -o $(BIN)/bench-scale.json

.PHONY: bench-dashboard
bench-dashboard: ## measure the dashboard with 1,000 simulated nodes in Chromium
	CLEAVE_E2E=1 go test -count=1 -run '^$$' -bench . -benchtime 3x -timeout 30m ./e2e/dashboard

# The hardware lane is carried to machines that have neither Go nor a network, so it is one directory, below 60 MiB. cleave
# lies in it packed, which halves the directory; the lane unpacks it where it runs.
GPU_LANE ?= $(BIN)/gpu-lane
.PHONY: gpu-lane
gpu-lane: hook ## build bin/gpu-lane/, which tries Cleave on a machine with a real GPU (docs/hardware.md)
	$(MAKE) --no-print-directory gpu-lane-dir

.PHONY: gpu-lane-dir
gpu-lane-dir:
	rm -rf $(GPU_LANE) && mkdir -p $(GPU_LANE)
	go build -trimpath -tags $(GO_TAGS) -ldflags "$(GO_LDFLAGS)" -o $(GPU_LANE)/cleave ./cmd/cleave
	gzip -9 -n $(GPU_LANE)/cleave
	go build -trimpath -tags $(GO_TAGS) -ldflags "$(GO_LDFLAGS)" -o $(GPU_LANE)/gpu-lane ./e2e/cmd/gpulane
	$(CC) -O2 -s -Wall -Wextra -Wno-deprecated-declarations -o $(GPU_LANE)/cuda-probe e2e/gpulane/probe/cuda-probe.c
	header=$(NVML_HEADER); $(CC) -O2 -s -Wall -Wextra -Wno-deprecated-declarations -I"$$header" \
		-o $(GPU_LANE)/nvml-probe e2e/gpulane/probe/nvml-probe.c
	@size=$$(du -s --apparent-size -B 1M $(GPU_LANE) | cut -f1); echo "$(GPU_LANE): $$size MiB"; test "$$size" -lt 60

.PHONY: gpu-test
gpu-test: image-root gpu-lane $(HELM) ## run pods on a local Kubernetes with this machine's real GPU (docs/hardware.md)
	CLEAVE_GPU=1 go test -count=1 -v ./e2e/realgpu

.PHONY: helm
helm: $(HELM) ## build bin/helm

# Without a cluster to ask, Helm takes charts to be for the release of Kubernetes that it was built for.
HELM_KUBERNETES_MINOR := 37
$(HELM): hack/tools/helm/go.mod
	@echo "Building helm (a minute the first time)"
	cd hack/tools/helm && CGO_ENABLED=0 go build -trimpath -ldflags "-s -w \
		-X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=$(HELM_KUBERNETES_MINOR) -X helm.sh/helm/v3/pkg/lint/rules.k8sVersionMinor=$(HELM_KUBERNETES_MINOR)" \
		-o $@ helm.sh/helm/v3/cmd/helm

.PHONY: manifests
manifests: $(HELM) ## write what is made of other files: MIG profiles, the schema of policies, node models, the chart as plain YAML, its values in the docs
	go run ./hack/gen-deviceclasses
	go run ./hack/gen-policyschema
	go run ./hack/gen-nodemodels
	hack/render-manifests $(HELM) $(CHART) deployments/manifests
	UPDATE_DOCS=1 go test -run TestValues_ListedInDocs ./e2e/chart

.PHONY: reference
reference: ## write docs/reference.md from the code
	go run ./hack/gen-reference

.PHONY: packing-pictures
packing-pictures: build ## draw the pictures of docs/packing.md
	for w in inference training mixed; do $(BIN)/cleave simulate --nodes 50 --node-model hgx-h100 --seed 1 -o svg \
		--workload deployments/examples/workloads/$$w.yaml > docs/images/packing-$$w.svg; done

.PHONY: proto
proto: ## write the Go code of the MPS supervisor's API
	cd hack/tools/protogen && go run . $(CURDIR) pkg/mps/api/v1alpha1/supervisor.proto

.PHONY: cluster-up
cluster-up: ## start the local Kubernetes
	go run -trimpath ./e2e/cmd/cluster up

.PHONY: cluster-down
cluster-down: ## stop the local Kubernetes and remove all traces of it
	go run -trimpath ./e2e/cmd/cluster down

.PHONY: clean
clean: ## remove what was built
	rm -rf $(BIN)
