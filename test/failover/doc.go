// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package failover tests that of several controllers only one acts at a time,
// whatever happens to them. Replicas run in processes of their own, each with its
// own connection to a real API server. They share a fake engine and a journal, while
// users keep them busy and faults are injected.
//
// Start with Judge in oracle.go, which determines from the journal which rules were
// broken; figures.go summarizes. environment.go sets up an environment and faults.go injects
// faults. Package fleet keeps the replicas running, and package users creates, changes and
// deletes VirtualMachines. machines.go judges environments whose servers are QEMU machines, by
// the journal and by what the recorder saw of their processes.
package failover
