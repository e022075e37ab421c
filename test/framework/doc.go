// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package framework has the parts that tests of all packages share, without importing a
// package that they test: clusters, processes, VirtualMachines, engines and waits.
//
// Start with Environment in environment.go, an API server and its clients, which the
// environments of other packages embed. cluster.go runs the program drover for it as a
// child, virtual.go makes namespaces look like clusters, proxy.go disturbs connections, and
// process.go runs other programs. builder.go builds VirtualMachines and checks them.
// docker.go and qemu.go provide engines and guests, host.go has locks, folders and users of
// this host. Package testenv adds the controller, and package fleet several replicas of it.
package framework
