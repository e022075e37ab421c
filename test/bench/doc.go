// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package bench has the code that the benchmarks below this folder share:
// statistics, tables, JSON, and the processes that they measure.
//
// Start with a benchmark's main.go, such as failover/main.go. stats.go summarises
// times, print.go prints them, log.go timestamps watch events on arrival,
// controllers.go starts replicas of drover-controller, vms.go creates many VMs, and
// quiet.go waits until no work is left.
package bench
