// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package confine

import (
	"math"

	"golang.org/x/sys/unix"
)

const (
	auditArch = unix.AUDIT_ARCH_AARCH64
	// firstForeignCall is more than any system call has.
	firstForeignCall = math.MaxUint32
)

// legacyCalls are the denied system calls that newer architectures lack.
var legacyCalls []uintptr

// legacyStarts are the system calls of startedCalls that newer architectures lack.
var legacyStarts []uintptr

// duplicatingCalls are the system calls that duplicate a descriptor to the number that is their second argument.
var duplicatingCalls = []uintptr{unix.SYS_DUP3}
