// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"fmt"
	"os"
)

// firstPassed is the first descriptor of passed that QEMU gets: those before are the
// standard streams and the run lock.
const firstPassed = 4

// passed are files that QEMU gets as open descriptors. So it uses what was checked,
// whatever their paths lead to by then.
type passed struct {
	files []*os.File
	// sets are the descriptors of the files that are in a set: see arguments.
	sets []int
}

// add takes over the file of a disk and returns the name by which QEMU opens it.
func (p *passed) add(f *os.File) (path string) {
	p.sets = append(p.sets, p.inherit(f))
	return fmt.Sprintf("/dev/fdset/%d", p.sets[len(p.sets)-1])
}

// addPlain takes over a file that QEMU does not look for in a set, such as a kernel. It
// returns the name by which QEMU opens the same file again.
func (p *passed) addPlain(f *os.File) (path string) {
	return fmt.Sprintf("/proc/self/fd/%d", p.inherit(f))
}

// inherit returns the number that a file's descriptor will have in QEMU.
func (p *passed) inherit(f *os.File) int {
	p.files = append(p.files, f)
	return firstPassed + len(p.files) - 1
}

// close closes Drover's descriptors; QEMU has its own.
func (p *passed) close() {
	for _, f := range p.files {
		_ = f.Close()
	}
}

// arguments puts the descriptor of each disk into a set of its own, from which QEMU takes
// it as if it had opened the name. It must be open in exactly the mode in which QEMU
// opens it.
func (p *passed) arguments() []string {
	if p == nil {
		return nil
	}
	var args []string
	for _, fd := range p.sets {
		args = append(args, "-add-fd", fmt.Sprintf("fd=%d,set=%[1]d", fd))
	}
	return args
}

// inherited returns what QEMU inherits, in order, beside the standard streams.
func (p *passed) inherited(runLock *os.File) []*os.File {
	all := []*os.File{runLock}
	if p != nil {
		all = append(all, p.files...)
	}
	return all
}
