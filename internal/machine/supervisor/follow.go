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

// Run follows the guest until the guest has ended, and then makes QEMU quit. If ctx ends first, QEMU
// goes on.
func (s *Supervisor) Run(ctx context.Context) (End, error) {
	defer s.client.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if s.guest.image != nil {
		go func() {
			s.announceProgram(ctx)
			healthFollower{s}.follow(ctx)
		}()
	}
	f := follower{supervisor: s}
	for {
		if end := f.checkGuest(ctx); end != nil {
			return *end, nil
		}
		check := s.Clock.NewTimer(s.progress.checkAfter())
		select {
		case <-ctx.Done():
			check.Stop()
			return End{}, context.Cause(ctx)
		case status := <-s.process.Exited():
			check.Stop()
			return f.recordKill(status), nil
		case <-s.changed:
		case <-check.C():
		}
		check.Stop()
	}
}

// askAgain is the time between two questions whether the program in a guest that boots answers.
const askAgain = time.Second

// announceProgram tells those who watch once the program in the guest of a container image answers. Its report that the
// image's command was started is on the disk then.
func (s *Supervisor) announceProgram(ctx context.Context) {
	for s.guest.image.AwaitAgent(ctx) != nil {
		select {
		case <-ctx.Done():
			return
		case <-s.Clock.After(askAgain):
		}
	}
	s.watches.notifyAll()
}

// follower checks a guest repeatedly, resumes it after disk errors, and stops it.
type follower struct {
	supervisor *Supervisor

	isSilent   bool // QEMU did not answer the last query
	resumedAt  time.Time
	pressedAt  time.Time
	loggedWait string // the last logged reason why the guest waits
}

// recordKill records the end of a run whose QEMU has ended before its guest. exitStatus may be empty.
func (f *follower) recordKill(exitStatus string) End {
	e := End{Reason: machine.EndKilled, Output: f.supervisor.process.LastOutput(lastOutput), At: f.supervisor.Clock.Now()}
	if exitStatus != "" {
		e.Message = "QEMU ended with " + exitStatus
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

// checkGuest queries the guest's state, and acts on it. It ends QEMU if the guest has ended or must be ended by
// force. It returns nil if the run goes on.
func (f *follower) checkGuest(ctx context.Context) *End {
	bounded, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	status, err := f.supervisor.monitor.Status(bounded)
	if err != nil && ctx.Err() != nil {
		return nil
	}
	f.isSilent = err != nil
	reason, hasEnded := machine.EndOf(status)
	forceReason := f.supervisor.progress.forceReason()
	switch {
	case hasEnded:
		return f.finishRun(ctx, End{Reason: reason})
	case forceReason != "":
		return f.finishRun(ctx, End{Reason: machine.EndForced, Message: forceReason})
	case f.isSilent:
		f.setWait(errors.New("QEMU does not answer"))
		return nil
	}
	f.resumeOrPress(bounded, status)
	if err := f.supervisor.process.CutLogs(); err != nil {
		f.supervisor.Log.Info("Logs could not be cut", "cause", err.Error())
	}
	return nil
}

// finishRun records an end, and makes QEMU quit, or kills it if it does not quit. It returns nil if the end
// cannot be recorded yet.
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

// quitQEMU makes QEMU flush its disks and exit.
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
	return f.supervisor.process.WaitExited(bounded)
}

// resumeOrPress resumes a guest that a disk error has paused, or presses the power button of a guest that is to
// stop.
func (f *follower) resumeOrPress(ctx context.Context, status string) {
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

// resumeDisk resumes a guest that a disk error has paused. The guest then repeats the failed request.
func (f *follower) resumeDisk(ctx context.Context) {
	fault := machine.FindDiskFault(ctx, f.supervisor.monitor, f.supervisor.progress.lastFault())
	f.supervisor.progress.setFault(fault)
	f.setWait(fault.Explain())
	if f.supervisor.Clock.Since(f.resumedAt) < machine.ResumeAgain {
		return
	}
	f.resumedAt = f.supervisor.Clock.Now()
	_ = f.supervisor.monitor.Execute(ctx, "cont", nil, nil)
}

// setWait sets why the guest waits, nil if it runs, and logs a change.
func (f *follower) setWait(cause error) {
	f.supervisor.progress.setWait(cause)
	wait := ""
	if cause != nil {
		wait = cause.Error()
	}
	switch {
	case wait == f.loggedWait:
		return
	case wait != "":
		f.supervisor.Log.Info("Guest waits", "cause", wait)
	default:
		f.supervisor.Log.Info("Guest continues")
	}
	f.loggedWait = wait
	f.supervisor.watches.notifyAll()
}
