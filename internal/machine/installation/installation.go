// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package installation installs drover-machine on this host. Drover runs that program as supervisors of machines, as the
// broker and as converters. Start with InstallProgram.
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

// MachineOption is followed by the machine's mark.
const MachineOption = "-machine"

// Program is an installed version of drover-machine.
type Program struct {
	file   *os.File
	digest string
}

// Digest returns the hash of the program's content.
func (p *Program) Digest() string { return p.digest }

// File returns the program's file. Callers execute its descriptor, and do not close it.
func (p *Program) File() *os.File { return p.file }

// maxProgram bounds the size of the program.
const maxProgram = 256 << 20

// Embedded is drover-machine if it is a part of this program, else nil. It is set before any other use of the
// package.
var Embedded []byte

// InstallProgram copies drover-machine into a folder that only this program's user can change, under a name with the
// hash of the content, and opens the copy. It installs the file at the path from. If from is empty, it installs
// Embedded, or else the file beside this program.
func InstallProgram(folder, from string) (*Program, error) {
	source, closeSource, err := openSource(from)
	if err != nil {
		return nil, fmt.Errorf("opening the program drover-machine: %w", err)
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
		reserveSpace(folder, opened.file)
	}
	return opened, err
}

// reserveFile reserves disk space for the next version of drover-machine: Drover must be able to start supervisors even if
// the disk is full at an upgrade.
const reserveFile = ".room"

// reserveSpace reserves space for the next version of a program, which may be half as large again. It ignores errors, since
// the next version may find free space.
func reserveSpace(folder string, program *os.File) {
	info, err := program.Stat()
	if err != nil {
		return
	}
	path := filepath.Join(folder, reserveFile)
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

// openReserve opens the file with the reserved space. A killed installation may have written a part of it. isNew is set if
// the file did not exist.
func openReserve(folder string) (reserved *os.File, isNew bool, err error) {
	path := filepath.Join(folder, reserveFile)
	err = os.Chmod(path, 0o600)
	isNew = errors.Is(err, fs.ErrNotExist)
	if err != nil && !isNew {
		return nil, false, err
	}
	reserved, err = os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600) //nolint:gosec // in the caller's folder
	return reserved, isNew, err
}

// copyProgram copies the program to a path in a folder atomically. It writes into the reserved space, and renames the file
// only when it is complete: if the copying fails, the next attempt still has the space.
func copyProgram(source io.ReadSeeker, folder, path string) error {
	removeTemporary(folder)
	reserved, isNew, err := openReserve(folder)
	if err != nil {
		return err
	}
	var size int64
	if _, err = source.Seek(0, io.SeekStart); err == nil {
		size, err = io.Copy(reserved, source)
	}
	if err == nil {
		err = errors.Join(reserved.Truncate(size), reserved.Chmod(0o555), reserved.Sync())
	}
	if err = errors.Join(err, reserved.Close()); err == nil {
		return os.Rename(reserved.Name(), path)
	}
	if isNew { // the file holds no reserved space
		err = errors.Join(err, os.Remove(reserved.Name()))
	}
	return err
}

// removeTemporary removes the temporary files of earlier versions of Drover that were killed while they copied.
func removeTemporary(folder string) {
	temporary, _ := filepath.Glob(filepath.Join(folder, ".new-*"))
	for _, path := range temporary {
		_ = os.Remove(path)
	}
}

// lockTries is how often a lock is tried, every proc.PollEvery. An installation takes less than a second.
const lockTries = 2000

// lockInstalls makes a folder, and keeps other processes from installing into it until unlock.
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

// IsLatest reports whether this version is still installed. To install another version removes it.
func (p *Program) IsLatest() bool {
	installed, err := os.Stat(p.file.Name())
	if err != nil {
		return false
	}
	own, err := p.file.Stat()
	return err == nil && os.SameFile(installed, own)
}

// removeOthers removes other versions. Processes that execute one of them go on.
func removeOthers(folder, kept string) {
	versions, _ := filepath.Glob(filepath.Join(folder, "drover-machine-*"))
	for _, path := range versions {
		if path != kept {
			_ = os.Remove(path)
		}
	}
}

// openSource opens the program to install. It does not read the file as a whole, to spare the controller's memory.
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

// openProgram opens an installed program, and checks that its content has the digest.
func openProgram(path, digest string) (*Program, error) {
	f, err := os.Open(path) //nolint:gosec // in the caller's folder
	if err != nil {
		return nil, err
	}
	have, err := digestOf(f)
	if err == nil && have != digest {
		err = fmt.Errorf("the content of %s was changed after its installation", path)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &Program{f, digest}, nil
}

// findProgram returns the path of drover-machine in the folder of this program.
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
