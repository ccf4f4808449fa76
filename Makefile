# Two commands need nothing but this: make demo, make test. `make help` lists the rest.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

BIN := $(CURDIR)/bin
K8S_VERSION ?= 1.37.2
export K8S_VERSION

# The checkout may belong to another user than the one who builds, where git would refuse to read it. Make before 4.4 exports
# nothing to $(shell).
export GIT_CONFIG_COUNT := 1
export GIT_CONFIG_KEY_0 := safe.directory
export GIT_CONFIG_VALUE_0 := *
VERSION ?= $(shell git -c safe.directory='*' describe --tags --always --dirty 2>/dev/null || echo unknown)

FUZZTIME ?= 10s
export FUZZTIME

# gRPC's tracing pages draw in html/template, and with it the linker keeps every method there is: 15 MB of them. Names are looked up
# without the C library, as in Kubernetes' own programs, which are compiled without cgo.
GO_TAGS := grpcnotrace,netgo,osusergo
# What is tested, linted and run comes from one build cache, which most of Kubernetes' packages are in once. Programs are linked without
# debug information, so it is not made: compilers take a sixth less.
export GOFLAGS := $(strip $(shell go env GOFLAGS) -trimpath -tags=$(GO_TAGS) -gcflags=all=-dwarf=false)
# go-nvml wraps functions that NVML deprecates; the same flags everywhere keep one build cache.
export CGO_CFLAGS := -O2 -g -Wno-deprecated-declarations
# NVML's functions are bound when they are first called, as a driver may lack some: linking with -z now, which some
# compilers do by default, would end the program at its start (github.com/NVIDIA/go-nvml, README).
GO_LDFLAGS := -s -w -X github.com/cleave-dra/cleave/pkg/cli.Version=$(VERSION) -extldflags=-Wl,-z,lazy
# The directory of nvml.h. Asked of a package, go downloads its module; asked of a module (go list -m) it prints nothing for
# one that was never downloaded, which is every module on a fresh machine.
NVML_HEADER = $$(go list -f '{{.Dir}}' github.com/NVIDIA/go-nvml/pkg/nvml)
LINT := $(BIN)/golangci-lint
HELM := $(BIN)/helm
CHART := deployments/helm/cleave

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

# What is released is built with these, and depends on neither the directory nor on whether git is there.
GO_BUILD := go build -trimpath -buildvcs=false

# GOARCH=arm64 builds the programs, the hook programs and the images for another architecture than this machine's. They load the
# driver's library with dlopen, so they need its compiler of C.
GOHOSTARCH := $(shell go env GOHOSTARCH)
# Empty where a builder of images does not know platforms.
override GOARCH := $(or $(GOARCH),$(GOHOSTARCH))
export GOARCH
ifneq ($(GOARCH),$(GOHOSTARCH))
export CGO_ENABLED := 1
export CC := $(shell hack/cross-compiler name $(GOARCH))
CROSS_COMPILER := cross-compiler
endif
.PHONY: cross-compiler
cross-compiler:
	hack/cross-compiler install $(GOARCH)

.PHONY: build
build: sim cleave cleave-node ## build cleave, cleave-node, nvml-sim and libnvidia-ml.so.1 into bin/

# For people; cleave-node is for nodes. Both read GPUs with NVML.
.PHONY: cleave
cleave: $(CROSS_COMPILER)
	$(GO_BUILD) -ldflags "$(GO_LDFLAGS)" -o $(BIN)/cleave ./cmd/cleave

.PHONY: cleave-node
cleave-node: hook
	$(GO_BUILD) -ldflags "$(GO_LDFLAGS)" -o $(BIN)/cleave-node ./cmd/cleave-node

# kube-scheduler with Cleave's plugin, as the cluster of e2e builds kube-scheduler: the same cache serves both. No other
# target builds it, as it compiles Kubernetes, for ten minutes where nothing is cached.
KUBERNETES := $(shell sed -n 's|^\tk8s.io/kubernetes v||p' cmd/cleave-scheduler/go.mod)
.PHONY: scheduler
scheduler: ## build bin/cleave-scheduler: kube-scheduler that packs GPUs
	cd cmd/cleave-scheduler && CGO_ENABLED=0 $(GO_BUILD) -ldflags "-s -w $(foreach pkg,k8s.io/component-base k8s.io/client-go/pkg, \
		-X $(pkg)/version.gitVersion=v$(KUBERNETES) -X $(pkg)/version.gitMajor=$(word 1,$(subst ., ,$(KUBERNETES))) \
		-X $(pkg)/version.gitMinor=$(word 2,$(subst ., ,$(KUBERNETES))))" -o $(BIN)/cleave-scheduler .

# The simulated library is a Go program in C's clothes: it exports every function that NVML's header declares.
.PHONY: sim
sim: ## build the simulated node: nvml-sim and libnvidia-ml.so.1
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o $(BIN)/nvml-sim ./cmd/nvml-sim
	header=$(NVML_HEADER); CGO_CFLAGS="$(CGO_CFLAGS) -I$$header" \
		go build -trimpath -tags $(GO_TAGS),nvmlsim -buildmode=c-shared -ldflags "-s -w -extldflags '-Wl,-soname,libnvidia-ml.so.1 -Wl,--version-script=$(CURDIR)/cmd/nvml-sim/libnvidia-ml/exports.map'" \
		-o $(BIN)/libnvidia-ml.so.1 ./cmd/nvml-sim/libnvidia-ml
	rm -f $(BIN)/libnvidia-ml.so.h
	go build -trimpath -tags $(GO_TAGS),nvmlsimdynamic -ldflags '-s -w' -o $(BIN)/nvidia-programs ./cmd/nvml-sim

# The hook programs, which cleave-node carries and which run on the host. The first is static, as the host's C library may be
# any. The second loads the driver's library, so it cannot be; it is installed only where the driver is new enough.
HOOKS := pkg/driver/cdi/hook/dist/$(GOARCH)
.PHONY: hook
hook: $(CROSS_COMPILER)
	$(GO_BUILD) -ldflags '-s -w -linkmode=external "-extldflags=-static -Wl,-z,lazy -Wl,--no-warnings"' \
		-o $(HOOKS)/nvidia-cdi-hook ./cmd/nvidia-cdi-hook
	$(GO_BUILD) -ldflags '-s -w -extldflags=-Wl,-z,lazy' -o $(HOOKS)/cleave-memory-limit ./cmd/cleave-memory-limit
	gzip -9 -n -f $(HOOKS)/nvidia-cdi-hook $(HOOKS)/cleave-memory-limit

# What is run is built with -trimpath, too, so that Go takes most of it from the cache of the build; and for this machine.
HERE := env -u GOARCH -u CC
IMAGE_ROOT := $(HERE) go run -trimpath ./hack/image-root
# The licenses of what a program links go with it, in a file by this name.
LICENSES := $(HERE) go -C hack/release run -trimpath . licenses
THIRD_PARTY := THIRD_PARTY_LICENSES
.PHONY: image-root
image-root: cleave-node ## lay out the root file system of the driver's image in bin/image
	$(LICENSES) -o $(BIN)/licenses/node/$(THIRD_PARTY) $(BIN)/cleave-node $(CURDIR)/$(HOOKS)/*.gz
	$(IMAGE_ROOT) -program $(BIN)/cleave-node -licenses LICENSE,$(BIN)/licenses/node/$(THIRD_PARTY) -o $(BIN)/image

.PHONY: dashboard-image-root
dashboard-image-root: cleave ## lay out the root file system of the dashboard's image in bin/dashboard-image
	$(LICENSES) -o $(BIN)/licenses/cleave/$(THIRD_PARTY) $(BIN)/cleave
	$(IMAGE_ROOT) -program $(BIN)/cleave -licenses LICENSE,$(BIN)/licenses/cleave/$(THIRD_PARTY) -o $(BIN)/dashboard-image

.PHONY: scheduler-image-root
scheduler-image-root: scheduler ## lay out the root file system of the scheduler's image in bin/scheduler-image
	$(LICENSES) -o $(BIN)/licenses/scheduler/$(THIRD_PARTY) $(BIN)/cleave-scheduler
	$(IMAGE_ROOT) -program $(BIN)/cleave-scheduler -licenses LICENSE,$(BIN)/licenses/scheduler/$(THIRD_PARTY) -o $(BIN)/scheduler-image

# The images themselves, built as others build them. They take what this machine compiled from its cache.
IMAGES := $(BIN)/images
.PHONY: images
images: cleave cleave-node scheduler ## build the images of the Dockerfile with buildah, as OCI archives in bin/images
	VERSION=$(VERSION) hack/build-images $(IMAGES) $(GOHOSTARCH)

PREVIOUS := $(BIN)/previous
.PHONY: previous
previous: ## build the last tag, or without one the last commit, which upgrades are tested from, in bin/previous
	hack/build-previous $(PREVIOUS)

.PHONY: release
release: $(HELM) ## make release VERSION=v0.1.0: its files, verified, in bin/release/ (docs/release.md)
	go -C hack/release run -trimpath . make -source $(CURDIR) -version "$(VERSION)" $(if $(DIRTY),-dirty)

.PHONY: demo
demo: build image-root $(HELM) ## run the main job on a simulated node and a real local Kubernetes
	go run -trimpath ./e2e/cmd/demo

# The runner says what runs and how much is left, and runs again, alone, what failed: hack/testrun.
TESTRUN := go run -trimpath ./hack/testrun $(if $(RUNS),-runs $(RUNS)) $(if $(TESTS),-tests '$(TESTS)')
.PHONY: test
test: ## what tells whether it works here: unit tests, and the most important ones on a real Kubernetes; 8 to 9 minutes, 17 the first time
	$(TESTRUN) core

.PHONY: test-all
test-all: ## all tests there are. TESTS='^TestMPS' chooses; RUNS=10 TESTS='^TestMPS' repeats them under load and counts
	$(TESTRUN) all

.PHONY: test-rest
test-rest: ## what make test leaves out of make test-all
	$(TESTRUN) rest

.PHONY: test-releases
test-releases: build ## what GPUs offer on each release of Kubernetes, for docs/install.md (ARGS=-update writes it): builds four control planes
	CLEAVE_E2E=1 CLEAVE_RELEASES=1 go test -exec $(CURDIR)/hack/apart -count=1 -timeout 2h -v -run '^TestReleases$$' ./e2e/scheduling -args $(ARGS)

.PHONY: tools
tools: ## programs of others that tests run besides a cluster, which they build themselves where they are missing
	go run -trimpath ./e2e/cmd/cluster build -tools

.PHONY: quick
quick: ## unit tests alone, on a fresh checkout: no root, no Helm, nothing built before
	go test -short ./pkg/...

.PHONY: fuzz
fuzz: ## run each fuzz target for FUZZTIME (10s)
	hack/fuzz

.PHONY: conformance
conformance: build image-root ## run e2e/conformance, the behaviour suite for DRA drivers, against Cleave and Kubernetes' own test driver
	go build -trimpath -ldflags '-s -w' -o $(BIN)/dra-conformance ./e2e/conformance
	CLEAVE_E2E=1 go test -count=1 -timeout 20m -v -run '^TestConformance' ./e2e

# A report names its seed, which repeats the order of faults and pods: make soak DURATION=10m SEED=7
DURATION ?= 1h
SEED ?= 1
.PHONY: soak
soak: build image-root scheduler $(HELM) ## keep a local cluster under fire for DURATION=1h with SEED=1; prints a report, writes bin/soak.json
	go run -trimpath ./e2e/cmd/soak -duration $(DURATION) -seed $(SEED) -history $(BIN)/soak-history.jsonl -o $(BIN)/soak.json

.PHONY: lint
lint: $(LINT) ## gofmt, go vet and the rules of .golangci.yaml
	@# With a cold cache it has failed to load a package of the standard library, and not the next time.
	mkdir -p $(BIN)
	$(LINT) run ./... | tee $(BIN)/lint.log || { grep -q "(typecheck)" $(BIN)/lint.log && $(LINT) cache clean && $(LINT) run ./...; }
	go mod tidy -diff
	@# Its go.mod follows ours: a version that is newer here than in Kubernetes is excluded there.
	cd cmd/cleave-scheduler && go list -m all > /dev/null && $(LINT) run ./...

$(LINT): hack/tools/go.mod
	@echo "Building golangci-lint (some minutes the first time)"
	cd hack/tools && CGO_ENABLED=0 go build -trimpath -o $@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint

.PHONY: bench
bench: build ## measure against the floor of this machine; prints a table, writes bin/bench.json
	go run -trimpath ./e2e/cmd/bench -o $(BIN)/bench.json

.PHONY: bench-scale
bench-scale: build scheduler ## compare schedulers on 1,000 nodes without kubelets; prints a table, writes bin/bench-scale.json
	go run -trimpath ./e2e/cmd/bench-scale -o $(BIN)/bench-scale.json

.PHONY: bench-dashboard
bench-dashboard: ## measure the dashboard with 1,000 simulated nodes in Chromium
	CLEAVE_E2E=1 go test -count=1 -run '^$$' -bench . -benchtime 3x -timeout 30m ./e2e/dashboard

# The hardware lane is carried to machines that have neither Go nor a network, so it is one directory, below 62 MiB. The programs
# lie in it packed, which halves the directory; the lane unpacks them where it runs.
GPU_LANE ?= $(BIN)/gpu-lane
.PHONY: gpu-lane
gpu-lane: hook ## build bin/gpu-lane/, which tries Cleave on a machine with a real GPU (docs/hardware.md)
	$(MAKE) --no-print-directory gpu-lane-dir

.PHONY: gpu-lane-dir
gpu-lane-dir:
	rm -rf $(GPU_LANE) && mkdir -p $(GPU_LANE)
	go build -trimpath -ldflags "$(GO_LDFLAGS)" -o $(GPU_LANE)/cleave ./cmd/cleave
	go build -trimpath -ldflags "$(GO_LDFLAGS)" -o $(GPU_LANE)/cleave-node ./cmd/cleave-node
	gzip -9 -n $(GPU_LANE)/cleave $(GPU_LANE)/cleave-node
	go build -trimpath -ldflags "$(GO_LDFLAGS)" -o $(GPU_LANE)/gpu-lane ./e2e/cmd/gpulane
	$(CC) -O2 -s -Wall -Wextra -Wno-deprecated-declarations -o $(GPU_LANE)/cuda-probe e2e/gpulane/probe/cuda-probe.c
	header=$(NVML_HEADER); $(CC) -O2 -s -Wall -Wextra -Wno-deprecated-declarations -I"$$header" \
		-o $(GPU_LANE)/nvml-probe e2e/gpulane/probe/nvml-probe.c
	@size=$$(du -s --apparent-size -B 1M $(GPU_LANE) | cut -f1); echo "$(GPU_LANE): $$size MiB"; test "$$size" -lt 62

.PHONY: gpu-test
gpu-test: build image-root gpu-lane $(HELM) ## run pods on a local Kubernetes with this machine's real GPU (docs/hardware.md)
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
packing-pictures: build ## draw the pictures of docs/simulate.md
	for w in inference training mixed queues; do $(BIN)/cleave simulate --nodes 50 --node-model hgx-h100 --seed 1 -o svg \
		--workload deployments/examples/workloads/$$w.yaml > docs/images/packing-$$w.svg; done

.PHONY: proto
proto: ## write the Go code of the MPS supervisor's API
	cd hack/tools/protogen && go run . $(CURDIR) pkg/driver/mps/api/v1alpha1/supervisor.proto

NODES ?= 1
.PHONY: cluster-up
cluster-up: ## start the local Kubernetes; NODES=3 for several nodes
	go run -trimpath ./e2e/cmd/cluster up --nodes $(NODES)

.PHONY: cluster-down
cluster-down: ## stop the local Kubernetes and remove all traces of it
	go run -trimpath ./e2e/cmd/cluster down

.PHONY: clean
clean: ## remove what was built
	rm -rf $(BIN)
