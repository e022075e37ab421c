// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// kind is how the gate runs a package's tests.
type kind int

const (
	// cached tests have their results from go's cache if nothing has changed: they start no engine,
	// no API server and no program of Drover.
	cached kind = iota
	// raced tests are cached tests with the race detector, for concurrent Go code.
	raced
	// process tests start engines and programs: they always run, two packages at a time. They run
	// without the race detector, because it would check only the test, not the programs.
	process
	// full tests are all in the full tier.
	full
)

// testPackage is a package that has tests.
type testPackage struct {
	path string // below the repository's root
	kind kind
	// parallel is how many tests of the package run at a time. They mostly wait.
	parallel int
}

// packages are all packages that have tests. The process packages run in this order: those that are
// quick to link come first, and the others are built at the same time.
var packages = []testPackage{
	{"apis/streams/v1alpha1", cached, 32},
	{"cmd/drover-controller/apiserver", cached, 32},
	{"cmd/drover-controller/app", cached, 32},
	{"cmd/kubectl-vm/admin", cached, 32},
	{"cmd/kubectl-vm/advice", cached, 32},
	{"cmd/kubectl-vm/app", cached, 32},
	{"cmd/kubectl-vm/change", cached, 32},
	{"cmd/kubectl-vm/connect", cached, 32},
	{"cmd/kubectl-vm/create", cached, 32},
	{"cmd/kubectl-vm/findings", cached, 32},
	{"cmd/kubectl-vm/kit", cached, 32},
	{"cmd/kubectl-vm/printable", cached, 32},
	{"cmd/kubectl-vm/servers", cached, 32},
	{"cmd/kubectl-vm/show", cached, 32},
	{"cmd/kubectl-vm/spec", cached, 32},
	{"cmd/kubectl-vm/vm", cached, 32},
	{"cmd/signals", cached, 32},
	{"hack/codestats", cached, 32},
	{"hack/image", cached, 32},
	{"hack/release", cached, 32},
	{"internal/format", cached, 32},
	{"internal/atomicfile", cached, 32},
	{"internal/controller/secrets", cached, 32},
	{"internal/controller/translate", cached, 32},
	{"internal/driver", cached, 32},
	{"internal/driver/journal", cached, 32},
	{"internal/driver/metrics", cached, 32},
	{"internal/driver/pod/kvm", cached, 32},
	{"internal/driver/pod/objects", cached, 32},
	{"internal/driver/qemu/disks", cached, 32},
	{"internal/driver/statedir", cached, 32},
	{"internal/guest/config", cached, 32},
	{"internal/machine/failure", cached, 32},
	{"internal/guest/datadisk", cached, 32},
	{"internal/guest/files", cached, 32},
	{"internal/guest/initramfs", cached, 32},
	{"internal/guest/modules", cached, 32},
	{"internal/guest/mounts", cached, 32},
	{"internal/guest/report", cached, 32},
	{"internal/guest/system", cached, 32},
	{"internal/guest/tree", cached, 32},
	{"internal/guest/users", cached, 32},
	{"internal/image/catalogue", cached, 32},
	{"internal/image/compression", cached, 32},
	{"internal/image/egress", cached, 32},
	{"internal/image/erofs", cached, 32},
	{"internal/image/health", cached, 32},
	{"internal/image/diskspace", cached, 32},
	{"internal/image/source", cached, 32},
	{"internal/image/transfer", cached, 32},
	{"internal/inotify", cached, 32},
	{"internal/login", cached, 32},
	{"internal/machine/description", cached, 32},
	{"internal/machine/memory", cached, 32},
	{"internal/machine/output", cached, 32},
	{"internal/driver/qemu/addresses", cached, 32},
	{"internal/driver/qemu/shares", cached, 32},
	{"internal/policy", cached, 32},
	{"internal/policy/decisions", cached, 32},
	{"standalone/internal/command", cached, 32},
	{"standalone/internal/datadir", cached, 32},
	{"standalone/internal/etcdlog", cached, 32},
	{"standalone/internal/kubeconfig", cached, 32},
	{"standalone/internal/members", cached, 32},
	{"standalone/internal/pki", cached, 32},
	{"standalone/internal/port", cached, 32},
	{"standalone/internal/preset", cached, 32},
	{"standalone/internal/purge", cached, 32},
	{"standalone/internal/reference/rights", cached, 32},
	{"standalone/internal/runstate", cached, 32},
	{"standalone/internal/status", cached, 32},
	{"standalone/internal/storequota", cached, 32},
	{"test/assert", cached, 32},
	{"test/bench", cached, 32},
	{"test/cluster/internal/failure", cached, 32},
	{"test/cluster/internal/plan", cached, 32},
	{"test/faults/apifaults", cached, 32},
	{"test/faults/lab", cached, 32},
	{"test/faults/outside", cached, 32},
	{"test/faults/powercut", cached, 32},
	{"test/faults/soak", cached, 32},
	{"test/framework/filelock", cached, 32},
	{"test/framework/rules", cached, 32},
	{"test/suite", cached, 32},
	{"test/tier", cached, 32},
	{"cmd/kubectl-vm/streams", raced, 32},
	{"internal/controller", raced, 32},
	{"internal/controller/filesync", raced, 32},
	{"internal/controller/probe", raced, 32},
	{"internal/controller/facttimes", raced, 32},
	{"internal/controller/queue", raced, 32},
	{"internal/controller/recorder", raced, 32},
	{"internal/controller/vmclient", raced, 32},
	{"internal/driver/docker/engine", raced, 32},
	{"internal/driver/docker/guest", raced, 32},
	{"internal/driver/docker/pull", raced, 32},
	{"internal/driver/download", raced, 32},
	{"internal/driver/fake", raced, 32},
	{"internal/driver/faultinject", raced, 32},
	{"internal/driver/fencing", raced, 32},
	{"internal/driver/kit", raced, 32},
	{"internal/driver/pod/instance", raced, 32},
	{"internal/driver/pod/machines", raced, 32},
	{"internal/driver/pod/tags", raced, 32},
	{"internal/guest/agent", raced, 32},
	{"internal/guest/client", raced, 32},
	{"internal/guest/process", raced, 32},
	{"internal/guest/wire", raced, 32},
	{"internal/image", raced, 32},
	{"internal/inventory", raced, 32},
	{"internal/machine/imageagent", raced, 32},
	{"internal/leader", raced, 32},
	{"internal/logrepeat", raced, 32},
	{"internal/streams", raced, 32},
	{"internal/streams/endpoint", raced, 32},
	{"internal/terminal", raced, 32},
	{"standalone/internal/supervisor", raced, 32},
	{"internal/driver/qemu", process, 8},
	{"internal/driver/docker", process, 12},
	{"internal/driver/pod", process, 16},
	{"cmd/drover-machine/app", process, 8},
	{"test/faults", process, 16},
	{"test/failover", process, 8},
	{"test/schedules", process, 4},
	{"test/integration", process, 12},
	{"test/outage", process, 12},
	{"test/specs", process, 8},
	{"test/manifests", process, 16},
	{"test/kubectlvm", process, 12},
	{"test/streams", process, 16},
	{"standalone/e2e", process, 8},
	{"standalone/internal/program", process, 4},
	{"config/crd", process, 8},
	{"examples/list-vms", process, 4},
	{"internal/driver/qemu/hostports", process, 8},
	{"internal/driver/qemu/containerboot", process, 8},
	{"internal/driver/qemu/instance", process, 8},
	{"internal/driver/registry", process, 8},
	{"internal/guest/boot", process, 4},
	{"internal/image/diskimage", process, 8},
	{"internal/image/rootfs", process, 8},
	{"internal/machine/converter", process, 8},
	{"internal/machine", process, 8},
	{"internal/machine/accounts", process, 8},
	{"internal/machine/agent", process, 8},
	{"internal/machine/cgroup", process, 4},
	{"internal/machine/confine", process, 4},
	{"internal/machine/edge", process, 8},
	{"internal/machine/edge/routes", process, 1},
	{"internal/machine/console", process, 8},
	{"internal/machine/control", process, 8},
	{"internal/machine/installation", process, 8},
	{"internal/machine/broker", process, 8},
	{"internal/machine/supervised", process, 4},
	{"internal/machine/supervisor", process, 8},
	{"internal/machine/launch", process, 8},
	{"internal/machine/proc", process, 4},
	{"internal/machine/qmp", process, 32},
	{"standalone/internal/doctor", process, 4},
	{"standalone/internal/engines", process, 4},
	{"standalone/internal/storekeeper", process, 4},
	{"test/bugs", process, 4},
	{"test/faults/guestwrites", process, 4},
	{"test/framework", process, 4},
	{"test/debian", full, 1},
	{"test/upgrade", full, 1},
	{"test/cluster", full, 1},
	{"test/cluster/deployment", full, 1},
	{"test/cluster/internal/cgroups", full, 1},
}

// modules are the Go modules of the repository, the nested ones first.
var modules = []string{"standalone", "test/cluster", "hack/image", "hack/release", "."}

// module returns the folder of the module that has the package.
func (p testPackage) module() string {
	for _, m := range modules {
		if p.path == m || strings.HasPrefix(p.path, m+"/") {
			return m
		}
	}
	return "."
}

// pattern is the package as go names it in its module's folder.
func (p testPackage) pattern() string {
	below, err := filepath.Rel(p.module(), p.path)
	if err != nil {
		return p.path
	}
	return "./" + filepath.ToSlash(below)
}

func (p testPackage) String() string { return p.path }

func findPackage(path string) (testPackage, error) {
	path = filepath.ToSlash(filepath.Clean(strings.TrimPrefix(path, "./")))
	n := slices.IndexFunc(packages, func(p testPackage) bool { return p.path == path })
	if n < 0 {
		return testPackage{}, fmt.Errorf("no tests are known of package %q: test/suite/packages.go lists those that have some", path)
	}
	return packages[n], nil
}

// checkPackages fails if the table differs from the packages that have tests.
func checkPackages(ctx context.Context) error {
	var have []string
	for _, m := range modules {
		out, err := output(goCommand(ctx, m, "list", "-f", "{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}", "./..."))
		if err != nil {
			return err
		}
		for path := range strings.FieldsSeq(out) {
			have = append(have, strings.TrimPrefix(path, "cloudnative.tw/drover/"))
		}
	}
	for _, path := range have {
		if _, err := findPackage(path); err != nil {
			return err
		}
	}
	for _, p := range packages {
		if !slices.Contains(have, p.path) {
			return fmt.Errorf("test/suite/packages.go has %s, which lacks tests", p)
		}
	}
	return nil
}
