// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package deployment runs Drover as users deploy it in a cluster of several nodes: with the
// chart of this repository, the image of `make image`, and a Docker Engine on the host that
// listens with TLS. Pods, nodes and the API server have faults while users send requests.
//
// Start with Start in deployment.go, which installs everything. engine.go runs the engine,
// recorder.go records the events of its containers, and oracle.go turns them into evidence
// for package rules. faults.go injects faults, and handover.go measures how long there is no
// leader. guests.go checks that installing and removing Drover does not affect running VMs.
// All tests that start a cluster are in the full tier.
package deployment
