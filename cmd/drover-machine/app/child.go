// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/proc"
	"cloudnative.tw/drover/internal/machine/supervisor"
)

const (
	// quitMargin is the part of the grace period that is reserved for QEMU to quit before SIGKILL. It
	// is longer than machine.QuitWithin. At most half of the grace period is reserved.
	quitMargin = 3 * time.Second
	// maxLog bounds QEMU's log. The error of a failed start has its last lastOutput bytes.
	maxLog, lastOutput = 256 << 10, 1 << 10
)

// child is the QEMU that this program has started.
type child struct {
	machine     machine.Machine
	exited      <-chan string
	accelerator string
}

var _ supervisor.Process = (*child)(nil)

// Exited implements supervisor.Process.
func (c *child) Exited() <-chan string { return c.exited }

// Kill implements supervisor.Process.
func (c *child) Kill(ctx context.Context) error { return c.machine.Kill(ctx) }

// WaitExited implements supervisor.Process.
func (c *child) WaitExited(ctx context.Context) error {
	return c.machine.WaitStopped(ctx, machine.QuitWithin)
}

// Usage implements supervisor.Process.
func (c *child) Usage() (proc.Usage, error) { return proc.ReadUsage(c.machine.PID()) }

// LastOutput implements supervisor.Process.
func (c *child) LastOutput(maxBytes int) string { return c.machine.LastOutput(maxBytes) }

// CutLogs implements supervisor.Process. It truncates only QEMU's log: the guest's output goes to standard output.
func (c *child) CutLogs() error {
	log, err := os.OpenFile(c.machine.File(machine.LogFile), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	oldLog, err := os.OpenFile(c.machine.File(machine.LogFile+machine.OldLog), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = oldLog.Close() }()
	return machine.CutLog(log, oldLog, maxLog)
}

// explainStartError adds the exit status and last output of QEMU to err, if QEMU has ended.
func (c *child) explainStartError(err error) error {
	select {
	case exitStatus := <-c.exited:
		return fmt.Errorf("%s: %w", describeEnd(exitStatus, c.LastOutput(lastOutput)), err)
	default:
		return err
	}
}

func describeEnd(exitStatus, output string) string {
	return strings.TrimSuffix("QEMU ended with "+exitStatus+": "+output, ": ")
}
