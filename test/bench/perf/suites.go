// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package perf measures the speed and the cost of Drover, and compares them with floors:
// programs that do only what every controller must do, on the same host in the same run.
//
// Start with Suites: each has a separate file. The floors are in floors.go and docker.go.
package perf

import (
	"cloudnative.tw/drover/test/bench"
	"cloudnative.tw/drover/test/framework"
)

// Suites in the order in which they run.
var Suites = []bench.Suite{
	{Name: "apiserver", Turns: 5, VMs: []int{1000}, Measure: bench.In(noController, measureAPIServer)},
	{Name: "fake", Turns: 10, VMs: []int{1, 100, 1000}, Measure: bench.In(noController, measureFake(floorNoop))},
	{Name: "bare", Turns: 10, VMs: []int{1000}, Measure: bench.In(noController, measureFake(floorNoop, floorBare))},
	{Name: "idle", Turns: 40, VMs: []int{100, 1000}, Measure: bench.In(noController, measureIdle)},
	{Name: "restart", Turns: 5, VMs: []int{0, 1000}, Measure: measureRestart},
	{Name: "writes", Turns: 1, VMs: []int{100}, Measure: bench.In(noController, withEngine(measureWrites))},
	{Name: "slow", Turns: 5, VMs: []int{300}, Measure: bench.In(noController, withEngine(measureSlowEngine))},
	{Name: "docker", Turns: 5, VMs: []int{100}, Measure: bench.In(noController, withEngine(measureDocker))},
	{Name: "up", Turns: 5, Measure: measureUp},
	{Name: "burst", Turns: 1, VMs: []int{10000}, Measure: bench.In(framework.ClusterOptions{WithController: true, Args: []string{"--vm-driver=fake"}}, measureBurst)},
	{Name: "cli", Turns: 30, VMs: []int{1000}, Measure: bench.In(framework.ClusterOptions{WithController: true, Args: []string{
		"--vm-driver=fake", "--usage-period=1s", "--metrics-bind-address=0", "--health-probe-bind-address=0",
	}}, measureCLI)},
}

// noController is for an API server without a controller.
var noController framework.ClusterOptions

// Floors are the floors by their names.
var Floors = map[string]bench.Floor{
	floorNoop:  runNoopController(activeStatus),
	floorBare:  runNoopController(bareStatus),
	floorCache: runCacheFloor,
}

const (
	floorNoop  = "noop"
	floorBare  = "bare-noop"
	floorCache = "cache"
)
