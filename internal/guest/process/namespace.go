// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package process

import (
	"fmt"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// Namespace is a PID namespace. Its process 1 is the first process that is started in it, and its end ends all
// others: pid_namespaces(7).
type Namespace struct {
	calls chan func()
}

// NewNamespace makes a namespace.
func NewNamespace() (*Namespace, error) {
	n := &Namespace{calls: make(chan func())}
	made := make(chan error)
	go n.serve(made)
	if err := <-made; err != nil {
		return nil, fmt.Errorf("make a PID namespace: %w", err)
	}
	return n, nil
}

// serve makes calls on a thread whose children are in the namespace. The program itself stays where it is.
func (n *Namespace) serve(made chan<- error) {
	runtime.LockOSThread()
	err := unix.Unshare(unix.CLONE_NEWPID)
	made <- err
	if err != nil {
		return
	}
	for call := range n.calls {
		call()
	}
}

// forkExec is syscall.ForkExec in the namespace, or in this program's if n is nil.
func (n *Namespace) forkExec(path string, args []string, attributes *syscall.ProcAttr) (pid int, err error) {
	fork := func() { pid, err = syscall.ForkExec(path, args, attributes) } //nolint:gosec // the machine is for it
	if n == nil {
		fork()
		return pid, err
	}
	done := make(chan struct{})
	n.calls <- func() {
		defer close(done)
		fork()
	}
	<-done
	return pid, err
}
