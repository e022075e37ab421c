// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package confine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Names that the library lacks.
const (
	accessResolveUnix = 1 << 16
)

// Rights that are granted, as far as the kernel knows them.
const (
	executeRights = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE
	readRights    = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR
	deviceRights  = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	// fileRights are the rights that a rule of a file may have, unlike one of a folder.
	fileRights = executeRights | deviceRights
)

// feature has the kinds of access that an ABI introduced.
type feature struct {
	abi            int
	fs, net, scope uint64
	gap            string // the access that is possible without it
}

// features are in the order of their ABIs.
var features = []feature{
	{abi: 1, fs: unix.LANDLOCK_ACCESS_FS_MAKE_SYM<<1 - 1, gap: "opening files by their paths"},
	{abi: 2, fs: unix.LANDLOCK_ACCESS_FS_REFER}, // which ABI 1 always denies
	{abi: 3, fs: unix.LANDLOCK_ACCESS_FS_TRUNCATE, gap: "truncating files"},
	{abi: 4, net: unix.LANDLOCK_ACCESS_NET_BIND_TCP}, // the filter of system calls denies it anyway
	{abi: 5, fs: unix.LANDLOCK_ACCESS_FS_IOCTL_DEV},  // on devices, none of which can be opened
	{abi: 6, scope: unix.LANDLOCK_SCOPE_SIGNAL | unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET, gap: "signals to other processes, and their abstract sockets"},
	{abi: 9, fs: accessResolveUnix}, // the filter of system calls denies them anyway
}

// ABI returns the version of Landlock that the kernel has, 0 for none.
func ABI() int {
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(abi)
}

// Gaps returns what a version of Landlock does not prevent, though a newer one does.
func Gaps(abi int) []string {
	var gaps []string
	for _, f := range features {
		if f.abi > abi && f.gap != "" {
			gaps = append(gaps, f.gap)
		}
	}
	return gaps
}

// accesses are struct landlock_ruleset_attr of Linux.
type accesses struct{ fs, net, scope uint64 }

// pathRule is struct landlock_path_beneath_attr of Linux, whose end is not padded.
type pathRule struct {
	access uint64
	folder int32
}

// handled returns what a version of Landlock denies unless a rule grants it.
func handled(abi int) accesses {
	var all accesses
	for _, f := range features {
		if f.abi <= abi {
			all.fs |= f.fs
			all.net |= f.net
			all.scope |= f.scope
		}
	}
	return all
}

// makeRuleset returns the policy for the kernel; nil without Landlock.
func (p Policy) makeRuleset() (*os.File, error) {
	if p.ABI == 0 {
		return nil, nil //nolint:nilnil // Nil is for none.
	}
	handled := handled(p.ABI)
	if p.MaySignal {
		handled.scope &^= unix.LANDLOCK_SCOPE_SIGNAL
	}
	// Fields that an older kernel does not know are zero, which it accepts.
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&handled)), unsafe.Sizeof(handled), 0) //nolint:gosec // a system call
	if errno != 0 {
		return nil, fmt.Errorf("making a Landlock ruleset: %w", errno)
	}
	ruleset := os.NewFile(fd, "landlock")
	r := rules{fd: fd, handled: handled}
	if err := r.addAll(p); err != nil {
		return nil, errors.Join(err, ruleset.Close())
	}
	return ruleset, nil
}

// rules are a ruleset in the making.
type rules struct {
	fd      uintptr
	handled accesses
}

func (r rules) addAll(p Policy) error {
	for _, grant := range []struct {
		paths  []string
		rights uint64
	}{{p.Execute, executeRights}, {p.Read, readRights}, {p.Devices, deviceRights}} {
		for _, path := range grant.paths {
			if err := r.addPath(path, grant.rights); err != nil {
				return err
			}
		}
	}
	for _, file := range p.Reopen {
		err := r.addFile(int(file.Fd()), unix.LANDLOCK_ACCESS_FS_READ_FILE)
		if err != nil && !errors.Is(err, unix.EBADFD) { // Landlock lacks rules for files in memory, and allows them
			return fmt.Errorf("granting %s: %w", file.Name(), err)
		}
	}
	return nil
}

func (r rules) addPath(path string, rights uint64) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil // so the program cannot use it either
	}
	if err == nil {
		err = errors.Join(r.addFile(fd, rights), unix.Close(fd))
	}
	if err != nil {
		return fmt.Errorf("granting %s: %w", path, err)
	}
	return nil
}

func (r rules) addFile(fd int, rights uint64) error {
	var info unix.Stat_t
	if err := unix.Fstat(fd, &info); err != nil {
		return err
	}
	if info.Mode&unix.S_IFMT != unix.S_IFDIR {
		rights &= fileRights
	}
	rule := pathRule{access: rights & r.handled.fs, folder: int32(fd)}       //nolint:gosec // a descriptor
	return r.addRule(unix.LANDLOCK_RULE_PATH_BENEATH, unsafe.Pointer(&rule)) //nolint:gosec // a system call
}

func (r rules) addRule(kind uintptr, rule unsafe.Pointer) error {
	if _, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, r.fd, kind, uintptr(rule), 0, 0, 0); errno != 0 {
		return errno
	}
	return nil
}
