// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package powercut explores what a power cut leaves of a folder that a program writes to.
// strace records every change of the folder that a workload makes, so none is missed. Then
// each prefix of the record is replayed with what had not reached the disk left out, torn or
// out of order, and a driver is opened on the result.
//
// Start with Kind in kind.go. record.go runs a workload and reads what strace printed
// (strace.go). disk.go is the model of a file system: what it has after a power cut. states.go
// chooses which states to look at, and check.go opens the driver on them. workload.go has the steps that
// the workloads of qemu.go and fake.go share.
//
// The model promises only what POSIX does. Data of a file is on disk after an fsync of the
// file, and names in a folder after an fsync of the folder; a rename is atomic. Before that,
// any part of it may be there. This is the model of ALICE (Pillai et al., OSDI 2014).
package powercut
