// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package installation installs drover-machine on this host, for the processes that Drover starts from it: supervisors of
// machines, the broker and converters. Start with InstallProgram.
package installation

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/machine/proc"
)

// ProgramName is the name of the program in lists of processes.
const ProgramName = "drover-machine"

// MachineOption is followed by the machine's UUID, for those who look at processes.
const MachineOption = "-machine"

// Program is a version of the program that is installed on this host.
type Program struct {
	file   *os.File
	digest string
}

// Digest returns the hash of the program's content.
func (p *Program) Digest() string { return p.digest }

// File returns the program, to be executed by its descriptor. It stays open.
func (p *Program) File() *os.File { return p.file }

// maxProgram bounds the size of the program.
const maxProgram = 256 << 20

// Embedded is the program as a part of this one, nil for one that is installed beside it. It is set before any
// other use of the package.
var Embedded []byte

// InstallProgram copies the program into a folder, as a file of its content's hash that nobody can change but this
// program's user, and opens it. Every supervisor is executed by that descriptor. The program is the file at a path, or
// Embedded, or else the one beside this program.
func InstallProgram(folder, from string) (*Program, error) {
	source, closeSource, err := openSource(from)
	if err != nil {
		return nil, fmt.Errorf("the program drover-machine: %w", err)
	}
	defer closeSource()
	digest, err := digestOf(source)
	if err != nil {
		return nil, err
	}
	unlock, err := lockInstalls(folder)
	if err != nil {
		return nil, err
	}
	defer unlock()
	path := filepath.Join(folder, "drover-machine-"+digest[:16])
	opened, err := openProgram(path, digest)
	if err != nil {
		if err := copyProgram(source, folder, path); err != nil {
			return nil, err
		}
		opened, err = openProgram(path, digest)
	}
	if err == nil {
		removeOthers(folder, path)
		takeRoom(folder, opened.file)
	}
	return opened, err
}

// roomFile is a file whose room on the disk the next version of the program gets: machines need supervisors that it starts
// also if the disk is full when Drover is upgraded.
const roomFile = ".room"

// takeRoom takes the room of the next version of a program, which may be half as large again. Where that is not possible,
// the next version needs free room.
func takeRoom(folder string, program *os.File) {
	info, err := program.Stat()
	if err != nil {
		return
	}
	path := filepath.Join(folder, roomFile)
	if have, err := os.Lstat(path); err == nil && have.Size() >= info.Size() {
		return
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600) //nolint:gosec // in the caller's folder
	if err != nil {
		return
	}
	err = unix.Fallocate(int(f.Fd()), 0, 0, info.Size()*3/2)
	if err = errors.Join(err, f.Close()); err != nil {
		_ = os.Remove(path)
	}
}

// openRoom opens the file that reserves room for the next version. A killed installation may have written a part of it.
// isNew is set if the file did not exist.
func openRoom(folder string) (room *os.File, isNew bool, err error) {
	path := filepath.Join(folder, roomFile)
	err = os.Chmod(path, 0o600)
	isNew = errors.Is(err, fs.ErrNotExist)
	if err != nil && !isNew {
		return nil, false, err
	}
	room, err = os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600) //nolint:gosec // in the caller's folder
	return room, isNew, err
}

// copyProgram copies the program to a path in a folder, all of it or nothing. It is written into the room that was taken
// for it, which keeps its name until it is the program: whatever ends the copying, the next one has that room.
func copyProgram(source io.ReadSeeker, folder, path string) error {
	removeLeft(folder)
	room, isNew, err := openRoom(folder)
	if err != nil {
		return err
	}
	var size int64
	if _, err = source.Seek(0, io.SeekStart); err == nil {
		size, err = io.Copy(room, source)
	}
	if err == nil {
		err = errors.Join(room.Truncate(size), room.Chmod(0o555), room.Sync())
	}
	if err = errors.Join(err, room.Close()); err == nil {
		return os.Rename(room.Name(), path)
	}
	if isNew { // no room was taken for it
		err = errors.Join(err, os.Remove(room.Name()))
	}
	return err
}

// removeLeft removes the files that earlier versions of Drover copied to and left when they were killed.
func removeLeft(folder string) {
	left, _ := filepath.Glob(filepath.Join(folder, ".new-*"))
	for _, path := range left {
		_ = os.Remove(path)
	}
}

// lockTries is how often a lock is tried, every proc.PollEvery. An installation takes less than a second.
const lockTries = 2000

// lockInstalls keeps other processes from installing into a folder, which it makes, until unlock.
func lockInstalls(folder string) (unlock func(), err error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, err
	}
	lock, err := os.Open(folder) //nolint:gosec // the caller's
	if err != nil {
		return nil, err
	}
	for range lockTries {
		if err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
			break
		}
		<-time.After(proc.PollEvery)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("locking %s, into which another process may be installing drover-machine: %w", folder, err), lock.Close())
	}
	return func() { _ = lock.Close() }, nil
}

func digestOf(source io.Reader) (string, error) {
	sum := sha256.New()
	_, err := io.Copy(sum, source)
	return hex.EncodeToString(sum.Sum(nil)), err
}

// IsLatest reports whether no other version was installed since, which would have removed this one.
func (p *Program) IsLatest() bool {
	installed, err := os.Stat(p.file.Name())
	if err != nil {
		return false
	}
	own, err := p.file.Stat()
	return err == nil && os.SameFile(installed, own)
}

// removeOthers removes other versions. Those who execute one keep it.
func removeOthers(folder, kept string) {
	versions, _ := filepath.Glob(filepath.Join(folder, "drover-machine-*"))
	for _, path := range versions {
		if path != kept {
			_ = os.Remove(path)
		}
	}
}

// openSource opens the program to install. Callers stream it, which keeps it out of the controller's memory.
func openSource(path string) (source io.ReadSeeker, closeSource func(), err error) {
	if path == "" && Embedded != nil {
		return bytes.NewReader(Embedded), func() {}, nil
	}
	if path == "" {
		if path, err = findProgram(); err != nil {
			return nil, nil, err
		}
	}
	f, err := os.Open(path) //nolint:gosec // the caller's
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil && (!info.Mode().IsRegular() || info.Size() > maxProgram) {
		err = fmt.Errorf("%s must be a file of at most %d bytes", path, maxProgram)
	}
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, func() { _ = f.Close() }, nil
}

// openProgram opens a file that has to be what it was made as.
func openProgram(path, digest string) (*Program, error) {
	f, err := os.Open(path) //nolint:gosec // in the caller's folder
	if err != nil {
		return nil, err
	}
	have, err := digestOf(f)
	if err == nil && have != digest {
		err = fmt.Errorf("%s was changed", path)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &Program{f, digest}, nil
}

// findProgram returns the path of the program that is installed beside this one.
func findProgram() (string, error) {
	own, err := os.Executable()
	if err != nil {
		return "", err
	}
	path := filepath.Join(filepath.Dir(own), "drover-machine")
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%s is missing: install drover-machine beside %s", path, filepath.Base(own))
	}
	return path, nil
}
