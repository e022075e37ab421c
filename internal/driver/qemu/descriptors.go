// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"fmt"
	"os"
)

// firstPassed is the first descriptor that QEMU gets of passed: those before are the
// standard streams and the run lock.
const firstPassed = 4

// passed are files that QEMU gets as open descriptors, so that what was checked is what
// it uses, whatever their paths lead to by then.
type passed struct{ files []*os.File }

// add takes a file over and returns the name by which QEMU opens it.
func (p *passed) add(f *os.File) (path string) {
	p.files = append(p.files, f)
	return fmt.Sprintf("/dev/fdset/%d", firstPassed+len(p.files)-1)
}

// close closes Drover's descriptors; QEMU has its own.
func (p *passed) close() {
	for _, f := range p.files {
		_ = f.Close()
	}
}

// arguments put each descriptor into a set of its own, from which QEMU takes it as if it
// had opened the name. It has to be open for exactly what QEMU opens it for.
func (p *passed) arguments() []string {
	if p == nil {
		return nil
	}
	var args []string
	for i := range p.files {
		args = append(args, "-add-fd", fmt.Sprintf("fd=%d,set=%[1]d", firstPassed+i))
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
