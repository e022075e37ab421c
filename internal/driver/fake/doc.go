// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package fake is a driver that simulates servers: it boots, stops, pauses and
// measures nothing but a record of each server.
//
// Start with Driver in driver.go; simulate.go has what a server does, as pure
// functions of its Record, and the two stores keep the records: memory.go for
// tests, dir.go for a folder that several processes share and that outlives
// them.
//
// # The folder
//
//	engine-id               the engine's identity, a UUID
//	<uid>.json              one server, a Record
//	retained/<uid>.<id>.json  a server that was released
//	locks/<uid>             held (flock) while a process changes the server
//	epochs/<cluster>/<n>    leaders that have acted: the highest n shuts out the others
//	tmp/                    files that are being written
//
// A person may look at the servers and edit, add and remove them:
//
//   - "state": "Stopped" with "exit": {"code": 1} is a crash; without exit it
//     is a stop by hand. "Paused" and "Running" pause and start.
//   - "load": 0.5 makes the server use half of its CPUs.
//   - "ignoreShutdown": true makes the guest ignore requests to stop.
//   - removing the file removes the server.
//   - a new file needs only the "clusterID" of the cluster that it should
//     belong to: {"clusterID": "...", "namespace": "default", "name": "x",
//     "state": "Running"}. Without it the server is nobody's, and no cluster
//     lists or touches it.
//
// A file that cannot be understood is an error that names it. Lists fail until
// it is mended, because a server that cannot be read is not a server that is
// gone.
//
// Secrets are not kept: the record says only that there were some, so a change
// from one text to another is not noticed.
//
// # The fence
//
// Tests judge by a journal (package journal) what leaders did. A build with the tag
// unfenced has neither fence nor guard, so that such a test can show that it would
// notice.
package fake
