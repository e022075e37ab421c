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
	// quitMargin is how long before SIGKILL QEMU is ended, which takes up to machine.QuitWithin.
	// A short grace period has half of itself.
	quitMargin = 3 * time.Second
	// maxLog bounds the log of QEMU, and lastOutput what of it explains that it has ended.
	maxLog, lastOutput = 256 << 10, 1 << 10
)

// child is a QEMU that this program has started.
type child struct {
	machine     machine.Machine
	ended       <-chan string
	accelerator string
}

var _ supervisor.Process = (*child)(nil)

// Gone implements supervisor.Process.
func (c *child) Gone() <-chan string { return c.ended }

// Kill implements supervisor.Process.
func (c *child) Kill(ctx context.Context) error { return c.machine.Kill(ctx) }

// WaitGone implements supervisor.Process.
func (c *child) WaitGone(ctx context.Context) error {
	return c.machine.WaitStopped(ctx, machine.QuitWithin)
}

// Usage implements supervisor.Process.
func (c *child) Usage() (proc.Usage, error) { return proc.ReadUsage(c.machine.PID()) }

// LastOutput implements supervisor.Process.
func (c *child) LastOutput(most int) string { return c.machine.LastOutput(most) }

// CutLogs implements supervisor.Process. What the guest prints is in no file.
func (c *child) CutLogs() error {
	log, err := os.OpenFile(c.machine.File(machine.LogFile), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	aside, err := os.OpenFile(c.machine.File(machine.LogFile+machine.OldLog), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = aside.Close() }()
	return machine.CutLog(log, aside, maxLog)
}

// explainStart adds how QEMU has ended, if that is why its guest was not resumed.
func (c *child) explainStart(err error) error {
	select {
	case how := <-c.ended:
		return fmt.Errorf("%s: %w", describeEnd(how, c.LastOutput(lastOutput)), err)
	default:
		return err
	}
}

// describeEnd returns how QEMU has ended, with its last output.
func describeEnd(ending, output string) string {
	return strings.TrimSuffix("QEMU ended with "+ending+": "+output, ": ")
}
