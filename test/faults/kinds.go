// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package faults explores what faults do to Drover: it injects them one by one, and
// compares what comes of them with what must hold.
//
// Start with kinds, the table of the kinds of fault; make faults prints what they explored.
// Package lab has what they share, and crash is the first of them. docs/faults.md lists what
// was found.
package faults

import (
	"cloudnative.tw/drover/test/faults/apifaults"
	"cloudnative.tw/drover/test/faults/crash"
	"cloudnative.tw/drover/test/faults/guestwrites"
	"cloudnative.tw/drover/test/faults/lab"
	"cloudnative.tw/drover/test/faults/outside"
	"cloudnative.tw/drover/test/faults/powercut"
	"cloudnative.tw/drover/test/faults/soak"
)

// kinds are the kinds of fault, in the order in which they are explored.
var kinds = []lab.Kind{
	crash.Kind(crash.Settings{
		Name: "crash points, fake", Parallel: 16, Engines: []lab.Engine{lab.Fake{}, lab.Fake{Instant: true}},
		Bounds: map[lab.Size]crash.Bounds{
			lab.SizeShort: {Cases: 2, Pairs: 2}, lab.SizeDefault: {Cases: 3, Pairs: 10}, lab.SizeFull: {Pairs: 1000},
		},
	}),
	crash.Kind(crash.Settings{
		Name: "crash points, docker", Parallel: 6, InTurn: true, Engines: []lab.Engine{lab.NewDocker()},
		Bounds: map[lab.Size]crash.Bounds{
			lab.SizeDefault: {Cases: 1, Pairs: 4}, lab.SizeFull: {Pairs: 100},
		},
	}),
	crash.Kind(crash.Settings{
		Name: "crash points, qemu", Parallel: 4, InTurn: true, Engines: []lab.Engine{lab.NewQEMU()},
		Bounds: map[lab.Size]crash.Bounds{
			lab.SizeDefault: {Cases: 1, Pairs: 4}, lab.SizeFull: {Pairs: 100},
		},
	}),
	crash.Kind(crash.Settings{
		Name: "crash points, two drivers", Parallel: 6, InTurn: true, Engines: []lab.Engine{
			crash.Pair{Engine: lab.Fake{}, Second: lab.NewDocker()}, crash.Pair{Engine: lab.NewDocker(), Second: lab.NewQEMU()},
		},
		Bounds: map[lab.Size]crash.Bounds{
			lab.SizeDefault: {Cases: 2}, lab.SizeFull: {Pairs: 100},
		},
	}),
	crash.Kind(crash.Settings{
		Name: "answers of the API", Parallel: 16, Engines: []lab.Engine{lab.Fake{}, lab.Fake{Instant: true}}, Faults: crash.Answers,
		Bounds: map[lab.Size]crash.Bounds{
			lab.SizeShort: {Workloads: inShort, Cases: 2}, lab.SizeDefault: {Workloads: running, Cases: 3}, lab.SizeFull: {Workloads: running},
		},
	}),
	crash.Kind(crash.Settings{
		Name: "calls of drivers, fake", Parallel: 24, Engines: []lab.Engine{lab.Fake{}, lab.Fake{Instant: true}}, Faults: crash.Calls,
		Bounds: map[lab.Size]crash.Bounds{
			lab.SizeShort: {Workloads: inShort, Cases: 2}, lab.SizeDefault: {Workloads: alone, Cases: 2}, lab.SizeFull: {Workloads: alone},
		},
	}),
	crash.Kind(crash.Settings{
		Name: "engine, fake", Parallel: 24, Engines: []lab.Engine{lab.Fake{}},
		Faults: crash.Outside(outside.Removed, outside.Killed, outside.Stopped, outside.Paused, outside.Resized, outside.Away, outside.Exchanged, outside.Restored),
		Bounds: map[lab.Size]crash.Bounds{
			lab.SizeShort: {Workloads: inShort, Cases: 3}, lab.SizeDefault: {Workloads: bound, Cases: 4}, lab.SizeFull: {Workloads: bound},
		},
	}),
	crash.Kind(crash.Settings{
		Name: "two leaders, fake", Parallel: 24, Engines: []lab.Engine{lab.Fake{}, lab.Fake{Instant: true}},
		Faults: crash.Outside(outside.Superseded),
		Bounds: map[lab.Size]crash.Bounds{
			lab.SizeShort: {Workloads: inShort, Cases: 1}, lab.SizeDefault: {Workloads: alone, Cases: 2}, lab.SizeFull: {Workloads: alone},
		},
	}),
	crash.Kind(crash.Settings{
		Name: "two leaders, qemu", Parallel: 6, InTurn: true, Engines: []lab.Engine{lab.NewQEMU()},
		Faults: crash.Outside(outside.Superseded),
		Bounds: map[lab.Size]crash.Bounds{
			lab.SizeDefault: {Workloads: alone, Cases: 2}, lab.SizeFull: {Workloads: alone, EachPoint: true}, lab.SizeExhaustive: {Workloads: alone},
		},
	}),
	crash.Kind(crash.Settings{
		Name: "calls of drivers, docker", Parallel: 8, InTurn: true, Engines: []lab.Engine{lab.NewDocker()}, Faults: crash.Calls,
		Bounds: map[lab.Size]crash.Bounds{
			lab.SizeDefault: {Workloads: alone, Cases: 2}, lab.SizeFull: {Workloads: alone, EachPoint: true}, lab.SizeExhaustive: {Workloads: alone},
		},
	}),
	crash.Kind(crash.Settings{
		Name: "calls of drivers, qemu", Parallel: 6, InTurn: true, Engines: []lab.Engine{lab.NewQEMU()}, Faults: crash.Calls,
		Bounds: map[lab.Size]crash.Bounds{
			lab.SizeDefault: {Workloads: alone, Cases: 1}, lab.SizeFull: {Workloads: alone, EachPoint: true}, lab.SizeExhaustive: {Workloads: alone},
		},
	}),
	crash.Kind(crash.Settings{
		Name: "engine, docker", Parallel: 6, InTurn: true, Engines: []lab.Engine{lab.NewDocker()},
		Faults: crash.Outside(outside.Removed, outside.Killed, outside.Stopped, outside.Paused, outside.Resized, outside.Renamed, outside.Away, outside.Exchanged, outside.Copied),
		Bounds: map[lab.Size]crash.Bounds{
			lab.SizeDefault: {Workloads: bound, Cases: 2}, lab.SizeFull: {Workloads: bound, EachPoint: true}, lab.SizeExhaustive: {Workloads: bound},
		},
	}),
	crash.Kind(crash.Settings{
		Name: "clock of Docker", Parallel: 6, InTurn: true, Engines: []lab.Engine{lab.NewSteppingDocker()},
		Faults: crash.Outside(outside.ClockAhead, outside.ClockBehind),
		Bounds: map[lab.Size]crash.Bounds{
			lab.SizeDefault: {Workloads: alone, Cases: 2}, lab.SizeFull: {Workloads: alone, EachPoint: true}, lab.SizeExhaustive: {Workloads: alone},
		},
	}),
	crash.Kind(crash.Settings{
		Name: "engine, qemu", Parallel: 4, InTurn: true, Engines: []lab.Engine{lab.NewQEMU()},
		Faults: crash.Outside(outside.Removed, outside.Killed, outside.Suspended, outside.Away, outside.Exchanged, outside.Restored),
		Bounds: map[lab.Size]crash.Bounds{
			lab.SizeDefault: {Workloads: bound, Cases: 2}, lab.SizeFull: {Workloads: bound, EachPoint: true}, lab.SizeExhaustive: {Workloads: bound},
		},
	}),
	crash.RestKind("rest", []lab.Engine{lab.Fake{}, lab.NewDocker(), lab.NewQEMU()}),
	apifaults.Kind(apifaults.Settings{
		Name: "watch events", Parallel: 16, Engines: []lab.Engine{lab.Fake{}}, Faults: apifaults.WatchEvents,
		Bounds: map[lab.Size]crash.Bounds{
			lab.SizeShort: {Workloads: inShort, Cases: 2}, lab.SizeDefault: {Workloads: lively, Cases: 2}, lab.SizeFull: {Workloads: lively},
		},
	}),
	apifaults.Kind(apifaults.Settings{
		Name: "old lists", Parallel: 16, Engines: []lab.Engine{lab.Fake{}}, Faults: apifaults.OldLists,
		Bounds: map[lab.Size]crash.Bounds{
			lab.SizeShort: {Workloads: inShort, Cases: 1}, lab.SizeDefault: {Workloads: lively, Cases: 2}, lab.SizeFull: {Workloads: lively},
		},
	}),
	apifaults.Kind(apifaults.Settings{
		Name: "clock of the API", Parallel: 16, Engines: []lab.Engine{lab.Fake{}}, Faults: apifaults.ClockSteps,
		Bounds: map[lab.Size]crash.Bounds{
			lab.SizeShort: {Workloads: inShort, Cases: 1}, lab.SizeDefault: {Workloads: lively, Cases: 2}, lab.SizeFull: {Workloads: lively},
		},
	}),
	apifaults.SecondServerKind(apifaults.Settings{
		Name: "second API server", Parallel: 16, Engines: []lab.Engine{lab.Fake{}},
		Bounds: map[lab.Size]crash.Bounds{
			lab.SizeDefault: {Workloads: lively, Cases: 2}, lab.SizeFull: {Workloads: lively},
		},
	}),
	apifaults.EtcdKind("etcd"),
	soak.Kind(soak.Settings{
		Engine: lab.Fake{}, Parallel: 64, Round: 200,
		Lifecycles: map[lab.Size]int{lab.SizeDefault: 100, lab.SizeFull: 1000, lab.SizeSoak: 8500},
	}),
	soak.Kind(soak.Settings{
		Engine: lab.NewDocker(), Parallel: 8, Round: 40, Lifecycles: map[lab.Size]int{lab.SizeSoak: 1000},
	}),
	soak.Kind(soak.Settings{
		Engine: lab.NewQEMU(), Parallel: 6, Round: 16, Lifecycles: map[lab.Size]int{lab.SizeSoak: 400},
	}),
	powercut.Kind("fake"),
	powercut.Kind("qemu"),
	guestwrites.Kind(),
}

// inShort are the workloads of most kinds in the gate, where crash points has all.
var inShort = []string{"restart", "delete"}

// alone are those in which only the calls fail.
var alone = []string{"create", "power", "resize", "restart", "replace", "delete", "create-delete", "recreate", "retain", "namespace"}

// bound are those of a VirtualMachine that has a server, and the same to the end.
var bound = []string{"power", "resize", "restart", "replace", "delete", "recreate", "retain", "namespace"}

// lively are the workloads whose faults are those of what controllers see of the API.
var lively = []string{
	"create", "power", "resize", "restart", "replace", "delete", "create-delete", "recreate", "retain", "namespace", "delete-outage", "image",
}

// running are the workloads in which a controller runs before there are faults. One that gets
// a bad answer at its start ends, and is started again by others.
var running = []string{"power", "resize", "restart", "replace", "delete", "recreate", "retain"}
