// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package confine

import "golang.org/x/sys/unix"

const (
	auditArch = unix.AUDIT_ARCH_X86_64
	// firstForeignCall begins the system calls of the x32 ABI, which has the same audit
	// architecture.
	firstForeignCall = 0x40000000
)

// legacyCalls are the denied system calls that newer architectures lack.
var legacyCalls = []uintptr{
	unix.SYS_CHMOD, unix.SYS_CHOWN, unix.SYS_LCHOWN, unix.SYS_UTIME, unix.SYS_UTIMES, unix.SYS_FUTIMESAT, unix.SYS_INOTIFY_INIT,
}

// legacyStarts are the system calls of startedCalls that newer architectures lack.
var legacyStarts = []uintptr{unix.SYS_FORK, unix.SYS_VFORK, unix.SYS_OPEN, unix.SYS_CREAT}

// duplicatingCalls are the system calls that duplicate a descriptor to the number that is their second argument.
var duplicatingCalls = []uintptr{unix.SYS_DUP2, unix.SYS_DUP3}
