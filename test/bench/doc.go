// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package bench has what the benchmarks below this folder share: the environment, the
// processes and the VMs that are measured, statistics, and the report.
//
// Start with a benchmark's main.go, such as qemu/main.go. environment.go has the API server,
// controllers.go the replicas of drover-controller and floors.go what they are compared with.
// vms.go creates many VMs, log.go timestamps watch events on arrival, and quiet.go waits until no
// work is left. report.go has the figures of a run, and stats.go summarises them.
package bench
