// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package failover tests that of several controllers only one acts at a time,
// whatever happens to them. Replicas run in separate processes, each with a
// connection to a real API server. They share a fake engine and a journal, while
// users keep them busy and faults are injected.
//
// Start with runWithFaults in environment.go, whose evidence package rules judges; figures.go
// summarizes it. faults.go injects faults. Package fleet keeps the replicas running, and package
// users creates, changes and deletes VirtualMachines. Where servers are QEMU machines, a recorder
// sees their processes beside the journal.
package failover
