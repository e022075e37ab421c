// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package schedules explores schedules of Drover's parts in one process, under
// testing/synctest: two or three replicas, each with a manager of controller-runtime
// (without servers), its cache, Drover's queue, reconcilers, inventory, Lock, guard and
// fence; an API server in memory, and the fake driver's engine in memory.
//
// Start with Run in run_test.go, then step in gate_test.go.
//
// # One seed, one trace
//
// The order in which the runtime runs goroutines is not reproducible. Therefore whatever
// crosses a boundary waits at a gate (gate_test.go): each request to the API and each call to
// the engine, before it takes effect and before its answer arrives; each event of a watch
// and of an engine; each request on its way into a queue and from there to a worker; each
// timer of Drover's clock. The scheduler waits until all goroutines are durably blocked,
// sorts what waits by a stable name, and lets one operation go, which a seed chooses.
// Then it waits again. Between two steps goroutines run in any order, which must not show:
//
//   - A select never has two ready cases. Messages go through channels without a buffer, and
//     only into a goroutine that is waiting there (clock_test.go, environment_test.go).
//   - Names tell operations apart by their purpose, not by when they came. Two that
//     nothing tells apart go together.
//   - client-go draws jitter from math/rand, which is seeded again wherever the runtime's
//     order may have influenced how many numbers were drawn. This needs the setting
//     randseednop=0, as schedules_test.go has it.
//   - Deadlines that client-go derives from one another do not coincide (settings).
//   - Time passes only when the scheduler sleeps.
//
// # Faults
//
// The seed also decides what becomes of each call (fate in gate_test.go) and which faults
// happen (faults_test.go): a call never arrives, or takes effect after its caller has given up
// or was killed; its answer is late, lost or an error; processes are killed, stopped,
// halted with and without their clocks, cut off; engine and API are out of reach; watches
// end, expire, lag; caches are filled from the past.
//
// # Rules
//
// Users act meanwhile (users_test.go). A judge (judge_test.go) knows what they requested, sees each
// change of the API and of the engine when it takes effect, and compares with the rules,
// during a schedule and after the faults have stopped.
//
// TestSeededBugs puts the bugs of package bugs into Drover, and checks which rule finds each.
package schedules
