// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/image/diskimage"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/launch"
	"cloudnative.tw/drover/internal/machine/qmp"
)

const (
	// quitMargin is how long before SIGKILL QEMU is ended, which takes up to machine.QuitWithin.
	// A short grace period has half of itself.
	quitMargin = 3 * time.Second
	// answerWithin is how long QEMU may take to answer, so that one that does not answer is ended
	// in time too.
	answerWithin = time.Second
	// checkEvery is the interval between two checks that no event asks for.
	checkEvery = 10 * time.Second
	// maxLog bounds the log of QEMU, and lastOutput what of it explains an end.
	maxLog, lastOutput = 256 << 10, 1 << 10
)

// follower stays with a guest until it has ended.
type follower struct {
	*run

	ended       <-chan string   // how QEMU's process has ended
	stop, force <-chan struct{} // the first signal, and an interrupt after it
	changed     chan struct{}
	faults      chan machine.DiskFault

	isStopping bool
	isSilent   bool // QEMU did not answer the last time
	deadline   <-chan time.Time
	waits      string // what the guest waits for, as it was logged
	fault      machine.DiskFault
	resumedAt  time.Time
}

// followGuest resumes the guest and returns why it has ended. An error means that it was not
// resumed. starting ends when the program is to stop.
func (f *follower) followGuest(ctx, starting context.Context) (end, error) {
	f.changed, f.faults = make(chan struct{}, 1), make(chan machine.DiskFault, 1)
	events, err := f.listen(ctx, starting)
	if err != nil {
		return end{}, err
	}
	defer events.Close()
	if err := f.growDisks(starting, f.describedSizes()); err != nil {
		return end{}, err
	}
	if starting.Err() != nil {
		return end{}, errStopped
	}
	err = f.machine.Execute(ctx, "cont", nil, nil)
	if _, refused := errors.AsType[*qmp.Error](err); refused {
		return end{}, err
	}
	f.observed.set(func(o *observed) { o.startedAt = time.Now() })
	if err := os.WriteFile(f.startedFile(), nil, 0o600); err != nil {
		f.log.Error(err, "Probes will not find that the guest runs")
	}
	if err != nil { // the guest may run
		f.logWait(fmt.Errorf("QEMU does not answer: %w", err))
	}
	for {
		reason, message, ok := f.waitForEnd(ctx)
		if ok {
			return end{Reason: reason, Message: message}, nil
		}
	}
}

// listen connects to the events of QEMU.
func (f *follower) listen(ctx, starting context.Context) (*qmp.Client, error) {
	bounded, cancel := context.WithTimeout(starting, machine.CommandWithin)
	defer cancel()
	return f.machine.Dial(bounded, machine.EventsSocket, func(event qmp.Event) { f.onEvent(ctx, event) })
}

// setGuestClock sets the clock of a guest that was resumed.
func (f *follower) setGuestClock(ctx context.Context) {
	if err := f.machine.SetGuestClock(ctx, clock.RealClock{}); err != nil && ctx.Err() == nil {
		f.log.Info("Clock of the guest could not be set after a pause", "cause", err.Error())
	}
}

// explainStart adds how QEMU has ended, if that is why the guest was not resumed.
func (f *follower) explainStart(err error) error {
	select {
	case how := <-f.ended:
		return fmt.Errorf("%s: %w", f.explainKill(how), err)
	default:
		return err
	}
}

// onEvent must not wait for the client.
func (f *follower) onEvent(ctx context.Context, event qmp.Event) {
	if fault, ok := machine.DiskFaultOf(event); ok {
		select {
		case f.faults <- fault:
		default:
		}
	}
	if machine.IsResume(event) {
		go f.setGuestClock(ctx)
	}
	if !machine.ChangesState(event) {
		return
	}
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

// growDisks enlarges disks, by QEMU's names for them, to at least these sizes. QEMU would cut
// off the end of one that is larger.
func (r *run) growDisks(ctx context.Context, sizes map[string]int64) error {
	have, err := r.machine.DiskSizes(ctx)
	if err != nil {
		return err
	}
	for node, size := range sizes {
		if size = diskimage.WholeSectors(size); have[node] >= size {
			continue
		}
		if err := r.machine.ResizeDisk(ctx, node, size); err != nil {
			return fmt.Errorf("growing the disk %s: %w", node, err)
		}
	}
	return nil
}

// describedSizes returns the sizes that the description has for disks that can grow.
func (r *run) describedSizes() map[string]int64 {
	sizes := map[string]int64{}
	if r.RootDisk != nil {
		sizes[launch.RootNode] = r.RootDisk.SizeBytes
	}
	for _, v := range r.Volumes {
		if !v.ReadOnly {
			sizes[launch.VolumeNode(v.Name)] = v.SizeBytes
		}
	}
	return sizes
}

// waitForEnd waits until something has happened, and reports whether the run is over.
func (f *follower) waitForEnd(ctx context.Context) (reason, message string, isOver bool) {
	check := time.NewTimer(f.checkAfter())
	defer check.Stop()
	select {
	case how := <-f.ended:
		return machine.EndKilled, f.explainKill(how), true
	case fault := <-f.faults:
		f.fault = fault
	case <-f.stop:
		f.beginStop()
	case <-f.force:
		return f.endByForce(ctx, "it was interrupted again")
	case <-f.deadline:
		return f.endByForce(ctx, fmt.Sprintf("the guest did not shut down within %d s, less what QEMU needs to end", f.gracePeriod()/time.Second))
	case <-f.changed:
	case <-check.C:
	}
	if reason, ok := f.findEnd(ctx); ok {
		return reason, "", true
	}
	return "", "", false
}

// checkAfter returns when to look at the guest next.
func (f *follower) checkAfter() time.Duration {
	if f.isStopping {
		return machine.PressEvery
	}
	return checkEvery
}

func (f *follower) explainKill(how string) string {
	message := "QEMU ended with " + how
	if output := f.machine.LastOutput(lastOutput); output != "" {
		message += ": " + output
	}
	return message
}

// beginStop begins to shut the guest down.
func (f *follower) beginStop() {
	grace := f.gracePeriod()
	f.isStopping, f.stop = true, nil
	f.deadline = time.After(grace - min(quitMargin, grace/2))
	f.log.Info("Pressing the power button", "gracePeriod", grace)
}

// findEnd looks at the guest, and makes QEMU quit once the guest has ended.
func (f *follower) findEnd(ctx context.Context) (reason string, hasEnded bool) {
	bounded, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	status, err := f.machine.Status(bounded)
	f.isSilent = err != nil
	if f.isSilent {
		f.logWait(errors.New("QEMU does not answer"))
		return "", false
	}
	if reason, ok := machine.EndOf(status); ok {
		f.quit(ctx)
		return reason, true
	}
	f.helpGuest(bounded, status)
	if err := f.machine.CutLog(machine.LogFile, maxLog); err != nil {
		f.log.Info("Log of QEMU could not be cut", "cause", err.Error())
	}
	return "", false
}

// helpGuest does what a guest in a run state needs: it resumes one that waits for its disk, and
// presses the power button of one that is to stop.
func (f *follower) helpGuest(ctx context.Context, status string) {
	switch {
	case status == machine.StatusIOError:
		f.resumeDisk(ctx)
	case f.isStopping:
		f.pressPowerButton(ctx, status)
		fallthrough
	default:
		f.logWait(nil)
	}
}

func (f *follower) pressPowerButton(ctx context.Context, status string) {
	err := f.machine.Control(ctx, func(ctx context.Context, c *qmp.Client) error {
		return machine.PowerDown(ctx, c, status == machine.StatusPaused)
	})
	if err != nil {
		f.log.Info("Power button could not be pressed", "cause", err.Error())
	}
}

// resumeDisk resumes a guest that a disk error has paused: it repeats the request.
func (f *follower) resumeDisk(ctx context.Context) {
	select {
	case f.fault = <-f.faults:
	default:
	}
	_ = f.machine.Control(ctx, func(ctx context.Context, c *qmp.Client) error {
		f.logWait(machine.FindDiskFault(ctx, c, f.fault))
		if time.Since(f.resumedAt) < machine.ResumeAgain {
			return nil
		}
		f.resumedAt = time.Now()
		return c.Execute(ctx, "cont", nil, nil)
	})
}

// logWait logs what the guest waits for, once.
func (f *follower) logWait(cause error) {
	now := ""
	if cause != nil {
		now = cause.Error()
	}
	switch {
	case now == f.waits:
		return
	case now != "":
		f.log.Info("Guest waits", "cause", now)
	default:
		f.log.Info("Guest continues")
	}
	f.waits = now
	f.observed.set(func(o *observed) { o.waits = waitOf(cause) })
}

// endByForce ends the run, unless the guest has just ended.
func (f *follower) endByForce(ctx context.Context, why string) (reason, message string, isOver bool) {
	if !f.isSilent {
		if reason, ok := f.findEnd(ctx); ok {
			return reason, "", true
		}
	}
	f.quit(ctx)
	return machine.EndForced, why, true
}

// quit ends QEMU, with its disks consistent if that is possible.
func (f *follower) quit(ctx context.Context) {
	endQEMU := f.machine.Quit
	if f.isSilent {
		endQEMU = f.machine.Kill
	}
	if err := endQEMU(ctx); err != nil && !errors.Is(err, ctx.Err()) {
		f.log.Error(err, "QEMU could not be ended")
	}
}
