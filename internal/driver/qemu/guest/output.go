// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/internal/driver/qemu/record"
	"cloudnative.tw/drover/internal/machine/imageagent"
	"cloudnative.tw/drover/internal/machine/output"
	"cloudnative.tw/drover/internal/machine/proc"
	"cloudnative.tw/drover/internal/terminal"
)

// openOutput opens the output of a container image's command.
func (g *Guests) openOutput(ctx context.Context, inst *instance.Instance, o driver.LogOptions) (io.ReadCloser, error) {
	selected := output.Options{From: inst.Guest.Output.Begin, TailLines: o.TailLines, FailsOnLoss: o.Attached}
	if o.Attached {
		selected.From[output.Stdout] += o.SkipStdout
		selected.From[output.Stderr] += o.SkipStderr
	}
	switch {
	case o.Previous && inst.Guest.Output.Previous == nil:
		return nil, driver.Errorf(driver.ErrRetry, "there was no run before this one")
	case o.Previous:
		selected.From, selected.To = *inst.Guest.Output.Previous, &inst.Guest.Output.Begin
	case o.Follow:
		selected.IsOver = func() (bool, *output.Positions, error) { return isOver(inst) }
	}
	if o.Follow && o.Attached {
		selected.HoldAfter = g.host.OutputBound / holdDivisor
		selected.Hold = func(ctx context.Context) { g.holdOutput(ctx, inst.UID) }
	}
	log, err := output.Open(ctx, inst.Machine.File, selected)
	if err != nil {
		return nil, classifyError(ctx, err)
	}
	return log, nil
}

// consoleLines is how many earlier lines of each stream a console begins with.
const consoleLines = 50

// Console implements driver.Consoler. The console of a container image shows the command's output, and writes to its input.
func (g *Guests) Console(ctx context.Context, uid types.UID) (io.ReadWriteCloser, error) {
	inst, err := g.findRunning(ctx, uid)
	if err != nil {
		return nil, err
	}
	if inst.Guest == nil || inst.Guest.Output == nil {
		return g.Guests.Console(ctx, uid) // the serial console
	}
	log, err := g.openOutput(ctx, inst, driver.LogOptions{Follow: true, TailLines: new(int64(consoleLines))})
	if err != nil {
		return nil, err
	}
	return g.NewImageConsole(ctx, uid, log, inst.Settings.Stdin, inst.Settings.TTY), nil
}

// holdDivisor bounds how far an attached reader may lag before the command is held back: OutputBound/holdDivisor.
const holdDivisor = 4

// holdInterval is the pause between two tries to hold a command back. A try fails while the supervisor is being replaced.
const holdInterval = time.Second / 4

// holdOutput holds a command back until ctx ends: it blocks the output, so that the command waits. If that fails, the
// reader may lose output, and gets an error then.
func (g *Guests) holdOutput(ctx context.Context, uid types.UID) {
	for ctx.Err() == nil {
		if c, err := g.clientOf(ctx, uid); err == nil {
			_, _ = c.Exec(ctx, terminal.Command{Args: []string{imageagent.HoldCommand}, Stdout: io.Discard, Stderr: io.Discard})
		}
		proc.Pause(ctx, holdInterval)
	}
}

// isOver reports whether the run of the instance has ended. It returns the position at which the output of the next run
// begins, or nil if unknown.
func isOver(inst *instance.Instance) (isOver bool, next *output.Positions, err error) {
	current, err := inst.Host.InstanceOf(inst.UID).Load()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return true, nil, nil
	case err != nil:
		return false, nil, err
	case current.Run != inst.Run:
		return true, nextBegin(inst.Guest.Output.Begin, current.Guest), nil
	}
	isRunning, err := inst.Machine.IsRunning()
	return !isRunning, nil, err
}

// nextBegin returns the start of the output of the run after the one at begin. If that is unknown, it returns the
// start of a later run, or nil.
func nextBegin(begin output.Positions, current *record.Guest) *output.Positions {
	switch {
	case current == nil || current.Output == nil:
		return nil
	case current.Output.Previous == nil || *current.Output.Previous == begin:
		return &current.Output.Begin
	}
	return current.Output.Previous
}
