// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package fake is a driver that simulates servers: each server is only a Record, which
// says for example whether the server is booting, paused or stopped.
//
// Start with Driver in driver.go. simulation.go has the behaviour of a server, as pure
// functions of its Record. The two stores hold the records: memorystore.go for tests,
// and dirstore.go for a folder that several processes share and that outlives them.
// watch.go reports edits of records and the end of boot and shutdown times.
//
// # The folder
//
//	engine-id               the engine's identity, a UUID
//	data-version            which versions of Drover can read the folder: see package format
//	<uid>.json              one server, a Record
//	retained/<uid>.<id>.json  a server that was released
//	locks/<uid>             held (flock) while a process changes the server
//	epochs/<cluster>/<n>    leaders that have acted: the highest n excludes the others
//	tmp/                    files that are being written
//
// A person may read the servers' files and edit, add and remove them:
//
//   - "state": "Stopped" with "exit": {"code": 1} is a crash; without "exit" it
//     is a manual stop. "Paused" pauses the server, and "Running" starts it.
//   - "load": 0.5 makes the server use half of its CPUs.
//   - "ignoreShutdown": true makes the guest ignore requests to stop.
//   - removing the file removes the server.
//   - a file without "mustUnderstand" may have known fields only, so that a mistyped one is reported.
//   - a new file needs only the "clusterID" of the cluster that it should
//     belong to: {"clusterID": "...", "namespace": "default", "name": "x",
//     "state": "Running"}. Without "clusterID" no cluster lists or changes the
//     server.
//
// If a file cannot be parsed, lists fail with an error that names the file until
// it is repaired, because a server that cannot be read must not look like a server
// that is gone.
//
// userData and networkData are not stored: the record only has whether they were
// set, so that a change from one text to another is not noticed.
//
// # The fence
//
// Tests check what leaders did by a journal (package journal). A build with the tag
// unfenced has neither the fence of package statedir nor the guard of package fencing:
// with it such a test proves that it would find a missing fence.
package fake
