// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"fmt"
	"os"
)

// Descriptors that each QEMU process inherits after the standard streams. The files that a
// MachineConfig names have descriptors from firstFD on.
const (
	runLockFD = 3 + iota
	controlFD
	eventsFD
	serialFD
	serialLogFD
	networkFD
	firstFD
)

// Endpoints are the open files that each QEMU process inherits.
type Endpoints struct {
	// RunLock is an open lock file. It stays locked while QEMU, which does not use it, keeps it open.
	RunLock *os.File
	// Control and Events are listening sockets for QMP, and Serial is a listening socket for
	// the serial console.
	Control, Events, Serial *os.File
	// SerialLog receives the output of the serial console. It is opened for appending.
	SerialLog *os.File
	// Network is a listening socket for the frames of the guest's network.
	Network *os.File
}

func (e Endpoints) files() []*os.File {
	return []*os.File{e.RunLock, e.Control, e.Events, e.Serial, e.SerialLog, e.Network}
}

// Files are the open files and sockets that a MachineConfig names. QEMU inherits descriptors,
// so it uses exactly the files that were checked, even if their paths were replaced.
type Files struct{ files []*os.File }

// Add takes ownership of a file, and returns the descriptor that the file will have in QEMU. A
// disk must be open for reading and writing, unless it is read-only.
func (f *Files) Add(file *os.File) (fd int) {
	f.files = append(f.files, file)
	return firstFD + len(f.files) - 1
}

// Close closes this program's descriptors; QEMU has duplicates.
func (f *Files) Close() {
	for _, file := range f.files {
		_ = file.Close()
	}
}

// fileOf returns the file for a descriptor of a valid MachineConfig.
func (f *Files) fileOf(fd int) *os.File { return f.files[fd-firstFD] }

// fdsetName returns the path that makes QEMU use a descriptor of an fdset in place of opening
// a file.
func fdsetName(fd int) string { return fmt.Sprintf("/dev/fdset/%d", fd) }

// fdsetArguments puts a descriptor into the fdset with its number.
func fdsetArguments(fd int) []string {
	return []string{"-add-fd", fmt.Sprintf("fd=%d,set=%[1]d", fd)}
}

// reopenName returns a path that opens the file of a descriptor again, for options in which
// QEMU does not support fdsets.
func reopenName(fd int) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }
