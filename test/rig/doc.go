// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package rig is what tests of a whole Drover stand on: a real API server, a
// real Docker engine, the fake driver with a folder, and the controller, in this
// process or in one of its own.
//
// Start with World in world.go. controller.go runs controllers, vms.go creates
// VirtualMachines and waits for what becomes of them, servers.go and machines.go
// look at the engines behind Drover's back.
package rig
