// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package faults explores what faults do to Drover: it injects them one by one, and
// compares their results with the rules.
//
// Start with kinds, the table of the kinds of fault; make faults prints what they explored.
// Package lab has their common parts, and crash is the first of them. docs/faults.md lists what
// was found.
package faults

import (
	"slices"

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

// The engines of kinds: the fake one, also without any delay, those of this host, and pods.
var (
	fake   = []lab.Engine{lab.Fake{}}
	fakes  = []lab.Engine{lab.Fake{}, lab.Fake{Instant: true}}
	docker = []lab.Engine{lab.NewDocker()}
	qemu   = []lab.Engine{lab.NewQEMU()}
	boxes  = []lab.Engine{lab.NewContainers(false), lab.NewContainers(true)}
	pods   = []lab.Engine{lab.NewPod()}
	both   = []lab.Engine{crash.Pair{Engine: lab.Fake{}, Second: lab.NewDocker()}, crash.Pair{Engine: lab.NewDocker(), Second: lab.NewQEMU()}}
)

// pairs are how many cases of two crashes are run.
func pairs(short, normal, full int) map[lab.Size]int {
	return map[lab.Size]int{lab.SizeShort: short, lab.SizeDefault: normal, lab.SizeFull: full}
}

// atPoints have faults at the points of a controller.
var atPoints = []crash.Settings{
	{Name: "crash points, fake", Parallel: 16, Engines: fakes, Short: 2, Default: 3, Pairs: pairs(2, 10, 1000)},
	{Name: "crash points, docker", Parallel: 6, InTurn: true, Engines: docker, Default: 1, Pairs: pairs(0, 4, 100)},
	{Name: "crash points, qemu", Parallel: 4, InTurn: true, Engines: qemu, Default: 1, Pairs: pairs(0, 4, 100)},
	{Name: "crash points, container", Parallel: 4, InTurn: true, Engines: boxes, Default: 1, Pairs: pairs(0, 2, 30)},
	{Name: "crash points, two drivers", Parallel: 6, InTurn: true, Engines: both, Default: 2, Pairs: pairs(0, 0, 100)},
	{Name: "answers of the API", Parallel: 16, Engines: fakes, Faults: crash.Answers, Workloads: running, Short: 2, Default: 3},
	{Name: "calls of drivers, fake", Parallel: 24, Engines: fakes, Faults: crash.Calls, Workloads: alone, Short: 2, Default: 2},
	{
		Name: "engine, fake", Parallel: 24, Engines: fake, Workloads: bound, Short: 3, Default: 4,
		Faults: crash.Outside(outside.Removed, outside.Killed, outside.Stopped, outside.Paused, outside.Resized, outside.Away, outside.Exchanged, outside.Restored),
	},
	{Name: "two leaders, fake", Parallel: 24, Engines: fakes, Faults: crash.Outside(outside.Superseded), Workloads: alone, Short: 1, Default: 2},
	{Name: "two leaders, qemu", Parallel: 6, InTurn: true, Engines: qemu, Faults: crash.Outside(outside.Superseded), Workloads: alone, Default: 2},
	{Name: "calls of drivers, docker", Parallel: 8, InTurn: true, Engines: docker, Faults: crash.Calls, Workloads: alone, Default: 2},
	{Name: "calls of drivers, qemu", Parallel: 6, InTurn: true, Engines: qemu, Faults: crash.Calls, Workloads: alone, Default: 1},
	{
		Name: "engine, docker", Parallel: 6, InTurn: true, Engines: docker, Workloads: bound, Default: 2,
		Faults: crash.Outside(outside.Removed, outside.Killed, outside.Stopped, outside.Paused, outside.Resized, outside.Renamed, outside.Away, outside.Exchanged, outside.Copied),
	},
	{
		Name: "clock of Docker", Parallel: 1, Engines: []lab.Engine{lab.NewSteppingDocker()}, Faults: crash.Outside(outside.ClockBehind),
		Only: "restart/docker/restart/docker.Ensure vm-1#1/held, clock behind",
	},
	{
		Name: "engine, qemu", Parallel: 4, InTurn: true, Engines: qemu, Workloads: bound, Default: 2,
		Faults: crash.Outside(outside.Removed, outside.Killed, outside.Suspended, outside.Away, outside.Exchanged, outside.Restored),
	},
	{
		Name: "supervisor, qemu", Parallel: 6, InTurn: true, Engines: qemu, Workloads: alone, Default: 3,
		Faults: crash.OutsideAnywhere(outside.SupervisorKilled, outside.SupervisorSuspended, outside.SupervisorHalted, outside.BothKilled),
	},
	{Name: "crash points, pod", Parallel: 6, InTurn: true, Engines: pods, Workloads: short, Default: 1},
	{
		Name: "two leaders, pod", Parallel: 6, InTurn: true, Engines: pods, Workloads: short, Default: 1,
		Faults: crash.Outside(outside.Superseded),
	},
	{
		Name: "machine, pod", Parallel: 6, InTurn: true, Engines: pods, Workloads: short, Default: 2,
		Faults: crash.Outside(outside.ContainerKilled, outside.Killed, outside.SupervisorSuspended, outside.Suspended, outside.SupervisorHalted, outside.Halted),
	},
}

// ofAPI have faults in the controllers' view of the API.
var ofAPI = []crash.Settings{
	{Name: "watch events", Parallel: 16, Engines: fake, Source: apifaults.WatchEvents, Workloads: lively, Short: 2, Default: 2},
	{Name: "old lists", Parallel: 1, Engines: fake, Source: apifaults.OldLists, Short: 1, Only: oldList},
	{Name: "clock of the API", Parallel: 16, Engines: fake, Source: apifaults.ClockSteps, Workloads: lively, Short: 1, Default: 2},
}

// oldList is the case of old lists in which a controller that starts does not see that a VirtualMachine is deleted.
const oldList = "delete/fake/restart/DELETED virtualmachines vm-1#1/list of the begin"

// alone are the workloads in which only the calls fail.
var alone = []string{"create", "power", "resize", "restart", "replace", "delete", "create-delete", "recreate", "retain", "namespace"}

// short has the workloads of driver pod, whose machines take longest: all that can be done to one.
var short = []string{"create", "power", "restart", "delete"}

// bound has the workloads of a VirtualMachine that has a server, and the same to the end.
var bound = []string{"power", "resize", "restart", "replace", "delete", "recreate", "retain", "namespace"}

// lively are the workloads with the faults of ofAPI.
var lively = []string{
	"create", "power", "resize", "restart", "replace", "delete", "create-delete", "recreate", "retain", "namespace", "delete-outage", "image",
}

// running are the workloads in which a controller runs before there are faults. One that gets
// a bad answer at its start ends, and is started again by others.
var running = []string{"power", "resize", "restart", "replace", "delete", "recreate", "retain"}
