// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package failover shows that of several controllers one acts at a time,
// whatever happens to them: replicas in processes of their own, each with its
// own way to a real API server, share a fake engine and a journal, while users
// keep them busy and faults strike.
//
// Start with Judge in oracle.go, which says from the journal what was done that
// must not be; figures.go counts. world.go puts a world together, replica.go
// keeps a replica running, faults.go strikes, users.go has VirtualMachines
// created, changed and deleted. machines.go judges worlds whose servers are QEMU
// machines, by the journal and by what the recorder saw of their processes.
package failover
