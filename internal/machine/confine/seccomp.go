// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package confine

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Offsets in struct seccomp_data of Linux.
const (
	callNumber = 0
	callArch   = 4
)

// lowerHalf returns the offset of the low 32 bits of an argument: amd64 and arm64 are
// little-endian.
func lowerHalf(argument uint32) uint32 { return 16 + 8*argument }

// deniedCalls are the system calls that QEMU does not need and that Landlock does not
// restrict. QEMU's own sandbox denies others. Those of io_uring are denied because what they
// do is not filtered.
var deniedCalls = slices.Concat(legacyCalls, []uintptr{
	unix.SYS_FCHMOD, unix.SYS_FCHMODAT, unix.SYS_FCHMODAT2, unix.SYS_FCHOWN, unix.SYS_FCHOWNAT, unix.SYS_UTIMENSAT,
	unix.SYS_SETXATTR, unix.SYS_LSETXATTR, unix.SYS_FSETXATTR, unix.SYS_SETXATTRAT,
	unix.SYS_REMOVEXATTR, unix.SYS_LREMOVEXATTR, unix.SYS_FREMOVEXATTR, unix.SYS_REMOVEXATTRAT,
	unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PIDFD_GETFD, unix.SYS_KCMP,
	unix.SYS_IO_URING_SETUP, unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD,
	unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_KEYCTL,
	unix.SYS_FILE_SETATTR, unix.SYS_PROCESS_MADVISE, unix.SYS_MOVE_PAGES, unix.SYS_MIGRATE_PAGES,
	unix.SYS_UNSHARE, unix.SYS_SETNS, unix.SYS_MOUNT, unix.SYS_FSOPEN, unix.SYS_OPEN_TREE, unix.SYS_SOCKETPAIR,
})

// newNamespaces are the flags of clone that make namespaces.
const newNamespaces = unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWCGROUP

var allowCall = bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW}

func failCall(err unix.Errno) bpf.Instruction {
	return bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(err)} //nolint:gosec // small
}

// makeFilter returns the program that the kernel runs for each system call.
func makeFilter() []bpf.Instruction {
	program := []bpf.Instruction{
		bpf.LoadAbsolute{Off: callArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: auditArch, SkipTrue: 1},
		failCall(unix.ENOSYS),
		bpf.LoadAbsolute{Off: callNumber, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpLessThan, Val: firstForeignCall, SkipTrue: 1},
		failCall(unix.ENOSYS),
	}
	program = append(program, filterProcesses...)
	program = append(program, filterSockets...)
	for _, call := range deniedCalls {
		program = append(program,
			bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(call), SkipTrue: 1}, //nolint:gosec // small
			failCall(unix.EPERM))
	}
	return append(program, allowCall)
}

// filterProcesses is the part of the filter about namespaces and about limits, which are those
// of the process itself: a limit of CPU time ends another.
var filterProcesses = []bpf.Instruction{
	bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_CLONE3, SkipTrue: 1},
	failCall(unix.ENOSYS), // its flags cannot be seen, and libraries use clone then
	bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_CLONE, SkipTrue: 4},
	bpf.LoadAbsolute{Off: lowerHalf(0), Size: 4},
	bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: newNamespaces, SkipFalse: 1},
	failCall(unix.EPERM),
	allowCall,
	bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_PRLIMIT64, SkipTrue: 4},
	bpf.LoadAbsolute{Off: lowerHalf(0), Size: 4},
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipTrue: 1},
	failCall(unix.EPERM),
	allowCall,
}

// filterSockets is the part of the filter about sockets. They are those of the internet alone,
// and only of protocols that Landlock knows or that need no connection: a socket of MPTCP may
// listen where one of TCP may not.
var filterSockets = []bpf.Instruction{
	bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_SOCKET, SkipTrue: 12},
	bpf.LoadAbsolute{Off: lowerHalf(0), Size: 4},
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.AF_INET, SkipTrue: 2},
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.AF_INET6, SkipTrue: 1},
	failCall(unix.EPERM),
	bpf.LoadAbsolute{Off: lowerHalf(2), Size: 4},
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipTrue: 4},
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.IPPROTO_TCP, SkipTrue: 3},
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.IPPROTO_UDP, SkipTrue: 2},
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.IPPROTO_ICMP, SkipTrue: 1},
	bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.IPPROTO_ICMPV6, SkipTrue: 1},
	allowCall,
	failCall(unix.EPERM),
}

// FiltersCalls reports whether system calls are filtered on this architecture.
func FiltersCalls() bool { return auditArch != 0 }

// filterCalls filters the system calls of this thread and of all that it starts.
func filterCalls() error { return installFilter(makeFilter(), 0) }

// installFilter has the kernel run a filter, besides those that it runs already.
func installFilter(instructions []bpf.Instruction, flags uintptr) error {
	if !FiltersCalls() {
		return nil
	}
	filter, err := bpf.Assemble(instructions)
	if err != nil {
		return fmt.Errorf("making a filter of system calls: %w", err)
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: (*unix.SockFilter)(unsafe.Pointer(&filter[0]))}                //nolint:gosec // of the same shape
	result, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&program))) //nolint:gosec // a system call
	if errno != 0 || result != 0 {                                                                                             // else it is the ID of a thread that could not get it
		return fmt.Errorf("filtering system calls: %w", cmp.Or(errno, unix.EBUSY))
	}
	return nil
}

// endedCalls are the system calls that DenyStarts denies, beside those whose arguments it looks at.
var endedCalls = []uintptr{
	unix.SYS_EXECVE, unix.SYS_EXECVEAT, unix.SYS_SOCKET, unix.SYS_CONNECT, unix.SYS_BIND, unix.SYS_LISTEN,
	unix.SYS_OPENAT, unix.SYS_OPENAT2, unix.SYS_KILL, unix.SYS_TKILL, unix.SYS_RT_SIGQUEUEINFO, unix.SYS_RT_TGSIGQUEUEINFO, unix.SYS_PIDFD_OPEN,
}

// DenyStarts takes from this program, for good, what only a program needs that starts others: it makes no
// process, executes no program, opens no file, makes and connects no socket, and sends a signal to no process but the
// one of a handle. Its user's other processes cannot read its memory either.
func DenyStarts(handle uint32) error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("becoming unreadable: %w", err)
	}
	program := []bpf.Instruction{bpf.LoadAbsolute{Off: callNumber, Size: 4}}
	program = append(program, allowIf(unix.SYS_CLONE, bpf.JumpBitsSet, unix.CLONE_THREAD)...)
	program = append(program, allowIf(unix.SYS_TGKILL, bpf.JumpEqual, uint32(os.Getpid()))...) //nolint:gosec // a process ID
	program = append(program, allowIf(unix.SYS_PIDFD_SEND_SIGNAL, bpf.JumpEqual, handle)...)
	program = append(program, denyCall(unix.SYS_CLONE3, unix.ENOSYS)...) // clone is used then
	for _, call := range slices.Concat(endedCalls, legacyStarts) {
		program = append(program, denyCall(call, unix.EPERM)...)
	}
	return installFilter(append(program, allowCall), unix.SECCOMP_FILTER_FLAG_TSYNC)
}

// allowIf allows a system call whose first argument passes a test, and denies it otherwise.
func allowIf(call uint32, test bpf.JumpTest, value uint32) []bpf.Instruction {
	return []bpf.Instruction{
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: call, SkipTrue: 4},
		bpf.LoadAbsolute{Off: lowerHalf(0), Size: 4},
		bpf.JumpIf{Cond: test, Val: value, SkipTrue: 1},
		failCall(unix.EPERM),
		allowCall,
	}
}

func denyCall(call uintptr, err unix.Errno) []bpf.Instruction {
	return []bpf.Instruction{bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(call), SkipTrue: 1}, failCall(err)} //nolint:gosec // small
}
