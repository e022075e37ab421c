// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/qmp"
)

// Run follows the guest until it has ended, and QEMU is made to quit. If ctx ends before, only the
// supervisor ends.
func (s *Supervisor) Run(ctx context.Context) (End, error) {
	defer s.client.Close()
	f := follower{supervisor: s}
	for {
		if end := f.lookAtGuest(ctx); end != nil {
			return *end, nil
		}
		check := s.Clock.NewTimer(s.progress.checkAfter())
		select {
		case <-ctx.Done():
			check.Stop()
			return End{}, context.Cause(ctx)
		case how := <-s.process.Gone():
			check.Stop()
			return f.explainKill(how), nil
		case fault := <-s.faults:
			f.fault = fault
		case <-s.changed:
		case <-check.C():
		}
		check.Stop()
	}
}

// follower looks at a guest again and again, and does what it needs.
type follower struct {
	supervisor *Supervisor

	isSilent  bool // QEMU did not answer the last time
	fault     machine.DiskFault
	resumedAt time.Time
	pressedAt time.Time
	said      string // what was logged that the guest waits for
}

// explainKill returns the end of a run whose QEMU has ended without one.
func (f *follower) explainKill(how string) End {
	e := End{Reason: machine.EndKilled, Output: f.supervisor.process.LastOutput(lastOutput), At: f.supervisor.Clock.Now()}
	if how != "" {
		e.Message = "QEMU ended with " + how
	}
	if err := f.recordEnd(e); err != nil {
		f.supervisor.Log.Error(err, "End of the machine could not be recorded", "reason", e.Reason)
	}
	return e
}

func (f *follower) recordEnd(e End) error {
	if f.supervisor.RecordEnd == nil {
		return nil
	}
	return f.supervisor.RecordEnd(e)
}

// lookAtGuest looks at the guest, helps it, and makes QEMU quit if the guest has ended or is to be ended by
// force; nil means that it has not ended.
func (f *follower) lookAtGuest(ctx context.Context) *End {
	bounded, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	status, err := f.supervisor.monitor.Status(bounded)
	if err != nil && ctx.Err() != nil {
		return nil
	}
	f.isSilent = err != nil
	reason, hasEnded := machine.EndOf(status)
	why := f.supervisor.progress.findForce()
	switch {
	case hasEnded:
		return f.finishRun(ctx, End{Reason: reason})
	case why != "":
		return f.finishRun(ctx, End{Reason: machine.EndForced, Message: why})
	case f.isSilent:
		f.setWait(errors.New("QEMU does not answer"))
		return nil
	}
	f.helpGuest(bounded, status)
	if err := f.supervisor.process.CutLogs(); err != nil {
		f.supervisor.Log.Info("Logs could not be cut", "cause", err.Error())
	}
	return nil
}

// finishRun records an end and makes QEMU quit, with its disks consistent if that is possible. It returns
// nil if the end cannot be recorded yet.
func (f *follower) finishRun(ctx context.Context, e End) *End {
	e.At = f.supervisor.Clock.Now()
	if e.Reason == machine.EndPanicked || e.Reason == machine.EndInternalError {
		e.Output = f.supervisor.process.LastOutput(lastOutput)
	}
	if err := f.recordEnd(e); err != nil {
		f.setWait(fmt.Errorf("the end of the run cannot be recorded, so QEMU does not quit yet: %w", err))
		return nil
	}
	if f.quitQEMU(ctx) != nil {
		if err := f.supervisor.process.Kill(ctx); err != nil && ctx.Err() == nil {
			f.supervisor.Log.Error(err, "QEMU could not be ended")
		}
	}
	return &e
}

// quitQEMU has QEMU end itself.
func (f *follower) quitQEMU(ctx context.Context) error {
	if f.isSilent {
		return errors.New("QEMU does not answer")
	}
	bounded, cancel := context.WithTimeout(ctx, machine.QuitWithin)
	defer cancel()
	err := f.supervisor.monitor.Execute(bounded, "quit", nil, nil)
	if _, refused := errors.AsType[*qmp.Error](err); refused {
		return err
	}
	return f.supervisor.process.WaitGone(bounded)
}

// helpGuest does what a guest in a run state needs: it resumes one that waits for its disk, and presses the
// power button of one that is to stop.
func (f *follower) helpGuest(ctx context.Context, status string) {
	if status == machine.StatusIOError {
		f.resumeDisk(ctx)
		return
	}
	if f.supervisor.IsStopping() && f.supervisor.Clock.Since(f.pressedAt) >= machine.PressEvery {
		f.pressedAt = f.supervisor.Clock.Now()
		isPaused := status == machine.StatusPaused || status == machine.StatusPrelaunch
		if err := f.supervisor.monitor.PowerDown(ctx, isPaused); err != nil {
			f.supervisor.Log.Info("Power button could not be pressed", "cause", err.Error())
		}
	}
	f.setWait(nil)
}

// resumeDisk resumes a guest that a disk error has paused: it repeats the request.
func (f *follower) resumeDisk(ctx context.Context) {
	select {
	case f.fault = <-f.supervisor.faults:
	default:
	}
	fault := machine.FindDiskFault(ctx, f.supervisor.monitor, f.fault)
	f.supervisor.progress.setFault(fault)
	f.setWait(fault.Explain())
	if f.supervisor.Clock.Since(f.resumedAt) < machine.ResumeAgain {
		return
	}
	f.resumedAt = f.supervisor.Clock.Now()
	_ = f.supervisor.monitor.Execute(ctx, "cont", nil, nil)
}

// setWait sets what the guest waits for, and logs a change; nil means nothing.
func (f *follower) setWait(cause error) {
	f.supervisor.progress.setWait(cause)
	now := ""
	if cause != nil {
		now = cause.Error()
	}
	switch {
	case now == f.said:
		return
	case now != "":
		f.supervisor.Log.Info("Guest waits", "cause", now)
	default:
		f.supervisor.Log.Info("Guest continues")
	}
	f.said = now
	f.supervisor.watches.notifyAll()
}
