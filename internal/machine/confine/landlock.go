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

// accessResolveUnix is LANDLOCK_ACCESS_FS_RESOLVE_UNIX, which package unix lacks.
const accessResolveUnix = 1 << 16

// Rights that rules grant, as far as the kernel supports them.
const (
	executeRights = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE
	readRights    = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR
	deviceRights  = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	// fileRights are the rights that a rule for a file may grant. A rule for a folder may grant more.
	fileRights = executeRights | deviceRights
)

// feature has the kinds of access that an ABI of Landlock can restrict for the first time.
type feature struct {
	abi            int
	fs, net, scope uint64
	gap            string // the access that an older kernel leaves open
}

// features are in the order of their ABIs.
var features = []feature{
	{abi: 1, fs: unix.LANDLOCK_ACCESS_FS_MAKE_SYM<<1 - 1, gap: "opening files by their paths"},
	{abi: 2, fs: unix.LANDLOCK_ACCESS_FS_REFER}, // ABI 1 always denies it
	{abi: 3, fs: unix.LANDLOCK_ACCESS_FS_TRUNCATE, gap: "truncating files"},
	{abi: 4, net: unix.LANDLOCK_ACCESS_NET_BIND_TCP}, // the filter of system calls denies it anyway
	{abi: 5, fs: unix.LANDLOCK_ACCESS_FS_IOCTL_DEV},  // on devices, none of which can be opened
	{abi: 6, scope: unix.LANDLOCK_SCOPE_SIGNAL | unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET, gap: "signals to other processes, and their abstract sockets"},
	{abi: 9, fs: accessResolveUnix}, // the filter of system calls denies them anyway
}

// ABI returns the version of the kernel's Landlock, 0 for none.
func ABI() int {
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(abi)
}

// Gaps returns the kinds of access that a version of Landlock leaves open, but a newer version prevents.
func Gaps(abi int) []string {
	var gaps []string
	for _, f := range features {
		if f.abi > abi && f.gap != "" {
			gaps = append(gaps, f.gap)
		}
	}
	return gaps
}

// accesses is Linux's struct landlock_ruleset_attr.
type accesses struct{ fs, net, scope uint64 }

// pathRule is Linux's struct landlock_path_beneath_attr. The kernel's struct is packed.
type pathRule struct {
	access uint64
	folder int32
}

// handledAccesses returns the kinds of access that are denied unless a rule grants them.
func handledAccesses(abi int) accesses {
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

// makeRuleset returns a Landlock ruleset for the policy, nil without Landlock.
func (p Policy) makeRuleset() (*os.File, error) {
	if p.ABI == 0 {
		return nil, nil //nolint:nilnil // Landlock is not used.
	}
	handled := handledAccesses(p.ABI)
	if p.MaySignal {
		handled.scope &^= unix.LANDLOCK_SCOPE_SIGNAL
	}
	// An older kernel accepts the larger struct, since the fields that it does not know are zero.
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

// rules is a ruleset to which rules are being added.
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
		if err != nil && !errors.Is(err, unix.EBADFD) { // Landlock neither restricts files in memory nor accepts rules for them
			return fmt.Errorf("adding a Landlock rule for %s: %w", file.Name(), err)
		}
	}
	return nil
}

func (r rules) addPath(path string, rights uint64) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil // the program cannot use the path anyway
	}
	if err == nil {
		err = errors.Join(r.addFile(fd, rights), unix.Close(fd))
	}
	if err != nil {
		return fmt.Errorf("adding a Landlock rule for %s: %w", path, err)
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
