// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"fmt"
	"os"
)

// firstFile is the first descriptor of Files that QEMU gets: those before are the
// standard streams and the run lock.
const firstFile = 4

// Files are files that QEMU gets as open descriptors. So it uses what was checked,
// whatever their paths lead to by then.
type Files struct {
	files []*os.File
	// sets are the descriptors of the files that are in a set: see arguments.
	sets []int
}

// AddDisk takes over the file of a disk and returns the name by which QEMU opens it.
func (f *Files) AddDisk(file *os.File) (path string) {
	f.sets = append(f.sets, f.addInherited(file))
	return fmt.Sprintf("/dev/fdset/%d", f.sets[len(f.sets)-1])
}

// AddPlain takes over a file that QEMU does not look for in a set, such as a kernel. It
// returns the name by which QEMU opens the same file again.
func (f *Files) AddPlain(file *os.File) (path string) {
	return fmt.Sprintf("/proc/self/fd/%d", f.addInherited(file))
}

// addInherited returns the number that a file's descriptor will have in QEMU.
func (f *Files) addInherited(file *os.File) int {
	f.files = append(f.files, file)
	return firstFile + len(f.files) - 1
}

// Close closes this program's descriptors; QEMU has its own.
func (f *Files) Close() {
	for _, file := range f.files {
		_ = file.Close()
	}
}

// arguments puts the descriptor of each disk into a set of its own, from which QEMU takes
// it as if it had opened the name. It must be open in exactly the mode in which QEMU
// opens it.
func (f *Files) arguments() []string {
	if f == nil {
		return nil
	}
	var args []string
	for _, fd := range f.sets {
		args = append(args, "-add-fd", fmt.Sprintf("fd=%d,set=%[1]d", fd))
	}
	return args
}

// inheritedFiles returns what QEMU inherits, in order, beside the standard streams.
func (f *Files) inheritedFiles(runLock *os.File) []*os.File {
	all := []*os.File{runLock}
	if f != nil {
		all = append(all, f.files...)
	}
	return all
}
