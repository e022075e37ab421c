// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package failover tests that only one of several controllers acts at a time,
// whatever the faults. Replicas run in separate processes, each with a connection
// to a real API server. They share a fake engine and a journal, while users send
// requests and faults are injected.
//
// Start with runWithFaults in environment.go, whose evidence package rules judges and figures.go
// summarizes. faults.go injects faults. Package fleet keeps the replicas running, and package
// users creates, changes and deletes VirtualMachines. If servers are QEMU machines, a recorder
// observes their processes in addition to the journal.
package failover
