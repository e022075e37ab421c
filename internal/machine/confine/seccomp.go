// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package confine

import (
	"cmp"
	"fmt"
	"slices"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Offsets in Linux's struct seccomp_data.
const (
	callNumber = 0
	callArch   = 4
)

// lowerHalf returns the offset of the low 32 bits of an argument: amd64 and arm64 are
// little-endian.
func lowerHalf(argument uint32) uint32 { return 16 + 8*argument }

// deniedCalls are the system calls that QEMU does not need and that Landlock does not
// restrict. QEMU's sandbox denies others. The calls of io_uring are denied because its
// operations are not filtered.
var deniedCalls = slices.Concat(legacyCalls, []uintptr{
	unix.SYS_FCHMOD, unix.SYS_FCHMODAT, unix.SYS_FCHMODAT2, unix.SYS_FCHOWN, unix.SYS_FCHOWNAT, unix.SYS_UTIMENSAT,
	unix.SYS_SETXATTR, unix.SYS_LSETXATTR, unix.SYS_FSETXATTR, unix.SYS_SETXATTRAT,
	unix.SYS_REMOVEXATTR, unix.SYS_LREMOVEXATTR, unix.SYS_FREMOVEXATTR, unix.SYS_REMOVEXATTRAT,
	unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PIDFD_GETFD, unix.SYS_KCMP,
	unix.SYS_IO_URING_SETUP, unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD,
	unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_KEYCTL,
	unix.SYS_FILE_SETATTR, unix.SYS_PROCESS_MADVISE, unix.SYS_MOVE_PAGES, unix.SYS_MIGRATE_PAGES,
	unix.SYS_UNSHARE, unix.SYS_SETNS, unix.SYS_MOUNT, unix.SYS_FSOPEN, unix.SYS_FSPICK, unix.SYS_FSMOUNT, unix.SYS_OPEN_TREE, unix.SYS_OPEN_TREE_ATTR,
	unix.SYS_PIDFD_OPEN, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_MEMFD_SECRET, unix.SYS_MQ_OPEN, unix.SYS_FANOTIFY_INIT, unix.SYS_INOTIFY_INIT1,
	unix.SYS_CLONE3, unix.SYS_BIND,
})

// newNamespaces are the flags of clone(2) that make namespaces.
const newNamespaces = unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWCGROUP

var allowCall = bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW}

func failCall(err unix.Errno) bpf.Instruction {
	return bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(err)} //nolint:gosec // small
}

// makeFilter returns the BPF program that the kernel runs for each system call.
func makeFilter(r Rights) []bpf.Instruction {
	sockets := skipListen
	if r.MayConnect {
		sockets = filterSockets
	}
	return slices.Concat(filterArchitecture, sockets, allowExcept(baseRules, r.deniedCalls()))
}

// deniedCalls returns the system calls that makeFilter denies with any arguments.
func (r Rights) deniedCalls() []uintptr {
	denied := slices.Clone(deniedCalls)
	if !r.MayPair {
		denied = append(denied, unix.SYS_SOCKETPAIR)
	}
	if r.MayConnect {
		return append(denied, unix.SYS_LISTEN) // listen(2) alone would bind a socket to a free port
	}
	return append(denied, unix.SYS_SOCKET, unix.SYS_CONNECT)
}

// skipListen is the part of a filter that makes listen(2) succeed without an effect. QEMU's sockets already listen, with
// a long queue. QEMU would set the queue of the network's socket to one connection, which is too few: while the guest is
// paused or lacks a driver, QEMU does not notice the end of a connection, so the connection of each new supervisor waits
// in that queue until the guest goes on.
var skipListen = []bpf.Instruction{
	bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_LISTEN, SkipTrue: 1},
	failCall(0),
}

// argumentRule allows a system call if one of its arguments passes a test.
type argumentRule struct {
	call     uintptr
	argument uint32
	test     bpf.JumpTest
	value    uint32
	prevents string // for people
}

// allowExcept returns the part of a filter that allows all calls except those in denied, and those that fail a rule.
func allowExcept(rules []argumentRule, denied []uintptr) (program []bpf.Instruction) {
	for _, rule := range rules {
		program = append(program,
			bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(rule.call), SkipTrue: 4}, //nolint:gosec // small
			bpf.LoadAbsolute{Off: lowerHalf(rule.argument), Size: 4},
			bpf.JumpIf{Cond: rule.test, Val: rule.value, SkipTrue: 1},
			failCall(unix.EPERM),
			bpf.LoadAbsolute{Off: callNumber, Size: 4})
	}
	for _, call := range denied {
		err := unix.EPERM
		if call == unix.SYS_CLONE3 {
			err = unix.ENOSYS // a filter cannot see its flags; after ENOSYS libraries use clone instead
		}
		program = append(program, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(call), SkipTrue: 1}, failCall(err)) //nolint:gosec // small
	}
	return append(program, allowCall)
}

// baseRules are rules for all programs:
//   - No new namespaces.
//   - No limits for other processes, since a limit of CPU time can end a process.
//   - No pidfd of another process, such as of a socket's peer, no filter with a listener, which can put descriptors into
//     another process, and no file with an owner, which sends signals. QEMU and its supervisor can pass descriptors to
//     each other, so either of them could use the other's.
//   - No lingering socket, since a program that receives and closes one would block in the kernel (SO_LINGER in socket(7)).
var baseRules = []argumentRule{
	{unix.SYS_CLONE, 0, bpf.JumpBitsNotSet, newNamespaces, "new namespaces"},
	{unix.SYS_PRLIMIT64, 0, bpf.JumpEqual, 0, "limits of other processes"},
	{unix.SYS_SECCOMP, 1, bpf.JumpBitsNotSet, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, "filters with a listener"},
	{unix.SYS_FCNTL, 1, bpf.JumpNotEqual, unix.F_SETOWN, ownedFiles},
	{unix.SYS_FCNTL, 1, bpf.JumpNotEqual, unix.F_SETOWN_EX, ownedFiles},
	{unix.SYS_IOCTL, 1, bpf.JumpNotEqual, fioSetOwn, ownedFiles},
	{unix.SYS_IOCTL, 1, bpf.JumpNotEqual, unix.SIOCSPGRP, ownedFiles},
	{unix.SYS_GETSOCKOPT, 2, bpf.JumpNotEqual, unix.SO_PEERPIDFD, peerHandles},
	{unix.SYS_SETSOCKOPT, 2, bpf.JumpNotEqual, unix.SO_PASSPIDFD, peerHandles},
	{unix.SYS_SETSOCKOPT, 2, bpf.JumpNotEqual, unix.SO_LINGER, "sockets that linger"},
}

// Texts for several rules.
const (
	ownedFiles  = "files that signal a process"
	peerHandles = "handles on a peer"
	keptHandle  = "losing the handle on the process that it may signal"
	signals     = "signals to other processes"
)

// fioSetOwn is FIOSETOWN, which package unix lacks.
const fioSetOwn = 0x8901

// filterArchitecture is the part of a filter that denies the system calls of other architectures, since their numbers
// have other meanings. It loads the number of the call for the instructions that follow.
var filterArchitecture = []bpf.Instruction{
	bpf.LoadAbsolute{Off: callArch, Size: 4},
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: auditArch, SkipTrue: 1},
	failCall(unix.ENOSYS),
	bpf.LoadAbsolute{Off: callNumber, Size: 4},
	bpf.JumpIf{Cond: bpf.JumpLessThan, Val: firstForeignCall, SkipTrue: 1},
	failCall(unix.ENOSYS),
}

// filterSockets is the part of a filter for a program that may make sockets: it allows TCP, UDP and ping sockets of
// IPv4 and IPv6, and netlink sockets for queries of routes (NETLINK_ROUTE is 0).
var filterSockets = []bpf.Instruction{
	bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_SOCKET, SkipTrue: 15},
	bpf.LoadAbsolute{Off: lowerHalf(0), Size: 4},
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.AF_INET, SkipTrue: 5},
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.AF_INET6, SkipTrue: 4},
	bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.AF_NETLINK, SkipTrue: 2},
	bpf.LoadAbsolute{Off: lowerHalf(2), Size: 4},
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.NETLINK_ROUTE, SkipTrue: 7},
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

// installFilter adds a filter to the filters that the kernel already runs for this thread.
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
	if errno != 0 || result != 0 {                                                                                             // result is the ID of a thread that could not get the filter
		return fmt.Errorf("filtering system calls: %w", cmp.Or(errno, unix.EBUSY))
	}
	return nil
}

// startedCalls are the system calls that DenyStarts denies with any arguments. seccomp is among them since a later filter
// could have a listener, and close_range since it could close the pidfd of startRules.
var startedCalls = slices.Concat(legacyStarts, []uintptr{
	unix.SYS_EXECVE, unix.SYS_EXECVEAT, unix.SYS_CLONE3, unix.SYS_OPENAT, unix.SYS_OPENAT2, unix.SYS_OPEN_BY_HANDLE_AT,
	unix.SYS_SOCKETPAIR, unix.SYS_BIND, unix.SYS_LISTEN, unix.SYS_SECCOMP, unix.SYS_CLOSE_RANGE,
	unix.SYS_TKILL, unix.SYS_RT_SIGQUEUEINFO, unix.SYS_RT_TGSIGQUEUEINFO, unix.SYS_PIDFD_OPEN,
})

// startRules allow new threads but not processes, no Unix sockets, and signals only to this process and through one pidfd.
// They prevent closing the pidfd, or duplicating another file to its number, which would then allow other signals.
func startRules(pidfd int) []argumentRule {
	own, number := uint32(unix.Getpid()), uint32(pidfd) //nolint:gosec // positive, and a descriptor
	rules := append(slices.Clone(baseRules),
		argumentRule{unix.SYS_CLONE, 0, bpf.JumpBitsSet, unix.CLONE_THREAD, "new processes, unlike threads"},
		argumentRule{unix.SYS_CLONE, 0, bpf.JumpBitsNotSet, unix.CLONE_PIDFD, "handles on a process"},
		argumentRule{unix.SYS_SOCKET, 0, bpf.JumpNotEqual, unix.AF_UNIX, "unix sockets"},
		argumentRule{unix.SYS_KILL, 0, bpf.JumpEqual, own, signals},
		argumentRule{unix.SYS_TGKILL, 0, bpf.JumpEqual, own, signals},
		argumentRule{unix.SYS_PIDFD_SEND_SIGNAL, 0, bpf.JumpEqual, number, "signals but through the handle that it was given"},
		argumentRule{unix.SYS_CLOSE, 0, bpf.JumpNotEqual, number, keptHandle})
	for _, call := range duplicatingCalls {
		rules = append(rules, argumentRule{call, 1, bpf.JumpNotEqual, number, keptHandle})
	}
	return rules
}

// DenyStarts permanently restricts this program further once it has started. Afterwards the program cannot make processes,
// execute programs, open files, listen at ports or make Unix sockets, and can send signals only through pidfd. Other
// processes of its user cannot read its memory. r are the rights with which the program was started.
func DenyStarts(pidfd int, r Rights) error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("protecting the memory of this process (PR_SET_DUMPABLE): %w", err)
	}
	return installFilter(makeStartFilter(pidfd, r), unix.SECCOMP_FILTER_FLAG_TSYNC)
}

func makeStartFilter(pidfd int, r Rights) []bpf.Instruction {
	return slices.Concat(filterArchitecture, allowExcept(startRules(pidfd), r.startedCalls()))
}

// startedCalls returns the system calls that makeStartFilter denies with any arguments.
func (r Rights) startedCalls() []uintptr {
	return slices.DeleteFunc(slices.Clone(startedCalls), func(call uintptr) bool { return r.MayPair && call == unix.SYS_SOCKETPAIR })
}
