// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package confine

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/test/assert"
)

// systemCall is a system call with the arguments that filters look at.
type systemCall struct {
	number    uintptr
	arguments [3]uint32
}

// handle is the number of the supervisor's handle in these tests.
const handle = 7

// descriptorCalls are the system calls that yield a descriptor, or mark one so that its receiver is affected. QEMU can
// pass descriptors to its supervisor, and the supervisor to the broker. So QEMU may make none of them, or the row gives
// the reason.
var descriptorCalls = map[string]struct {
	call systemCall
	why  string
}{
	"a handle on any process":              {systemCall{number: unix.SYS_PIDFD_OPEN}, ""},
	"a file of another process":            {systemCall{number: unix.SYS_PIDFD_GETFD}, ""},
	"a handle on a child, by clone3":       {systemCall{number: unix.SYS_CLONE3}, ""},
	"a handle on who connects":             {systemCall{unix.SYS_GETSOCKOPT, [3]uint32{3, unix.SOL_SOCKET, unix.SO_PEERPIDFD}}, ""},
	"a handle on who sends":                {systemCall{unix.SYS_SETSOCKOPT, [3]uint32{3, unix.SOL_SOCKET, unix.SO_PASSPIDFD}}, ""},
	"the listener of a filter":             {systemCall{unix.SYS_SECCOMP, [3]uint32{unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER}}, ""},
	"a file by its handle":                 {systemCall{number: unix.SYS_OPEN_BY_HANDLE_AT}, ""},
	"a mount":                              {systemCall{number: unix.SYS_OPEN_TREE}, ""},
	"a mount with attributes":              {systemCall{number: unix.SYS_OPEN_TREE_ATTR}, ""},
	"a file system":                        {systemCall{number: unix.SYS_FSOPEN}, ""},
	"a file system to change":              {systemCall{number: unix.SYS_FSPICK}, ""},
	"a mount of a file system":             {systemCall{number: unix.SYS_FSMOUNT}, ""},
	"faults of memory":                     {systemCall{number: unix.SYS_USERFAULTFD}, ""},
	"calls that are not filtered":          {systemCall{number: unix.SYS_IO_URING_SETUP}, ""},
	"counters of the processor":            {systemCall{number: unix.SYS_PERF_EVENT_OPEN}, ""},
	"programs of the kernel":               {systemCall{number: unix.SYS_BPF}, ""},
	"events of file systems":               {systemCall{number: unix.SYS_FANOTIFY_INIT}, ""},
	"events of files":                      {systemCall{number: unix.SYS_INOTIFY_INIT1}, ""},
	"a queue of messages":                  {systemCall{number: unix.SYS_MQ_OPEN}, ""},
	"memory that the kernel does not read": {systemCall{number: unix.SYS_MEMFD_SECRET}, ""},
	"a socket":                             {systemCall{unix.SYS_SOCKET, [3]uint32{unix.AF_INET, unix.SOCK_STREAM}}, ""},
	"a unix socket":                        {systemCall{unix.SYS_SOCKET, [3]uint32{unix.AF_UNIX, unix.SOCK_STREAM}}, ""},
	"a routing socket":                     {systemCall{unix.SYS_SOCKET, [3]uint32{unix.AF_NETLINK, unix.SOCK_RAW}}, ""},
	"a socket to machines":                 {systemCall{unix.SYS_SOCKET, [3]uint32{unix.AF_VSOCK, unix.SOCK_STREAM}}, ""},
	"a pair of sockets":                    {systemCall{number: unix.SYS_SOCKETPAIR}, ""},
	"a socket that lingers":                {systemCall{unix.SYS_SETSOCKOPT, [3]uint32{3, unix.SOL_SOCKET, unix.SO_LINGER}}, ""},
	"a file that signals":                  {systemCall{unix.SYS_FCNTL, [3]uint32{3, unix.F_SETOWN}}, ""},
	"a file that signals a thread":         {systemCall{unix.SYS_FCNTL, [3]uint32{3, unix.F_SETOWN_EX}}, ""},
	"a file that signals, by ioctl":        {systemCall{unix.SYS_IOCTL, [3]uint32{3, fioSetOwn}}, ""},
	"a socket that signals, by ioctl":      {systemCall{unix.SYS_IOCTL, [3]uint32{3, unix.SIOCSPGRP}}, ""},

	"a handle on a child": {
		systemCall{unix.SYS_CLONE, [3]uint32{unix.CLONE_PIDFD}},
		"Drover starts QEMU so, under its filter; a child is as confined, and nobody but the child is signalled by it",
	},
	"a handle on a thread": {systemCall{unix.SYS_CLONE, [3]uint32{unix.CLONE_PIDFD | unix.CLONE_THREAD}}, "the same"},
	"a file":               {systemCall{number: unix.SYS_OPENAT}, "Landlock has the files, and so has the machine's user"},
	"a file by openat2":    {systemCall{number: unix.SYS_OPENAT2}, "Landlock has the files, and so has the machine's user"},
	"a connection":         {systemCall{number: unix.SYS_ACCEPT4}, "QEMU's control sockets, which Drover has made, accept its supervisor alone"},
	"a pipe":               {systemCall{number: unix.SYS_PIPE2}, "it has nothing but what its ends write; receivers take sockets alone"},
	"memory":               {systemCall{number: unix.SYS_MEMFD_CREATE}, "it counts as the maker's, and no receiver maps or executes a file"},
	"a counter":            {systemCall{number: unix.SYS_EVENTFD2}, "QEMU's threads wake each other by it; it has a number alone"},
	"a timer":              {systemCall{number: unix.SYS_TIMERFD_CREATE}, "it has a number alone"},
	"signals of itself":    {systemCall{number: unix.SYS_SIGNALFD4}, "QEMU's main loop; a reader gets only signals to itself"},
	"events":               {systemCall{number: unix.SYS_EPOLL_CREATE1}, "QEMU's main loop; it tells of the maker's files alone"},
	"rules of Landlock":    {systemCall{number: unix.SYS_LANDLOCK_CREATE_RULESET}, "they restrict nobody but who applies them to itself"},
	"a file that does not wait": {
		systemCall{unix.SYS_FCNTL, [3]uint32{3, unix.F_SETFL, unix.O_NONBLOCK}},
		"QEMU's sockets need it; receivers set it again, and have deadlines",
	},
}

// TestDescriptors checks that QEMU may make none of the descriptors that others of its machine may not have, and that
// the programs which follow it may not make the dangerous ones either.
func TestDescriptors(t *testing.T) {
	t.Parallel()
	qemu := runFilters(t, makeFilter(Rights{}))
	others := map[string]func(systemCall) bool{
		"supervisor": runFilters(t, makeFilter(Rights{MayConnect: true, MaySignal: true}), makeStartFilter(handle, Rights{})),
		"broker":     runFilters(t, makeFilter(Rights{MayPair: true}), makeStartFilter(-1, Rights{MayPair: true})),
		"converter":  runFilters(t, makeFilter(Rights{}), makeStartFilter(-1, Rights{})),
	}
	mayMake := map[string][]string{"supervisor": {"a socket", "a routing socket"}, "broker": {"a pair of sockets"}}
	for name, row := range descriptorCalls {
		isAllowed := qemu(row.call)
		assert.True(t, isAllowed == (row.why != ""), "%s: QEMU may make it: %v, and the reason is %q", name, isAllowed, row.why)
		for who, isAllowed := range others {
			assert.True(t, row.why != "" || isAllowed(row.call) == slices.Contains(mayMake[who], name), "%s: a %s may make it: %v", name, who, isAllowed(row.call))
		}
	}
}

// qemuMay has the calls that DenyStarts denies to a supervisor and that QEMU's filter allows, with the reason for each.
// None of them yields a descriptor that a supervisor could use.
var qemuMay = map[uintptr]string{
	unix.SYS_OPENAT: "a row of descriptorCalls", unix.SYS_OPENAT2: "a row of descriptorCalls",
	unix.SYS_EXECVE: "Landlock allows only QEMU's programs", unix.SYS_EXECVEAT: "the same",
	unix.SYS_CLONE: "rows of descriptorCalls", unix.SYS_LISTEN: "it succeeds without an effect",
	unix.SYS_KILL: "Landlock has the signals, and so has the machine's user", unix.SYS_TGKILL: "the same", unix.SYS_TKILL: "the same",
	unix.SYS_RT_SIGQUEUEINFO: "the same", unix.SYS_RT_TGSIGQUEUEINFO: "the same", unix.SYS_PIDFD_SEND_SIGNAL: "QEMU can only have handles on its children",
	unix.SYS_SECCOMP: "QEMU applies its sandbox; a listener is a row of descriptorCalls",
	unix.SYS_CLOSE:   "that handle is the supervisor's", unix.SYS_CLOSE_RANGE: "the same", unix.SYS_DUP3: "the same",
}

// TestNoWayRound checks that QEMU's filter denies everything that DenyStarts denies to a supervisor, except for qemuMay.
// An attacker who has taken both would have QEMU make it and pass it on.
func TestNoWayRound(t *testing.T) {
	t.Parallel()
	qemu, supervisor := runFilters(t, makeFilter(Rights{})), runFilters(t, makeStartFilter(handle, Rights{}))
	may := maps.Clone(qemuMay)
	for _, call := range slices.Concat(legacyStarts, duplicatingCalls) {
		may[call] = "an older form of one that is named"
	}
	for _, call := range append(rulesBroken(startRules(handle)), callsOf(startedCalls)...) {
		assert.True(t, !supervisor(call), "a supervisor may call %s", call)
		assert.True(t, !qemu(call) || may[call.number] != "", "QEMU may call %s, and no reason is given", call)
	}
}

// TestHandleStays checks that a supervisor cannot put another file at the number of its handle, and can do the same with
// other numbers.
func TestHandleStays(t *testing.T) {
	t.Parallel()
	supervisor := runFilters(t, makeStartFilter(handle, Rights{}))
	calls := map[string]systemCall{"close": {unix.SYS_CLOSE, [3]uint32{handle}}, "close_range": {number: unix.SYS_CLOSE_RANGE}}
	for _, call := range duplicatingCalls {
		calls[fmt.Sprint("duplicate by ", call)] = systemCall{call, [3]uint32{9, handle}}
		assert.True(t, supervisor(systemCall{call, [3]uint32{handle, 9}}), "call %d may not duplicate to another number", call)
	}
	for name, call := range calls {
		assert.True(t, !supervisor(call), "%s: a supervisor may put another file in the place of its handle", name)
	}
	assert.True(t, supervisor(systemCall{unix.SYS_CLOSE, [3]uint32{handle + 1}}) && supervisor(systemCall{unix.SYS_PIDFD_SEND_SIGNAL, [3]uint32{handle, 9}}),
		"a supervisor may not close another file, or not signal by its handle")
}

// String implements fmt.Stringer.
func (c systemCall) String() string { return fmt.Sprintf("%d%v", c.number, c.arguments) }

func callsOf(numbers []uintptr) (calls []systemCall) {
	for _, number := range numbers {
		calls = append(calls, systemCall{number: number})
	}
	return calls
}

// rulesBroken returns a call for each rule that does not pass its test.
func rulesBroken(rules []argumentRule) (calls []systemCall) {
	for _, rule := range rules {
		value := rule.value
		switch rule.test {
		case bpf.JumpEqual:
			value++
		case bpf.JumpBitsSet:
			value = 0
		default:
		}
		call := systemCall{number: rule.call}
		call.arguments[rule.argument] = value
		calls = append(calls, call)
	}
	return calls
}

// runFilters returns what reports whether all filters allow a call.
func runFilters(t *testing.T, programs ...[]bpf.Instruction) func(systemCall) bool {
	t.Helper()
	var filters []func(arch, number uint32, arguments ...uint32) int
	for _, program := range programs {
		filters = append(filters, newFilter(t, program))
	}
	return func(c systemCall) bool {
		return !slices.ContainsFunc(filters, func(answer func(arch, number uint32, arguments ...uint32) int) bool {
			return answer(auditArch, uint32(c.number), c.arguments[:]...) != unix.SECCOMP_RET_ALLOW //nolint:gosec // small
		})
	}
}
