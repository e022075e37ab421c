// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package deployment runs Drover as users deploy it in a cluster of several nodes: the
// chart of this repository, the image of `make image`, and as engine a Docker on the host
// that listens with TLS. Faults hit pods, nodes and the API server while users are busy.
//
// Start with Start in deployment.go, which installs all of it. engine.go runs the engine,
// recorder.go records what happens to its containers, and oracle.go makes evidence of that
// for package rules. faults.go injects faults, handover.go measures how long they
// leave the VMs without a leader. guests.go has VMs that installations and removals of Drover
// leave alone. All tests that start a cluster are in the full tier.
package deployment
