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
var errDeleting = errors.New("it is being deleted")

// batch has the flags and the result of a verb that changes several VMs and may wait for them.
type batch struct {
	*kit.Options
	vms.Selection
	wait    bool
	timeout time.Duration
	failed  bool
}

// addFailure reports the failure of one VM, with which the others go on. After Ctrl-C there is nothing
// to report.
func (b *batch) addFailure(name string, err error) {
	b.failed = true
	if !errors.Is(err, context.Canceled) {
		_, _ = fmt.Fprintf(b.ErrOut, "error: %s\n", vms.DescribeFailure(b.Options, name, err))
	}
}

// exitError returns the error of a run in which a VM has failed.
func (b *batch) exitError() error {
	if b.failed {
		return &kit.ExitError{Code: 1}
	}
	return nil
}
