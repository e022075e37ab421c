// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"fmt"
	"os"
)

// Descriptors that each QEMU gets after the standard streams. The files that its Config
// names have descriptors from firstFD on.
const (
	runLockFD = 3 + iota
	controlFD
	eventsFD
	serialFD
	serialLogFD
	networkFD
	firstFD
)

// Endpoints are open files that each QEMU gets, whatever its Config.
type Endpoints struct {
	// RunLock is held by QEMU, which does not know of it.
	RunLock *os.File
	// Control and Events are listening sockets that speak QMP, and Serial is one for the
	// serial console.
	Control, Events, Serial *os.File
	// SerialLog gets what the guest prints on its serial console. It appends.
	SerialLog *os.File
	// Network is a listening socket for the frames of the guest's network.
	Network *os.File
}

func (e Endpoints) files() []*os.File {
	return []*os.File{e.RunLock, e.Control, e.Events, e.Serial, e.SerialLog, e.Network}
}

// Files are the open files and sockets that a Config names. QEMU gets descriptors, so it uses
// the files that were checked, even if their paths lead to others by then.
type Files struct{ files []*os.File }

// Add takes over a file, and returns the descriptor that it will have in QEMU. A disk must
// be open in the mode in which QEMU opens it: for reading and writing unless it is
// read-only.
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

// fileOf returns the file of a descriptor that a checked Config names.
func (f *Files) fileOf(fd int) *os.File { return f.files[fd-firstFD] }

// fdsetName returns the name by which QEMU opens a descriptor that is in a set. It takes
// the descriptor as if it had opened the name.
func fdsetName(fd int) string { return fmt.Sprintf("/dev/fdset/%d", fd) }

// fdsetArguments puts a descriptor into the set of its number.
func fdsetArguments(fd int) []string {
	return []string{"-add-fd", fmt.Sprintf("fd=%d,set=%[1]d", fd)}
}

// reopenName returns the name by which QEMU opens the file of a descriptor again, where it
// does not look for the name of a set.
func reopenName(fd int) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }
