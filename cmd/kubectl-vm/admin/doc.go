// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package admin has the verbs of kubectl vm for administrators: orphans and retained are about
// servers without a VM, and doctor checks the cluster.
//
// Start with doctor.go or orphans.go, which do not depend on each other.
package admin
