// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package leader decides which replica acts: the Lease, the epoch, the guard.
//
// Start with Lock in lock.go. It is a resourcelock.Interface for client-go's
// elector, which it drives from below: for a replica that does not lead, Get
// returns only when the Lease is to be had (wait.go), so a release is taken at
// once and an expiry when it falls due. Watch (watch.go) follows the Lease on
// leader and standby alike. sight.go is what a replica knows of the Lease, as a
// plain value.
//
// Guard in guard.go is the right to act: a call that changes something on an
// engine starts only while the Lease is certain to be held, and ends when that
// certainty does. It knows the epoch, by which engines tell a leader from its
// predecessors.
//
// All spans are measured on a clock that goes on while the host is suspended
// (BootTime).
package leader
