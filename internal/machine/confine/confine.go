// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package confine starts programs that can use next to nothing of their host.
//
// Start with Start. It restricts one thread of this program, for good, starts the other
// program from it, and lets the thread end. What a thread may do, its children may at most;
// this program's other threads keep all they can. No helper program is needed.
//
// Two mechanisms of Linux restrict it: no_new_privs, so that no program that it executes
// gives it more, and Landlock, whose versions (ABIs) know more and more kinds of access.
// The parts that a kernel lacks are left out: see Gaps.
package confine

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"runtime"

	"golang.org/x/sys/unix"
)

// Policy is what a program may use beside the files that it inherits.
type Policy struct {
	// ABI is the version of Landlock to use, at most that of the kernel. Zero means none.
	ABI int
	// Execute are the programs that may be executed.
	Execute []string
	// Read are the files, and the folders with all below them, that may be read. Those that
	// do not exist are left out, here and in the other fields.
	Read []string
	// Devices are the device files that may be read, written and controlled.
	Devices []string
	// Reopen are open files that may be opened again for reading.
	Reopen []*os.File
	// Ports are the TCP ports that may be listened on.
	Ports []int32
}

// firstFile is the first descriptor after the standard streams.
const firstFile = 3

// Start starts a command under a policy. The command's own settings apply as usual. It
// inherits none of the files that this program got from its own parent, such as a pipe of a
// shell.
func Start(cmd *exec.Cmd, p Policy) error {
	ruleset, err := p.makeRuleset()
	if err != nil {
		return fmt.Errorf("confining %s: %w", cmd.Path, err)
	}
	if ruleset != nil {
		defer func() { _ = ruleset.Close() }()
	}
	// What this program opens itself is not inherited anyway. Kernels before 5.11 cannot do it.
	_ = unix.CloseRange(firstFile, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC)
	runOnLostThread(func() {
		if err = restrictThread(ruleset); err == nil {
			err = cmd.Start()
		}
	})
	return err
}

// runOnLostThread runs f on a thread that ends after it. The runtime clones no thread from
// one that is locked, so what f does to its thread stays there.
func runOnLostThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			f()
			return
		}
		runOnLostThread(f) // on another: the main thread would not end
		runtime.UnlockOSThread()
	}()
	<-done
}

// restrictThread restricts this thread and all that it starts.
func restrictThread(ruleset *os.File) error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("setting no_new_privs: %w", err)
	}
	if ruleset == nil {
		return nil
	}
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, ruleset.Fd(), 0, 0); errno != 0 {
		return fmt.Errorf("applying Landlock: %w", errno)
	}
	return nil
}
