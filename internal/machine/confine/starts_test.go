// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package confine

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// deniedCommand is the first argument of this program as one that has called DenyStarts.
const deniedCommand = "denied"

// TestMain runs the tests, or the program that they start.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == deniedCommand {
		runDenied()
		return
	}
	os.Exit(m.Run())
}

// Descriptors of that program: a listener, a handle that it may signal, and another.
const (
	deniedListener = 3 + iota
	deniedHandle
	deniedOther
	deniedSocket
)

// runDenied prints what comes of each try, and echoes what comes to its listener until its input ends.
func runDenied() {
	other := 0
	_, _ = fmt.Sscan(os.Args[2], &other)
	program, err := unix.MemfdCreate("program", 0)
	if err == nil {
		_, err = unix.Write(program, []byte("#!/bin/true\n"))
	}
	runtime.LockOSThread() // of which the filter takes it
	err = errors.Join(err, unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), DenyStarts(deniedHandle, Rights{}))
	runtime.UnlockOSThread()
	if err != nil {
		panic(err)
	}
	results := map[string]string{}
	for name, try := range deniedTries(other, program) {
		results[name] = "succeeds"
		if errno := try(); errno != 0 {
			results[name] = errno.Error()
		}
	}
	results["threads"] = fmt.Sprint(countThreads(5))
	_ = json.NewEncoder(os.Stdout).Encode(results)
	for {
		conn, _, err := unix.Accept4(deniedListener, unix.SOCK_CLOEXEC)
		if err != nil {
			return
		}
		_, _ = unix.Write(conn, []byte("accepted"))
		_ = unix.Close(conn)
	}
}

// countThreads returns how many threads n goroutines have that keep theirs.
func countThreads(n int) int {
	var mu sync.Mutex
	var started, all sync.WaitGroup
	found := map[int]bool{}
	started.Add(n)
	for range n {
		all.Go(func() {
			runtime.LockOSThread()
			mu.Lock()
			found[unix.Gettid()] = true
			mu.Unlock()
			started.Done()
			started.Wait()
		})
	}
	all.Wait()
	return len(found)
}

func deniedTries(other, program int) map[string]func() unix.Errno {
	path, empty, linger := []byte("/bin/true\x00"), []byte{0}, make([]byte, unix.SizeofLinger)
	at := func(b []byte) uintptr { return uintptr(unsafe.Pointer(&b[0])) } //nolint:gosec // a system call
	call := func(number uintptr, arguments ...uintptr) func() unix.Errno {
		var a [6]uintptr
		copy(a[:], arguments)
		return func() unix.Errno {
			result, _, errno := unix.RawSyscall6(number, a[0], a[1], a[2], a[3], a[4], a[5])
			runtime.KeepAlive(path)
			runtime.KeepAlive(empty)
			runtime.KeepAlive(linger)
			if isProcess := number == unix.SYS_CLONE || number == unix.SYS_CLONE3; isProcess && errno == 0 && result == 0 {
				unix.Exit(1) // the child
			}
			return errno
		}
	}
	here := ^uintptr(99) // AT_FDCWD
	id, own := uintptr(other), uintptr(unix.Getpid())
	tries := map[string]func() unix.Errno{
		"a process": call(unix.SYS_CLONE, uintptr(unix.SIGCHLD)), "a process with a handle": call(unix.SYS_CLONE, unix.CLONE_PIDFD|uintptr(unix.SIGCHLD)),
		"a process by clone3": call(unix.SYS_CLONE3), "a program": call(unix.SYS_EXECVE, at(path)),
		"a program in memory": call(unix.SYS_EXECVEAT, uintptr(program), at(empty), 0, 0, unix.AT_EMPTY_PATH),
		"a file":              call(unix.SYS_OPENAT, here, at(path), unix.O_RDONLY), "a file by openat2": call(unix.SYS_OPENAT2, here, at(path)),
		"a unix socket": call(unix.SYS_SOCKET, unix.AF_UNIX, unix.SOCK_STREAM),
		"a pair":        call(unix.SYS_SOCKETPAIR, unix.AF_UNIX, unix.SOCK_DGRAM),
		"bind":          call(unix.SYS_BIND, deniedSocket), "listen": call(unix.SYS_LISTEN, deniedSocket),
		"signal": call(unix.SYS_KILL, id, 0), "signal all": call(unix.SYS_KILL, ^uintptr(0), 0), "signal a thread": call(unix.SYS_TKILL, id, 0),
		"signal a thread of it": call(unix.SYS_TGKILL, id, id, 0), "queue a signal": call(unix.SYS_RT_SIGQUEUEINFO, id, 0, at(empty)),
		"signal by a handle": call(unix.SYS_PIDFD_SEND_SIGNAL, deniedOther, 0), "a handle": call(unix.SYS_PIDFD_OPEN, id),
		"own a file": call(unix.SYS_FCNTL, deniedSocket, unix.F_SETOWN, id), "own a socket": call(unix.SYS_IOCTL, deniedSocket, unix.SIOCSPGRP, at(empty)),
		"linger":                       call(unix.SYS_SETSOCKOPT, deniedSocket, unix.SOL_SOCKET, unix.SO_LINGER, at(linger), uintptr(len(linger))),
		"a socket that passes handles": call(unix.SYS_SETSOCKOPT, deniedSocket, unix.SOL_SOCKET, unix.SO_PASSPIDFD, at(linger), 4),
		"close its handle":             call(unix.SYS_CLOSE, deniedHandle), "close all": call(unix.SYS_CLOSE_RANGE, deniedHandle, deniedHandle),
		"another handle in its place": call(unix.SYS_DUP3, deniedOther, deniedHandle, unix.O_CLOEXEC),
		"the listener of a filter":    call(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, at(empty)),
		"another filter":              call(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, at(empty)),
		"a handle on who connects":    call(unix.SYS_GETSOCKOPT, deniedSocket, unix.SOL_SOCKET, unix.SO_PEERPIDFD),
		"signal itself":               call(unix.SYS_KILL, own, 0), "signal its target": call(unix.SYS_PIDFD_SEND_SIGNAL, deniedHandle, 0),
	}
	for n, number := range legacyStarts {
		if n > 1 { // fork and vfork: a child would share this stack
			tries[fmt.Sprint("old call ", n)] = call(number, at(path))
		}
	}
	return tries
}

// TestDenyStarts checks that a program which starts nothing makes no process, executes no program, opens no file and
// makes no socket, signals no process but one, and cannot be read by others of its user. It still has threads, and
// accepts connections.
func TestDenyStarts(t *testing.T) {
	t.Parallel()
	if !FiltersCalls() {
		t.Skip("system calls are not filtered on this architecture")
	}
	listener := framework.Listen(t, "tcp4", "127.0.0.1:0")
	self := filepath.Join(framework.PublicDir(t), "program")
	own, err := os.Executable()
	assert.NoError(t, err)
	assert.NoError(t, errors.Join(framework.CopyFile(own, self), os.Chmod(self, 0o755)))
	var user *User
	if os.Geteuid() == 0 {
		user = &User{ID: 2100065803, GroupID: 2100065803}
	}
	target, other := startIdle(t, user), startIdle(t, user)
	cmd := exec.CommandContext(t.Context(), self, deniedCommand, fmt.Sprint(other.Process.Pid))
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	user.setCredentials(cmd)
	for _, open := range []func() (*os.File, error){
		listener.(interface{ File() (*os.File, error) }).File,
		func() (*os.File, error) { return openHandle(target) },
		func() (*os.File, error) { return openHandle(other) },
		func() (*os.File, error) {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			return os.NewFile(uintptr(fd), "socket"), err
		},
	} {
		f, err := open()
		assert.NoError(t, err)
		defer func() { _ = f.Close() }()
		cmd.ExtraFiles = append(cmd.ExtraFiles, f)
	}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	assert.NoError(t, errors.Join(err, cmd.Start()))
	t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	var results map[string]string
	assert.NoError(t, json.NewDecoder(out).Decode(&results))
	want := map[string]string{"a process by clone3": unix.ENOSYS.Error(), "threads": "5", "signal itself": "succeeds", "signal its target": "succeeds"}
	for name, got := range results {
		expected, ok := want[name]
		if !ok {
			expected = unix.EPERM.Error()
		}
		assert.Equal(t, name, got, expected)
	}
	checkAccepts(t, listener.Addr().String())
	checkUnreadable(t, user, cmd.Process.Pid)
}

// startIdle starts a process that waits.
func startIdle(t *testing.T, user *User) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/bin/sleep", "600")
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	user.setCredentials(cmd)
	assert.NoError(t, cmd.Start())
	t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	return cmd
}

func openHandle(cmd *exec.Cmd) (*os.File, error) {
	fd, err := unix.PidfdOpen(cmd.Process.Pid, 0)
	return os.NewFile(uintptr(fd), "handle"), err
}

func checkAccepts(t *testing.T, address string) {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp4", address)
	assert.NoError(t, err)
	defer func() { _ = conn.Close() }()
	said, err := io.ReadAll(conn)
	assert.True(t, err == nil && string(said) == "accepted", "it says %q, %v", said, err)
}

// checkUnreadable checks that a user cannot read the memory of a process of that user.
func checkUnreadable(t *testing.T, user *User, pid int) {
	t.Helper()
	for _, name := range []string{"mem", "environ", "maps"} {
		err := RunAs(user, func() error {
			content, err := os.OpenFile(fmt.Sprintf("/proc/%d/%s", pid, name), os.O_RDONLY, 0)
			if err == nil {
				err = content.Close()
			}
			return err
		})
		assert.ErrorIs(t, name+" of the process:", err, fs.ErrPermission)
	}
}
