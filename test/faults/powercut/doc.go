// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package powercut explores the effects of power cuts on a folder that a program writes to.
// strace records every change that a workload makes in the folder. Then each prefix of the
// record is replayed, with changes that were not durable dropped, torn or out of order, and a
// driver is opened on the result.
//
// Start with Kind in kind.go. record.go runs a workload and turns the output of strace
// (strace.go) into changes. disk.go is the model of a file system. states.go chooses the states
// to check, and check.go opens the driver on them. workload.go has the steps that the workloads
// of qemu.go and fake.go share.
//
// The model promises only what POSIX promises. Data of a file is on disk after an fsync of the
// file, and names in a folder after an fsync of the folder; a rename is atomic. Before the fsync
// any part may be on disk. This is the model of ALICE (Pillai et al., OSDI 2014).
package powercut
