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

// openOutput opens what the command of a container image has printed.
func (g *Guests) openOutput(ctx context.Context, s *instance.Instance, o driver.LogOptions) (io.ReadCloser, error) {
	selected := output.Options{From: s.Guest.Output.Begin, TailLines: o.TailLines, MissesNone: o.Attached}
	if o.Attached {
		selected.From[output.Stdout] += o.SkipStdout
		selected.From[output.Stderr] += o.SkipStderr
	}
	switch {
	case o.Previous && s.Guest.Output.Previous == nil:
		return nil, driver.Errorf(driver.ErrRetry, "there was no run before this one")
	case o.Previous:
		selected.From, selected.To = *s.Guest.Output.Previous, &s.Guest.Output.Begin
	case o.Follow:
		selected.IsOver = func() (bool, *output.Positions, error) { return isOver(s) }
	}
	if o.Follow && o.Attached {
		selected.HoldAfter = g.host.OutputBound / holdPart
		selected.Hold = func(ctx context.Context) { g.holdOutput(ctx, s.UID) }
	}
	log, err := output.Open(ctx, s.Machine.File, selected)
	if err != nil {
		return nil, classifyError(ctx, err)
	}
	return log, nil
}

// consoleLines is how many earlier lines of each stream a console begins with.
const consoleLines = 50

// Console implements driver.Consoler. That of a container image shows the output of its command, and takes no input.
func (g *Guests) Console(ctx context.Context, uid types.UID) (io.ReadWriteCloser, error) {
	s, err := g.findRunning(ctx, uid)
	if err != nil {
		return nil, err
	}
	if s.Guest == nil || s.Guest.Output == nil {
		return g.Guests.Console(ctx, uid)
	}
	log, err := g.openOutput(ctx, s, driver.LogOptions{Follow: true, TailLines: new(int64(consoleLines))})
	return outputConsole{log}, err
}

// outputConsole is a console that only shows.
type outputConsole struct{ io.ReadCloser }

// Write implements io.Writer.
func (outputConsole) Write([]byte) (int, error) {
	return 0, driver.Errorf(driver.ErrUnsupported, "the command of a container image takes no input: run another beside it, as by exec -it")
}

// holdPart is which part of the output that is kept an attached reader may be behind until the guest is held back.
const holdPart = 4

// holdAgain is the pause between two tries to hold a guest back. Its supervisor may be about to be replaced.
const holdAgain = time.Second / 4

// holdOutput holds the output of a command back until ctx ends. Where that fails, the reader may lose output, and is
// told so.
func (g *Guests) holdOutput(ctx context.Context, uid types.UID) {
	for ctx.Err() == nil {
		if c, err := g.clientOf(ctx, uid); err == nil {
			_, _ = c.Exec(ctx, terminal.Command{Args: []string{imageagent.HoldCommand}, Stdout: io.Discard, Stderr: io.Discard})
		}
		proc.Pause(ctx, holdAgain)
	}
}

// isOver reports whether the run of a server has ended, and returns where the output of the next one begins, nil if none is
// known.
func isOver(s *instance.Instance) (isOver bool, next *output.Positions, err error) {
	now, err := s.Host.InstanceOf(s.UID).Load()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return true, nil, nil
	case err != nil:
		return false, nil, err
	case now.Run != s.Run:
		return true, nextBegin(s.Guest.Output.Begin, now.Guest), nil
	}
	on, err := s.Machine.IsRunning()
	return !on, nil, err
}

// nextBegin returns where the output of the run after one begins, or that of a later run if more have begun since.
func nextBegin(begin output.Positions, now *record.Guest) *output.Positions {
	switch {
	case now == nil || now.Output == nil:
		return nil
	case now.Output.Previous == nil || *now.Output.Previous == begin:
		return &now.Output.Begin
	}
	return now.Output.Previous
}
