// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package bench is what the benchmarks below this folder share: statistics,
// tables, JSON, and the processes that they measure.
//
// Start with a benchmark's main.go, such as failover/main.go. stats.go sums up
// times, print.go shows them, log.go stamps watch events as they come,
// controllers.go starts replicas of drover-controller, vms.go makes many VMs,
// and quiet.go waits until nothing is left to do.
package bench
