// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package confine starts programs with almost no access to their host.
//
// Start with Start. It permanently restricts one thread of this program, starts the other
// program from that thread, and ends the thread. A child inherits the restrictions of the
// thread that starts it. This program's other threads are not restricted. No helper program
// is needed.
//
// Four mechanisms of Linux restrict a program: a separate user without capabilities, if this
// program is root (confine.go); no_new_privs, so that the program cannot gain rights by
// executing another program; a filter of system calls (seccomp.go); and Landlock (landlock.go).
// Newer versions (ABIs) of Landlock restrict more kinds of access: see Gaps.
package confine

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Policy says what a program may use in addition to the files that it inherits.
type Policy struct {
	// User is the user that the program runs as; nil means the user of this program.
	User *User
	// Dir is the working directory, which User need not be able to open; empty means the
	// command's directory.
	Dir string
	// ABI is the version of Landlock to use, at most the kernel's. Zero means none.
	ABI int
	// Execute are the programs that may be executed. Paths that do not exist are ignored, here
	// and in the other fields.
	Execute []string
	// Read are the files that may be read, and the folders whose whole content may be read.
	Read []string
	// Devices are the device files that may be read, written and used with ioctl(2).
	Devices []string
	// Reopen are open files that may be opened again for reading.
	Reopen []*os.File
	// OOMScore is how much the kernel prefers the program to others of this host, and to this program, when memory
	// runs out: see proc(5), oom_score_adj.
	OOMScore int

	Rights
}

// Rights are the rights of a kind of program, such as of all supervisors.
type Rights struct {
	// MayConnect allows internet sockets, which may not listen at a port, and queries of the kernel's routes.
	MayConnect bool
	// MayPair allows pairs of connected sockets.
	MayPair bool
	// MaySignal allows signals to other processes of the user.
	MaySignal bool
}

// User is a user that root starts a program as.
type User struct {
	ID, GroupID uint32
	// Groups are supplementary groups.
	Groups []uint32
}

// ErrNotRestricted means that the program was not started, since its rights could not be
// restricted.
var ErrNotRestricted = errors.New("rights could not be taken away")

// firstFile is the first descriptor after the standard streams.
const firstFile = 3

// drainWithin is how long the output of a program is read after the program's end, since a child of
// the program may keep the output open.
const drainWithin = time.Second

// Command returns a command that inherits nothing implicitly: it has a new session, a fixed
// environment and the root directory, and none of the files that this program inherited itself, such
// as a pipe of a shell. So a program that another user chose can neither write to root's terminal
// nor read root's files.
func Command(ctx context.Context, program string, arguments ...string) *exec.Cmd {
	closeOnExec()
	cmd := exec.CommandContext(ctx, program, arguments...) //nolint:gosec // an option
	cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LC_ALL=C"}
	cmd.Dir, cmd.WaitDelay = "/", drainWithin
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd
}

// CommandOf returns a Command that executes an open program through its descriptor, and its policy. The command
// inherits files, followed by the program.
func CommandOf(ctx context.Context, program *os.File, name string, files []*os.File, rights Rights, arguments ...string) (*exec.Cmd, Policy) {
	path := func(fd uintptr) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }
	cmd := Command(ctx, path(uintptr(firstFile+len(files))), arguments...)
	cmd.Args[0] = name
	cmd.ExtraFiles = append(slices.Clone(files), program)
	policy := PolicyOf(path(program.Fd()), rights)
	policy.ABI = ABI()
	return cmd, policy
}

// PolicyOf returns the policy of a program of Drover. The only paths that it may open are its file and os.DevNull.
func PolicyOf(path string, rights Rights) Policy {
	return Policy{Execute: []string{path}, Devices: []string{os.DevNull}, Rights: rights}
}

// Start starts a command of Command under a policy.
func Start(cmd *exec.Cmd, p Policy) error {
	ruleset, err := p.makeRuleset()
	if err != nil {
		return fmt.Errorf("confining %s: %w", cmd.Path, err)
	}
	if ruleset != nil {
		defer func() { _ = ruleset.Close() }()
	}
	p.User.setCredentials(cmd)
	switch {
	case p.Dir == "": // the command's directory
	case p.User == nil:
		cmd.Dir, p.Dir = p.Dir, ""
	default:
		cmd.Dir = ""
	}
	runOnLostThread(func() {
		if err = p.restrictThread(ruleset); err != nil {
			err = fmt.Errorf("%w: %w", ErrNotRestricted, err)
			return
		}
		err = cmd.Start()
	})
	if err == nil && p.OOMScore > 0 {
		raiseOOMScore(cmd.Process.Pid, p.OOMScore, p.User)
	}
	return err
}

// raiseOOMScore raises the score of a process. It writes as the owner of the process's oom_score_adj, since root may
// lack CAP_DAC_OVERRIDE: that is root until execve completes, then the user, and root again if the program makes itself
// not dumpable. The process may have ended already, and then raiseOOMScore does nothing.
func raiseOOMScore(pid, increase int, user *User) {
	const maxScore = 1000
	inherited := 0
	if text, err := os.ReadFile(scoreFile(os.Getpid())); err == nil {
		inherited, _ = strconv.Atoi(strings.TrimSpace(string(text)))
	}
	score := min(max(inherited, 0)+increase, maxScore)
	for _, owner := range []*User{nil, user, nil} {
		if RunAs(owner, func() error { return os.WriteFile(scoreFile(pid), []byte(strconv.Itoa(score)), 0o600) }) == nil {
			return
		}
	}
}

func scoreFile(pid int) string { return fmt.Sprintf("/proc/%d/oom_score_adj", pid) }

// closeOnExec prevents children from inheriting the files that this program inherited itself. The
// files that Go opens are never inherited by default.
func closeOnExec() {
	if err := unix.CloseRange(firstFile, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC); err == nil {
		return
	}
	links, _ := filepath.Glob("/proc/self/fd/*") // Linux before 5.11
	for _, link := range links {
		if fd, err := strconv.Atoi(filepath.Base(link)); err == nil && fd >= firstFile {
			unix.CloseOnExec(fd)
		}
	}
}

// runOnLostThread runs f on a thread that ends afterwards. Go's runtime does not start threads from a
// locked thread, so changes that f makes to its thread affect no other thread.
func runOnLostThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			f()
			return
		}
		runOnLostThread(f) // try another thread, since the main thread never ends
		runtime.UnlockOSThread()
	}()
	<-done
}

// RunAs calls f with the rights of another user, for which this program must be root; nil means the
// user of this program. Goroutines that f starts do not have these rights.
func RunAs(u *User, f func() error) (err error) {
	if u == nil {
		return f()
	}
	runOnLostThread(func() {
		if err = u.becomeOnThread(); err != nil {
			err = fmt.Errorf("becoming user ID %d: %w", u.ID, err)
			return
		}
		err = f()
	})
	return err
}

// becomeOnThread gives only this thread the user's IDs. It loses its capabilities together with
// root's IDs. The functions of package syscall would change all threads.
func (u *User) becomeOnThread() error {
	groups := append([]uint32{u.GroupID}, u.Groups...)
	for _, call := range [][4]uintptr{
		{unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(unsafe.Pointer(&groups[0]))}, //nolint:gosec // a system call
		{unix.SYS_SETRESGID, uintptr(u.GroupID), uintptr(u.GroupID), uintptr(u.GroupID)},
		{unix.SYS_SETRESUID, uintptr(u.ID), uintptr(u.ID), uintptr(u.ID)},
	} {
		if _, _, errno := unix.RawSyscall(call[0], call[1], call[2], call[3]); errno != 0 {
			return errno
		}
	}
	runtime.KeepAlive(groups)
	return nil
}

// setCredentials makes a command run as the user; nil leaves it as it is.
func (u *User) setCredentials(cmd *exec.Cmd) {
	if u == nil {
		return
	}
	cmd.SysProcAttr.Credential = &syscall.Credential{Uid: u.ID, Gid: u.GroupID, Groups: u.Groups}
}

// dropCapabilities takes all capabilities from this thread's children. The thread itself keeps the
// capabilities that it needs to start a child as another user.
func (u *User) dropCapabilities() error {
	for capability := uintptr(0); capability <= unix.CAP_LAST_CAP; capability++ {
		err := unix.Prctl(unix.PR_CAPBSET_DROP, capability, 0, 0, 0)
		if errors.Is(err, unix.EINVAL) {
			return nil // an older kernel, which lacks capabilities from this number on
		}
		if err != nil {
			return fmt.Errorf("dropping capabilities, which needs CAP_SETPCAP: %w", err)
		}
	}
	return nil
}

// enterDir changes the working directory of only this thread.
func enterDir(dir string) error {
	if dir == "" {
		return nil
	}
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unsharing the working directory, which the seccomp profile of a container may deny: %w", err)
	}
	if err := unix.Chdir(dir); err != nil {
		return fmt.Errorf("entering %s: %w", dir, err)
	}
	return nil
}

// restrictThread restricts this thread and its children.
func (p Policy) restrictThread(ruleset *os.File) error {
	if err := enterDir(p.Dir); err != nil {
		return err
	}
	if p.User != nil {
		if err := p.User.dropCapabilities(); err != nil {
			return err
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("setting no_new_privs: %w", err)
	}
	if err := installFilter(makeFilter(p.Rights), 0); err != nil {
		return err
	}
	if ruleset == nil {
		return nil
	}
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, ruleset.Fd(), 0, 0); errno != 0 {
		return fmt.Errorf("applying Landlock: %w", errno)
	}
	return nil
}
