# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0

# What each target does is one line behind "##"; make alone prints them.

SHELL := /bin/bash
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VERSION ?= $(shell cat VERSION)
# The same flags for every go command, so that builds, tests and linters share what is compiled.
export GOFLAGS := -trimpath -buildvcs=false $(filter-out -trimpath -buildvcs=%,$(GOFLAGS))
LDFLAGS := -s -w -X cloudnative.tw/drover/cmd/drover-controller/app.Version=$(VERSION) -X cloudnative.tw/drover/cmd/kubectl-vm/kit.Version=$(VERSION) -X cloudnative.tw/drover/cmd/drover-machine/app.Version=$(VERSION) -X main.droverVersion=$(VERSION) -X cloudnative.tw/drover/internal/format.Version=$(VERSION)
# What kube-apiserver in bin/drover says it is: clients such as Helm ask.
KUBE = $(shell go -C standalone list -m -f '{{.Version}}' k8s.io/kubernetes)
KUBE_PARTS = $(subst ., ,$(KUBE:v%=%))
KUBE_PKG := k8s.io/component-base/version
KUBE_LDFLAGS = -X $(KUBE_PKG).gitVersion=$(KUBE) -X $(KUBE_PKG).gitMajor=$(word 1,$(KUBE_PARTS)) -X $(KUBE_PKG).gitMinor=$(word 2,$(KUBE_PARTS))
# Folder in which programs are linked.
PROGRAMS = $(shell hack/cache.sh)/programs
# Flags for drover up and benchmarks: make up ARGS="--port 7443"
ARGS ?=
# What the demo runs: auto, docker, qemu, pod or fake.
DRIVER ?= auto
# What make soak runs on: fake, docker and qemu unless some are named.
ENGINES ?=
# How often make bench-cluster measures each fault.
RUNS ?= 10
# How many nodes make cluster starts, from 1 to 9.
NODES ?= 3
# The container image: make image IMAGE=registry.example/drover-controller:v1 PUSH=true
IMAGE ?= drover-controller:dev
MACHINE_IMAGE ?= drover-machine:dev
PLATFORMS ?= linux/$(shell go env GOARCH)
PUSH ?= false

.PHONY: help
help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## show Drover at work: start it, run a VM, use it, delete it, clean up; a machine where QEMU is or can be installed, else a container; DRIVER=docker, qemu, or pod: in a pod of a cluster
	@hack/demo.sh "$(DRIVER)" $(ARGS)

.PHONY: record
record: build guest ## record the picture of the README, docs/first.svg
	@hack/record.sh

.PHONY: up
up: build ## start Drover on this host and stay; flags by ARGS="...", Ctrl-C stops it
	@hack/dockerd.sh || echo "No Docker engine: drover up goes on with the drivers whose engine answers."
	@! command -v qemu-system-x86_64 >/dev/null || hack/guest.sh bin/guest || echo "No kernel for container images as machines: drover up goes on with disks alone under driver qemu."
	bin/drover up $(ARGS)

# Programs are linked into the cache (hack/cache.sh), where go links one again only if it would
# differ: a fresh checkout of the same content links nothing. One that is in use is replaced as a
# whole, and only by another: tests may be starting it.
EMBEDDED = standalone/internal/embedded/programs/drover-machine
.PHONY: build
build: ## build bin/drover, bin/drover-controller, bin/drover-machine and bin/kubectl-vm
	@mkdir -p bin "$(PROGRAMS)"
	@exec 9>"$(PROGRAMS)/.lock" && flock 9 && set -x && \
	export CGO_ENABLED=0 && \
	go build -ldflags "$(LDFLAGS)" -o "$(PROGRAMS)/" ./cmd/kubectl-vm ./cmd/drover-launcher ./cmd/drover-machine && \
	{ cmp --silent "$(PROGRAMS)/drover-machine" $(EMBEDDED) || cp --remove-destination "$(PROGRAMS)/drover-machine" $(EMBEDDED); } && \
	go build -ldflags "$(LDFLAGS)" -o "$(PROGRAMS)/" ./cmd/drover-controller && \
	go -C standalone build -ldflags "$(LDFLAGS) $(KUBE_LDFLAGS)" -o "$(PROGRAMS)/drover" . && \
	set +x && for p in drover drover-controller drover-launcher drover-machine kubectl-vm; do \
		cmp --silent "$(PROGRAMS)/$$p" "bin/$$p" || { cp "$(PROGRAMS)/$$p" "bin/$$p.new" && mv --force "bin/$$p.new" "bin/$$p"; } || exit 1; \
	done

.PHONY: guest
guest: ## build bin/guest: what boots a container image as a machine, and the image of one that names none; kernel and BusyBox come by apt-get, once
	@hack/guest.sh bin/guest

.PHONY: image
image: ## build the container image into bin/image, without an engine; IMAGE, PLATFORMS, PUSH=true
	@mkdir -p bin
	GOFLAGS= go -C hack/image run -buildvcs=false . --tag "$(IMAGE)" --version "$(VERSION)" --platforms "$(PLATFORMS)" --push=$(PUSH)

.PHONY: image-machine
image-machine: ## build the image of drover-machine, with QEMU from Debian's packages, into bin/image; MACHINE_IMAGE
	@mkdir -p bin
	@root="$$(hack/machine-root.sh)" && \
	GOFLAGS= go -C hack/image run -buildvcs=false . --program drover-machine --tag "$(MACHINE_IMAGE)" --version "$(VERSION)" --platforms linux/amd64 --root "$${root}/root" --packages "$${root}/packages" --push=$(PUSH)

# A manifest of an earlier release, which make release shall build again.
MANIFEST ?=
SOURCES ?= yes
.PHONY: release
release: ## build all files of a release into bin/release: package, images, chart, programs, sources, bill of materials; MANIFEST=FILE: with the packages that it names; SOURCES=no: without the sources
	rm -rf bin/release
	SOURCES="$(SOURCES)" hack/release.sh bin/release $(MANIFEST)

# How the tests run: test/suite.
SUITE = go run ./test/suite

.PHONY: test
test: build ## test what must pass before a change lands, 12 minutes; installs what it needs; PKG=internal/leader: one package
	@hack/test-deps.sh
	@$(SUITE) gate $(PKG)

.PHONY: test-full
test-full: build ## run what is too slow for make test, in shards of about 15 minutes or less; root; SHARD=qemu: one of them, make shards lists them
	@hack/test-deps.sh
	@$(SUITE) full $(SHARD)

.PHONY: shards
shards: ## print the shards of make test-full, and which of them have changed since they ran
	@$(SUITE) shards

N ?= 20
LOAD ?= 1
.PHONY: flakes
flakes: build ## test one package N times beside LOAD busy loops a CPU, and print the first failure and the longest waits; PKG=internal/leader
	@hack/test-deps.sh
	@$(SUITE) flakes -n $(N) -load $(LOAD) -run '$(RUN)' $(PKG)

.PHONY: fuzz
fuzz: ## run every fuzz target for 30 s, or FUZZTIME=10m; ARGS=PATTERN selects some
	@hack/fuzz.sh $(ARGS)

.PHONY: failover
failover: ## the shard of make test-full about replicas that are halted, killed and cut off
	@$(MAKE) test-full SHARD=failover

.PHONY: faults
faults: ## the shards of make test-full that kill controllers and cut the power at sampled points
	@$(MAKE) test-full SHARD="faults-fake faults-docker faults-qemu faults-pod faults-api schedules"

.PHONY: faults-full
faults-full: build ## the same at every point of every workload, and at many pairs; root, three hours; ARGS
	@hack/faults.sh full $(ARGS)

.PHONY: soak
soak: build ## thousands of VMs live and end while faults occur; root, an hour; ENGINES="fake qemu"
	@hack/soak.sh $(ENGINES)

.PHONY: test-upgrade
test-upgrade: ## the shard of make test-full that upgrades a host with machines in every state to the next release, and goes back
	@$(MAKE) test-full SHARD=upgrade

.PHONY: test-debian
test-debian: ## the shard of make test-full that boots a Debian and a Drover in it
	@$(MAKE) test-full SHARD=debian

.PHONY: cluster
cluster: ## start a Kubernetes cluster of several nodes on this host, in the background; root; NODES=3
	@hack/cluster-deps.sh
	@"$$(hack/cluster-binaries.sh)/drover-cluster" up --nodes "$(NODES)"

.PHONY: cluster-down
cluster-down: ## end the cluster that make cluster started, and remove all of it
	@"$$(hack/cluster-binaries.sh)/drover-cluster" down

.PHONY: test-cluster
test-cluster: ## the shards of make test-full that test that cluster, and Drover deployed on it
	@$(MAKE) test-full SHARD="cluster cluster-pods cluster-disruption cluster-objects cluster-contract cluster-deployment"

.PHONY: lint
lint: ## run golangci-lint on all modules, formatting included, kube-api-linter on apis/, check the tables of the tests, and that odd English decreases
	@$(SUITE) check
	hack/verify-lint.sh

.PHONY: codestats
codestats: ## print statistics of names, functions, packages and language; ARGS=DIR: of another checkout; ARGS=-lower: lower the numbers of odd English
	@go run -buildvcs=false ./hack/codestats $(ARGS)

.PHONY: vulncheck
vulncheck: ## look for known vulnerabilities in what is linked; asks vuln.go.dev, or VULNCHECK_DB=URL
	hack/vulncheck.sh

.PHONY: generate
generate: ## write what is generated from API types, chart, flags, policies and advice: deep copies, CRD, config/, client/, docs/{api,flags,rights,troubleshooting}.md
	hack/update-codegen.sh

.PHONY: verify
verify: build ## fail when generated files or the docs are stale, or a program is too large
	hack/verify-codegen.sh
	hack/verify-docs.sh
	hack/verify-size.sh

.PHONY: bench
bench: bench-build ## measure speed and cost beside floors, with up to 1,000 VMs; 20 minutes; ARGS="--turns 1"
	@hack/dockerd.sh
	bin/bench/bench apiserver fake idle restart writes slow docker up $(ARGS)

.PHONY: bench-full
bench-full: bench-build ## bench with 5,000 and 10,000 VMs, too; an hour
	@hack/dockerd.sh
	bin/bench/bench apiserver writes slow docker up $(ARGS)
	bin/bench/bench fake --vms 1,100,1000,5000,10000 $(ARGS)
	bin/bench/bench idle --vms 100,1000,5000,10000 $(ARGS)
	bin/bench/bench restart --vms 0,1000,5000,10000 $(ARGS)

.PHONY: bench-big
bench-big: bench-build ## the part of bench-full with many VMs
	bin/bench/bench fake idle restart --vms 1000,5000,10000 $(ARGS)

.PHONY: bench-build
bench-build: build
	@mkdir -p bin/bench
	go build -o bin/bench/bench ./test/bench/cmd

.PHONY: bench-up
bench-up: bench-build ## print how long drover up takes, cold and warm, and how much memory
	@hack/dockerd.sh
	bin/bench/bench up $(ARGS)

.PHONY: bench-burst
bench-burst: bench-build ## print what drover up keeps in memory five minutes after 10,000 VMs; 10 minutes
	bin/bench/bench burst $(ARGS)

.PHONY: bench-failover
bench-failover: bench-build ## print how fast a standby takes over, beside a plain elector, with 0 and 10,000 VMs; ARGS
	bin/bench/bench failover $(ARGS)

.PHONY: bench-qemu
bench-qemu: bench-build ## print how long QEMU machines take, of disks and container images, beside QEMU alone, and the memory they add; ARGS
	@hack/qemu.sh
	bin/bench/bench qemu qemu-memory qemu-image $(ARGS)

.PHONY: bench-network
bench-network: bench-build ## print what the edge of a machine's network carries and costs, beside QEMU's user network and passt; root; 5 minutes; ARGS
	@hack/qemu.sh
	@bash -c 'source hack/install-lib.sh; command -v passt >/dev/null || apt_install passt'
	bin/bench/bench network $(ARGS)

.PHONY: bench-cli
bench-cli: bench-build ## print how long kubectl-vm takes to start and to list 1,000 VMs, beside kubectl; ARGS
	bin/bench/bench cli $(ARGS)

.PHONY: bench-fleet
bench-fleet: build ## print how driver pod scales on 1,000 nodes that kwok simulates, beside bare pods; root; ARGS="--vms 1000", an hour
	@hack/cluster-deps.sh
	@hack/cluster-binaries.sh >/dev/null
	@mkdir -p bin/bench
	CGO_ENABLED=0 GOWORK=off go -C test/cluster/kwok build -o "$(CURDIR)/bin/bench/kwok" tool
	go -C test/cluster build -o "$(CURDIR)/bin/bench/fleet" ./fleet
	bin/bench/fleet fleet $(ARGS)

.PHONY: bench-cluster
bench-cluster: bench-build ## print what VMs as pods take beside pods, and how long a deployment is without a leader; root; RUNS=10; 40 minutes
	@hack/cluster-deps.sh engine
	@hack/cluster-binaries.sh >/dev/null
	go -C test/cluster test -count 1 -timeout 1h -v -run '^TestBenchmarkPods$$' . -rounds "$$((3 * $(RUNS)))"
	go -C test/cluster test -count 1 -timeout 3h -v -run '^TestBenchmark$$' ./deployment -runs "$(RUNS)"
	bin/bench/bench failover-default --turns "$(RUNS)"

.PHONY: clean
clean: ## remove bin/ (built programs and tools)
	rm -rf bin
