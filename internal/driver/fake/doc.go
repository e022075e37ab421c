// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package fake is a driver that simulates servers: booting, stopping, pausing and
// measuring only affect a record of each server.
//
// Start with Driver in driver.go. simulation.go has the behaviour of a server, as pure
// functions of its Record. The two stores hold the records: memorystore.go for tests,
// and dirstore.go for a folder that several processes share and that outlives them.
// watch.go reports changes of records and changes by time alone.
//
// # The folder
//
//	engine-id               the engine's identity, a UUID
//	<uid>.json              one server, a Record
//	retained/<uid>.<id>.json  a server that was released
//	locks/<uid>             held (flock) while a process changes the server
//	epochs/<cluster>/<n>    leaders that have acted: the highest n excludes the others
//	tmp/                    files that are being written
//
// A person may read the servers' files and edit, add and remove them:
//
//   - "state": "Stopped" with "exit": {"code": 1} is a crash; without exit it
//     is a stop by hand. "Paused" and "Running" pause and start.
//   - "load": 0.5 makes the server use half of its CPUs.
//   - "ignoreShutdown": true makes the guest ignore requests to stop.
//   - removing the file removes the server.
//   - a new file needs only the "clusterID" of the cluster that it should
//     belong to: {"clusterID": "...", "namespace": "default", "name": "x",
//     "state": "Running"}. Without it the server belongs to no cluster, and
//     none lists or changes it.
//
// A file that cannot be parsed is an error that names it. Lists fail until it is
// repaired, because a server that cannot be read must not pass for a server that
// is gone.
//
// Secrets are not stored: the record only has whether there were any, so a change
// from one text to another is not noticed.
//
// # The fence
//
// Tests judge by a journal (package journal) what leaders did. A build with the tag
// unfenced has neither fence nor guard, so that such a test can show that it would
// notice.
package fake
