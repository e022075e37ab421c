// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Descriptors that each QEMU gets after the standard streams, and the first one of Files.
const (
	runLockFD = 3 + iota
	controlFD
	eventsFD
	serialFD
	serialLogFD
	firstFile
)

// Files are files that QEMU gets as open descriptors. So it uses what was checked,
// whatever their paths lead to by then.
type Files struct {
	files []*os.File
	// plain are those that QEMU opens again.
	plain []*os.File
	// sets are the descriptors of the files that are in a set: see arguments.
	sets []int
}

// AddDisk takes over the file of a disk and returns the name by which QEMU opens it.
func (f *Files) AddDisk(file *os.File) (path string) {
	fd := f.addInherited(file)
	f.sets = append(f.sets, fd)
	return fdsetName(fd)
}

// AddPlain takes over a file that QEMU does not look for in a set, such as a kernel. It
// returns the name by which QEMU opens the same file again.
func (f *Files) AddPlain(file *os.File) (path string) {
	f.plain = append(f.plain, file)
	return fmt.Sprintf("/proc/self/fd/%d", f.addInherited(file))
}

// addInherited returns the number that a file's descriptor will have in QEMU.
func (f *Files) addInherited(file *os.File) int {
	f.files = append(f.files, file)
	return firstFile + len(f.files) - 1
}

// Close closes this program's descriptors; QEMU has its own.
func (f *Files) Close() { closeFiles(f.files) }

// arguments puts the descriptor of each disk into a set of its own, from which QEMU takes
// it as if it had opened the name. It must be open in exactly the mode in which QEMU
// opens it.
func (f *Files) arguments() []string {
	if f == nil {
		return nil
	}
	var args []string
	for _, fd := range f.sets {
		args = append(args, fdsetArguments(fd)...)
	}
	return args
}

// fdsetName returns the name by which QEMU opens a descriptor that is in a set.
func fdsetName(fd int) string { return fmt.Sprintf("/dev/fdset/%d", fd) }

// fdsetArguments puts a descriptor into the set of its number.
func fdsetArguments(fd int) []string {
	return []string{"-add-fd", fmt.Sprintf("fd=%d,set=%[1]d", fd)}
}

// inherited returns the files, in order. There may be none.
func (f *Files) inherited() []*os.File {
	if f == nil {
		return nil
	}
	return f.files
}

// openEndpoints opens what QEMU is reached by and prints to, in the order of the
// descriptors. The caller closes the files, also when it fails.
func (m Machine) openEndpoints() (files []*os.File, err error) {
	for _, socket := range sockets {
		listener, err := m.listen(socket)
		if err != nil {
			return files, err
		}
		files = append(files, listener)
	}
	log, err := os.OpenFile(m.File(SerialLogFile), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return files, err
	}
	return append(files, log), nil
}

// listen makes a socket in the directory, in place of one that an earlier run has left.
func (m Machine) listen(socket string) (*os.File, error) {
	if err := os.Remove(m.File(socket)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", m.File(socket), err)
	}
	listener := os.NewFile(uintptr(fd), m.File(socket))
	err = m.atSocket(socket, func(path string) error {
		// The file gets the mode that the socket has by then.
		return errors.Join(unix.Fchmod(fd, 0o600), unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, unix.SOMAXCONN))
	})
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}

func closeFiles(files []*os.File) {
	for _, file := range files {
		_ = file.Close()
	}
}
