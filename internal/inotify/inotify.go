// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package inotify explains why the kernel refuses to watch files, and checks in advance whether the
// kernel would refuse. Start with Explain.
package inotify

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// limit is a sysctl that bounds the inotify resources of one user on the whole host.
type limit struct {
	name        string // the name for sysctl(8)
	resources   string
	recommended int // enough for a host with many programs
}

var (
	instances = limit{"fs.inotify.max_user_instances", "inotify instances", 1024}
	watches   = limit{"fs.inotify.max_user_watches", "inotify watches", 524288}
)

// LimitError means that a user has as many instances or watches as the host allows.
type LimitError struct {
	// Command is a command that raises the limit until the next boot. Line raises the limit permanently, as a
	// line of a file in /etc/sysctl.d.
	Command, Line string

	text string
	err  error
}

// Error implements error.
func (e *LimitError) Error() string { return e.text }

// Unwrap returns the kernel's error.
func (e *LimitError) Unwrap() error { return e.err }

// Explain adds to an error of a watch the limit that caused the error, if a limit did. The kernel's text
// would be about open files or disk space.
func Explain(err error) error {
	switch {
	case errors.Is(err, unix.EMFILE) && canOpen():
		return newLimitError(instances, err)
	case errors.Is(err, unix.EMFILE):
		return fmt.Errorf("%w: this process has reached its limit of open files: raise it with LimitNOFILE of the service or ulimit -n", err)
	case errors.Is(err, unix.ENOSPC):
		return newLimitError(watches, err)
	}
	return err
}

// canOpen reports whether this process may open another file. If it may, the kernel has refused an
// instance because of the limit of the user.
func canOpen() bool {
	f, err := os.Open(os.DevNull)
	if err == nil {
		_ = f.Close()
	}
	return err == nil
}

func newLimitError(l limit, err error) error {
	now := readLimit(l)
	setting := fmt.Sprintf("%s=%d", l.name, max(l.recommended, 8*now))
	command := "sudo sysctl " + setting
	return &LimitError{
		Command: command, Line: setting, err: err,
		text: fmt.Sprintf("%v: user %d has all the %s that %s allows (%d): raise it by %s", err, os.Geteuid(), l.resources, l.name, now, command),
	}
}

// readLimit returns the value of a limit, or 0 if it cannot be read.
func readLimit(l limit) int {
	text, err := os.ReadFile(filepath.Join("/proc/sys", strings.ReplaceAll(l.name, ".", "/"))) // #nosec -- a constant
	if err != nil {
		return 0
	}
	value, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	return value
}

// Check returns an explained error if this user cannot have count more instances, each with a watch of
// a folder. It closes the instances again.
func Check(count int, dir string) (err error) {
	for range count {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
		if err != nil {
			return Explain(err)
		}
		defer func() { _ = unix.Close(fd) }()
		if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_DELETE_SELF); err != nil {
			return Explain(err)
		}
	}
	return nil
}
