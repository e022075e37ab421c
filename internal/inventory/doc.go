// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package inventory is the controller's cached view of an engine's servers: what an
// informer is for the API, an Inventory is for a driver.
//
// Start with Inventory and Observation in inventory.go, which has the calls to the driver.
// cache.go keeps the known servers, behind one lock, and loop.go keeps them current with the
// driver's Watch and List. usage.go turns counters into rates, fence.go handles an engine that refuses
// this process, and sweep.go finds and removes servers that no VirtualMachine owns.
package inventory
