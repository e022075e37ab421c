// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package testenv is the environment of tests of all parts of Drover together: a real API
// server, a real Docker engine, the fake driver with a folder, and the controller, in this
// process or in a separate one.
//
// Start with Environment in environment.go. controllers.go runs controllers, vms.go
// creates VirtualMachines and waits for their states; docker.go, fake.go and
// machines.go inspect the engines without Drover, and access.go makes users of the API
// server.
package testenv
