// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package faults explores the effects of faults on Drover: it injects them one by one, and
// checks the rules after each.
//
// Start with kinds, the table of the kinds of fault. make faults prints a row for each. Package
// lab has their common parts, and package crash most of the kinds. docs/faults.md lists the bugs
// that were found.
package faults

import (
	"slices"
	"strings"

	"cloudnative.tw/drover/test/faults/apifaults"
	"cloudnative.tw/drover/test/faults/crash"
	"cloudnative.tw/drover/test/faults/guestwrites"
	"cloudnative.tw/drover/test/faults/lab"
	"cloudnative.tw/drover/test/faults/outside"
	"cloudnative.tw/drover/test/faults/powercut"
	"cloudnative.tw/drover/test/faults/soak"
)

// kinds are the kinds of fault, in the order in which they are explored.
var kinds = slices.Concat(kindsOf(atPoints), []lab.Kind{crash.RestKind("rest", []lab.Engine{lab.Fake{}, lab.NewDocker(), lab.NewQEMU()})},
	kindsOf(ofAPI), []lab.Kind{
		apifaults.EtcdKind("etcd"),
		soak.Kind(soak.Settings{
			Engine: lab.Fake{}, Parallel: 64, Round: 200,
			Lifecycles: map[lab.Size]int{lab.SizeDefault: 100, lab.SizeFull: 1000, lab.SizeSoak: 8500},
		}),
		soak.Kind(soak.Settings{
			Engine: lab.NewDocker(), Parallel: 8, Round: 40, Lifecycles: map[lab.Size]int{lab.SizeSoak: 1000},
		}),
		soak.Kind(soak.Settings{
			Engine: lab.NewQEMU(), Parallel: 100, Round: 100, Lifecycles: map[lab.Size]int{lab.SizeSoak: 400},
		}),
		powercut.Kind("fake"),
		powercut.Kind("qemu"),
		guestwrites.Kind(),
	})

func kindsOf(all []crash.Settings) (kinds []lab.Kind) {
	for _, s := range all {
		kinds = append(kinds, crash.Kind(s))
	}
	return kinds
}

// The engines of the kinds of fault.
var (
	fake   = []lab.Engine{lab.Fake{}}
	fakes  = []lab.Engine{lab.Fake{}, lab.Fake{Instant: true}}
	docker = []lab.Engine{lab.NewDocker()}
	qemu   = []lab.Engine{lab.NewQEMU()}
	images = []lab.Engine{lab.NewContainers(false), lab.NewContainers(true)}
	pods   = []lab.Engine{lab.NewPod()}
	both   = []lab.Engine{crash.Pair{Engine: lab.Fake{}, Second: lab.NewDocker()}, crash.Pair{Engine: lab.NewDocker(), Second: lab.NewQEMU()}}
)

// pairs returns how many cases of two crashes are run in each size.
func pairs(short, normal, full int) map[lab.Size]int {
	return map[lab.Size]int{lab.SizeShort: short, lab.SizeDefault: normal, lab.SizeFull: full}
}

// atPoints are the kinds whose faults occur at the crash points of a controller.
var atPoints = []crash.Settings{
	{Name: "crash points, fake", Parallel: 16, Engines: fakes, Short: 2, Default: 3, Pairs: pairs(2, 10, 1000)},
	{Name: "crash points, docker", Parallel: 6, InTurn: true, Engines: docker, Default: 1, Pairs: pairs(0, 4, 100)},
	{Name: "crash points, qemu", Parallel: 4, InTurn: true, Engines: qemu, Default: 1, Pairs: pairs(0, 4, 100)},
	{Name: "crash points, container", Parallel: 4, InTurn: true, Engines: images, Default: 1, Pairs: pairs(0, 2, 30)},
	{Name: "crash points, two drivers", Parallel: 6, InTurn: true, Engines: both, Default: 2, Pairs: pairs(0, 0, 100)},
	{Name: "answers of the API", Parallel: 16, Engines: fakes, Faults: crash.Answers, Workloads: running, Short: 2, Default: 3},
	{Name: "calls of drivers, fake", Parallel: 24, Engines: fakes, Faults: crash.Calls, Workloads: withoutFailures, Short: 2, Default: 2},
	{
		Name: "engine, fake", Parallel: 24, Engines: fake, Workloads: bound, Short: 3, Default: 4,
		Faults: crash.DisturbCalls(outside.Removed, outside.Killed, outside.Stopped, outside.Paused, outside.Resized, outside.Away, outside.Exchanged, outside.Restored),
	},
	{Name: "two leaders, fake", Parallel: 24, Engines: fakes, Faults: crash.DisturbCalls(outside.Superseded), Workloads: withoutFailures, Short: 1, Default: 2},
	{Name: "two leaders, qemu", Parallel: 6, InTurn: true, Engines: qemu, Faults: crash.DisturbCalls(outside.Superseded), Workloads: withoutFailures, Default: 2},
	{Name: "calls of drivers, docker", Parallel: 8, InTurn: true, Engines: docker, Faults: crash.Calls, Workloads: withoutFailures, Default: 2},
	{Name: "calls of drivers, qemu", Parallel: 6, InTurn: true, Engines: qemu, Faults: crash.Calls, Workloads: withoutFailures, Default: 1},
	{
		Name: "engine, docker", Parallel: 6, InTurn: true, Engines: docker, Workloads: bound, Default: 2,
		Faults: crash.DisturbCalls(outside.Removed, outside.Killed, outside.Stopped, outside.Paused, outside.Resized, outside.Renamed, outside.Away, outside.Exchanged, outside.Copied),
	},
	{
		Name: "clock of Docker", Parallel: 1, Engines: []lab.Engine{lab.NewSteppingDocker()}, Faults: crash.DisturbCalls(outside.ClockBehind),
		Only: "restart/docker/restart/docker.Ensure vm-1#1/held, clock behind",
	},
	{
		Name: "engine, qemu", Parallel: 4, InTurn: true, Engines: qemu, Workloads: bound, Default: 2,
		Faults: crash.DisturbCalls(outside.Removed, outside.Killed, outside.Suspended, outside.Away, outside.Exchanged, outside.Restored),
	},
	{
		Name: "supervisor, qemu", Parallel: 6, InTurn: true, Engines: qemu, Workloads: withoutFailures, Default: 3,
		Faults: crash.DisturbCallsAndWrites(outside.SupervisorKilled, outside.SupervisorSuspended, outside.SupervisorHalted, outside.BothKilled),
	},
	{Name: "calls of drivers, container", Parallel: 4, InTurn: true, Engines: images[:1], Faults: writesOfFiles, Workloads: files},
	{
		Name: "supervisor, container", Parallel: 4, InTurn: true, Engines: images[:1], Workloads: files,
		Faults: crash.DisturbCallsAndWrites(outside.SupervisorKilled, outside.SupervisorSuspended, outside.SupervisorHalted),
	},
	{Name: "crash points, pod", Parallel: 6, InTurn: true, Engines: pods, Workloads: short, Default: 1},
	{
		Name: "two leaders, pod", Parallel: 6, InTurn: true, Engines: pods, Workloads: short, Default: 1,
		Faults: crash.DisturbCalls(outside.Superseded),
	},
	{
		Name: "machine, pod", Parallel: 6, InTurn: true, Engines: pods, Workloads: short, Default: 2,
		Faults: crash.DisturbCalls(outside.ContainerKilled, outside.Killed, outside.SupervisorSuspended, outside.Suspended, outside.SupervisorHalted, outside.Halted),
	},
}

// ofAPI are the kinds that disturb what controllers see of the API.
var ofAPI = []crash.Settings{
	{Name: "watch events", Parallel: 16, Engines: fake, Source: apifaults.WatchEvents, Workloads: watched, Short: 2, Default: 2},
	{Name: "old lists", Parallel: 1, Engines: fake, Source: apifaults.OldLists, Short: 1, Only: oldList},
	{Name: "clock of the API", Parallel: 16, Engines: fake, Source: apifaults.ClockSteps, Workloads: watched, Short: 1, Default: 2},
}

// oldList is the case in which a starting controller gets a list from before a VirtualMachine's deletion was requested.
const oldList = "delete/fake/restart/DELETED virtualmachines vm-1#1/list of the begin"

// withoutFailures are the workloads in which nothing but the injected fault fails.
var withoutFailures = []string{"create", "power", "resize", "restart", "replace", "delete", "create-delete", "recreate", "retain", "namespace"}

// files is the workload whose files change.
var files = []string{"files"}

// writesOfFiles returns the faults of a call that writes files. The other calls of that workload depend on the time.
func writesOfFiles(point string) []string {
	if !strings.HasPrefix(point, "qemu.WriteFiles ") {
		return nil
	}
	return crash.Calls(point)
}

// short are the workloads for driver pod, whose machines take longest.
var short = []string{"create", "power", "restart", "delete"}

// bound are the workloads that begin with a VirtualMachine that is bound to an engine and has a server.
var bound = []string{"power", "resize", "restart", "replace", "delete", "recreate", "retain", "namespace"}

// watched are the workloads for the faults of ofAPI.
var watched = []string{
	"create", "power", "resize", "restart", "replace", "delete", "create-delete", "recreate", "retain", "namespace", "delete-outage", "image",
}

// running are the workloads in which a controller has started before the fault. A controller that gets
// a bad answer while it starts just ends, and is started again.
var running = []string{"power", "resize", "restart", "replace", "delete", "recreate", "retain"}
