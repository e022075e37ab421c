// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package schedules explores the possible orders of events between Drover's parts, in one
// process under testing/synctest. It runs two or three replicas, each with a manager of
// controller-runtime (without servers), its cache, Drover's queue, reconcilers, inventory,
// Lock, guard and fence; an API server in memory, and the fake engine in memory.
//
// Start with Run in run_test.go, then step in gate_test.go.
//
// # One seed, one trace
//
// The order in which the runtime runs goroutines is not reproducible. Therefore all operations
// between parts wait at a gate (gate_test.go): each request to the API and each call to the
// engine, before it takes effect and before its answer arrives; each event of a watch and of
// an engine; each request on its way into a queue and from there to a worker; each timer of
// Drover's clock. The scheduler waits until all goroutines are durably blocked, sorts the
// waiting operations by stable names, and lets one of them continue, which the seed selects.
// Then it waits again. The order of goroutines between two steps must not have an effect:
//
//   - A select never has two ready cases. Messages are sent through unbuffered channels, and
//     only while a goroutine waits for them (clock_test.go, environment_test.go).
//   - The names of operations are different if their purposes are, and do not depend on the
//     order of arrival. Operations with the same name continue together.
//   - client-go takes jitter from math/rand, which is seeded again whenever the order of
//     goroutines may have influenced how many numbers were taken. This needs the setting
//     randseednop=0 in schedules_test.go.
//   - Deadlines that client-go derives from each other do not coincide (settings).
//   - Time passes only when the scheduler sleeps.
//
// # Faults
//
// The seed also determines the outcome of each call (fate in gate_test.go) and the faults
// (faults_test.go): a call never arrives, or takes effect after its caller has given up or was
// killed; its answer is late, lost or an error; processes are killed, stopped, halted with or
// without their clocks, or disconnected; engine and API are unreachable; watches end, expire or
// are late; caches are filled with old lists.
//
// # Rules
//
// At the same time users send requests (users_test.go). A judge (judge_test.go) knows these
// requests, sees each change of the API and of the engine when it takes effect, and checks the
// rules during a schedule and after the faults have stopped.
//
// TestSeededBugs puts the bugs of package bugs into Drover, and checks which rule finds each.
package schedules
