// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package leader implements leader election: the Lease, the epoch and the guard.
//
// Start with Lock in lock.go, a resourcelock.Interface for client-go's elector. For a replica that does
// not lead, Lock.Get returns only when the Lease is available (view.go). A released Lease is therefore
// acquired at once, and an expired Lease when its term ends. Lock.Watch (watch.go) follows the Lease on
// the leader and on standbys. observed.go has the state of the Lease as a replica knows it, a plain
// value, and leadership.go knows whether this process leads.
//
// Guard in guard.go is the right to act. A call that changes something on an engine starts only while
// this process certainly holds the Lease, and is cancelled when this is no longer certain. The guard has
// the epoch, by which engines distinguish a leader from its predecessors.
//
// All durations are measured on a clock that advances while the host is suspended
// (BootTime).
package leader
