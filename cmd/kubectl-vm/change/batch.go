// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package change

import (
	"context"
	"errors"
	"fmt"
	"time"

	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
	vms "cloudnative.tw/drover/cmd/kubectl-vm/vm"
)

// errDeleting means that a VM is being deleted.
var errDeleting = errors.New("the VM is being deleted")

// batch has the flags and the result of a verb that changes several VMs and may wait for them.
type batch struct {
	*kit.Options
	vms.Selection
	wait    bool
	timeout time.Duration
	failed  bool
}

// addFailure prints the error of one VM and records the failure, so that the verb can continue with the other
// VMs. It does not print the error that Ctrl-C causes.
func (b *batch) addFailure(name string, err error) {
	b.failed = true
	if !errors.Is(err, context.Canceled) {
		_, _ = fmt.Fprintf(b.ErrOut, "error: %s\n", vms.DescribeFailure(b.Options, name, err))
	}
}

// exitError returns the exit code of the verb as an error, if a VM has failed.
func (b *batch) exitError() error {
	if b.failed {
		return &kit.ExitError{Code: 1}
	}
	return nil
}
