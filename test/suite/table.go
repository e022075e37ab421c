// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import "slices"

// Files that several shards depend on.
var (
	controller = []string{"go.mod", "apis", "cmd/drover-controller", "internal/controller", "internal/inventory", "internal/leader", "internal/policy", "internal/driver/driver.go", "internal/driver/kit", "internal/driver/fencing", "internal/driver/fake", "test/assert", "test/framework"}
	machine    = []string{"cmd/drover-machine", "internal/machine", "internal/image", "internal/driver/qemu", "internal/guest", "hack/guest"}
	contract   = []string{"go.mod", "internal/driver/driver.go", "internal/driver/kit", "internal/driver/drivertest", "test/assert", "test/framework"}
	nodes      = []string{"test/cluster", "internal/driver/pod", "charts", "config"}
	explorers  = []string{"test/faults", "test/bugs", "internal/crashpoint", "internal/atomicfile", "internal/driver/faultinject"}
)

// shards are the parts of the full tier. The gate runs all tests of packages that are in no shard.
var shards = []shard{
	{
		name:  "qemu",
		steps: []step{{of: "internal/driver/qemu", skip: "TestDebian|TestSystemd|TestContainerTree|TestDestinations|TestImages|TestWorkloads"}},
		short: step{of: "internal/driver/qemu", pattern: "TestLinuxPanics|TestControllerKilled$"},
		paths: slices.Concat(contract, machine),
	},
	{
		name:  "network",
		steps: []step{{of: "internal/driver/qemu", pattern: "TestDestinations"}, {of: "internal/driver/docker", pattern: "TestDestinations"}, {of: "internal/driver/pod", pattern: "TestDestinations"}, {of: "internal/machine/edge", isRaced: true}},
		short: step{of: "internal/machine/edge", isRaced: true},
		paths: slices.Concat(contract, machine, []string{"internal/driver/docker", "internal/driver/pod", "test/prober"}),
	},
	{
		name:  "guest",
		steps: []step{{of: "internal/guest/boot", skip: "TestSeededBugs"}, {of: "internal/guest/modules"}, {of: "internal/image/rootfs", pattern: "TestGenerated"}, {of: "internal/driver/qemu", pattern: "TestContainerTree"}, {of: "test/kubectlvm", pattern: "TestCopyToMachine"}},
		short: step{of: "internal/guest/boot"},
		paths: []string{"go.mod", "cmd/drover-guest", "internal/guest", "internal/image", "internal/machine/converter", "internal/machine/output", "hack/guest", "hack/guest.sh", "hack/guest-kernel.sh", "hack/debian-layers.sh", "test/assert", "test/framework"},
	},
	{
		name:  "guest-bugs",
		steps: []step{{of: "internal/guest/boot", pattern: "TestSeededBugs"}, {of: "internal/guest/process"}, {of: "internal/machine/output"}, {of: "internal/image/rootfs", pattern: "TestSeededBugs"}},
		paths: []string{"go.mod", "cmd/drover-guest", "internal/guest", "internal/image", "internal/machine/converter", "internal/machine/output", "hack/guest", "hack/guest.sh", "hack/guest-kernel.sh", "hack/debian-layers.sh", "test/assert", "test/bugs", "test/framework"},
	},
	{
		name:    "images",
		steps:   []step{{of: "internal/driver/qemu", pattern: "TestImages"}},
		paths:   slices.Concat(contract, machine, []string{"hack/debian-root.sh"}),
		prepare: []string{"hack/debian-root.sh", "inits", "services"},
	},
	{
		name:    "workloads",
		steps:   []step{{of: "internal/driver/qemu", pattern: "TestWorkloads"}},
		paths:   slices.Concat(contract, machine, []string{"hack/debian-root.sh"}),
		prepare: []string{"hack/debian-root.sh", "workloads", "chromium"},
	},
	{
		name:  "docker",
		steps: []step{{of: "internal/driver/docker", skip: "TestDestinations"}, {of: "test/streams", isRaced: true}},
		short: step{of: "internal/driver/docker", pattern: "TestEngineRestart|TestOutOfMemory"},
		paths: slices.Concat(contract, []string{"internal/driver/docker", "internal/driver/registry", "internal/streams", "test/streams", "hack/debian-root.sh"}),
	},
	{
		name:  "pod",
		steps: []step{{of: "internal/driver/pod", skip: "TestDestinations", isRaced: true}, {of: "test/manifests"}},
		short: step{of: "test/manifests", pattern: "TestChartValues$|TestAccount"},
		paths: slices.Concat(contract, []string{"apis", "internal/driver/pod", "cmd/drover-machine", "test/manifests", "charts", "config"}),
	},
	{
		name:  "system",
		steps: []step{{of: "test/integration", isRaced: true}, {of: "test/outage", isRaced: true}, {of: "test/kubectlvm", skip: "TestSSHToMachine|TestCopyToMachine", isRaced: true}},
		short: step{of: "test/integration", pattern: "TestManualChanges"},
		paths: slices.Concat(controller, []string{"cmd/kubectl-vm", "internal/driver/docker", "test/integration", "test/outage", "test/kubectlvm"}),
	},
	{
		name:  "standalone",
		steps: []step{{of: "standalone/e2e"}},
		short: step{of: "standalone/e2e", pattern: "TestFirstStartIsInterrupted"},
		paths: slices.Concat(controller, []string{"standalone"}),
	},
	{
		name:  "upgrade",
		steps: []step{{of: "test/upgrade"}},
		paths: slices.Concat(controller, machine, []string{"internal/format", "internal/driver/statedir", "standalone", "test/upgrade"}),
	},
	{
		name:  "failover",
		steps: []step{{of: "test/failover"}},
		short: step{of: "test/failover", pattern: "TestJudgeDetectsViolations"},
		paths: slices.Concat(controller, []string{"test/failover"}),
	},
	{
		name:  "schedules",
		steps: []step{{of: "test/schedules", isRaced: true}, {of: "internal/policy/decisions"}},
		short: step{of: "test/schedules", pattern: "TestSchedules"},
		paths: slices.Concat(controller, []string{"test/schedules", "test/bugs"}),
	},
	{
		name:  "specs",
		steps: []step{{of: "test/specs", skip: "TestDocker|TestQEMU"}},
		short: step{of: "test/specs", pattern: "TestRest"},
		paths: slices.Concat(controller, []string{"test/specs"}),
	},
	{
		name:  "specs-docker",
		steps: []step{{of: "test/specs", pattern: "TestDocker"}},
		paths: slices.Concat(controller, []string{"internal/driver/docker", "test/specs"}),
	},
	{
		name:  "specs-qemu",
		steps: []step{{of: "test/specs", pattern: "TestQEMU$"}},
		paths: slices.Concat(controller, machine, []string{"test/specs"}),
	},
	{
		name:  "specs-containers",
		steps: []step{{of: "test/specs", pattern: "TestQEMUContainers"}},
		paths: slices.Concat(controller, machine, []string{"test/specs"}),
	},
	{
		name:  "faults-fake",
		steps: []step{{of: "test/faults", pattern: "TestFaults/_fake$"}},
		short: step{of: "test/faults", pattern: "TestFaults/engine,_fake"},
		paths: slices.Concat(controller, explorers),
	},
	{
		name:  "faults-docker",
		steps: []step{{of: "test/faults", pattern: "TestFaults/(_docker$|clock_of_Docker|two_drivers)"}},
		short: step{of: "test/faults", pattern: "TestFaults/engine,_docker"},
		paths: slices.Concat(controller, explorers, []string{"internal/driver/docker"}),
	},
	{
		name:  "faults-qemu",
		steps: []step{{of: "test/faults", pattern: "TestFaults/(_qemu$|_container$|^rest$)"}},
		short: step{of: "test/faults", pattern: "TestFaults/engine,_qemu"},
		paths: slices.Concat(controller, explorers, machine),
	},
	{
		name:  "faults-pod",
		steps: []step{{of: "test/faults", pattern: "TestFaults/_pod$"}},
		short: step{of: "test/faults", pattern: "TestFaults/machine,_pod"},
		paths: slices.Concat(controller, explorers, []string{"cmd/drover-machine", "internal/machine", "internal/driver/pod"}),
	},
	{
		name:  "faults-api",
		steps: []step{{of: "test/faults", pattern: "TestFaults/(answers|watch|old_lists|clock_of_the_API|^etcd$)"}},
		short: step{of: "test/faults", pattern: "TestFaults/^etcd$"},
		paths: slices.Concat(controller, explorers, []string{"standalone"}),
	},
	{
		name:  "bugs",
		steps: []step{{of: "test/faults", pattern: "TestSeededBugs"}},
		paths: slices.Concat(controller, explorers, machine, []string{"internal/driver/docker", "internal/driver/pod"}),
	},
	{
		name:    "debian",
		steps:   []step{{of: "internal/driver/qemu", pattern: "TestDebian|TestSystemd"}, {of: "test/kubectlvm", pattern: "TestSSHToMachine"}, {of: "test/faults", pattern: "TestFaults/guest_writes"}},
		paths:   slices.Concat(machine, explorers, []string{"standalone", "cmd/kubectl-vm", "hack/debian-guest.sh"}),
		prepare: []string{"hack/debian-guest.sh"},
	},
	{
		name:    "package",
		steps:   []step{{of: "test/debian"}},
		paths:   slices.Concat(machine, []string{"standalone", "cmd/kubectl-vm", "config/debian", "hack/release", "hack/release.sh", "hack/bare-debian.sh", "hack/image", "test/debian"}),
		prepare: []string{"hack/bare-debian.sh"},
	},
	{
		name:    "cluster",
		steps:   []step{{of: "test/cluster", skip: "TestPod(Contract|Deletion|Driver|Evicted|Objects|Streams|sElsewhere)$"}},
		paths:   slices.Concat(nodes, []string{"cmd/drover-machine", "test/assert", "test/framework"}),
		prepare: []string{"hack/cluster-deps.sh", "engine"},
	},
	{
		name:    "cluster-pods",
		steps:   []step{{of: "test/cluster", pattern: "TestPod(Driver|Streams)$"}},
		paths:   slices.Concat(controller, machine, nodes),
		prepare: []string{"hack/cluster-deps.sh", "engine"},
	},
	{
		name:    "cluster-disruption",
		steps:   []step{{of: "test/cluster", pattern: "TestPod(Deletion|sElsewhere)$"}},
		paths:   slices.Concat(controller, machine, nodes),
		prepare: []string{"hack/cluster-deps.sh", "engine"},
	},
	{
		name:    "cluster-objects",
		steps:   []step{{of: "test/cluster", pattern: "TestPod(Evicted|Objects)$"}},
		paths:   slices.Concat(controller, machine, nodes),
		prepare: []string{"hack/cluster-deps.sh", "engine"},
	},
	{
		name:    "cluster-contract",
		steps:   []step{{of: "test/cluster", pattern: "TestPodContract$"}},
		paths:   slices.Concat(contract, machine, nodes),
		prepare: []string{"hack/cluster-deps.sh", "engine"},
	},
	{
		name:    "cluster-deployment",
		steps:   []step{{of: "test/cluster/deployment", skip: "TestRelease$"}, {of: "test/cluster/internal/cgroups"}},
		paths:   slices.Concat(controller, nodes),
		prepare: []string{"hack/cluster-deps.sh", "engine"},
	},
	{
		name:    "cluster-release",
		steps:   []step{{of: "test/cluster/deployment", pattern: "TestRelease$"}},
		paths:   slices.Concat(controller, machine, nodes, []string{"cmd/kubectl-vm", "hack/release", "hack/release.sh", "hack/image"}),
		prepare: []string{"hack/cluster-deps.sh", "engine"},
	},
}
