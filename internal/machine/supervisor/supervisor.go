// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package supervisor follows one QEMU, from when it answers until its guest has ended: it alone
// speaks QMP with it. It knows neither Kubernetes nor where the machine is.
//
// Start with Supervisor and its method Run. control.go has what others may ask of the machine
// meanwhile (package control); guest.go and serial.go have what people reach in its guest.
package supervisor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/internal/machine/launch"
	"cloudnative.tw/drover/internal/machine/proc"
	"cloudnative.tw/drover/internal/machine/qmp"
)

const (
	// answerWithin is how long QEMU may take to answer, so that one that does not answer is ended
	// in time too.
	answerWithin = time.Second
	// checkEvery is the interval between two checks that no event asks for.
	checkEvery = 10 * time.Second
	// lastOutput is how much of what QEMU printed explains an end.
	lastOutput = 1 << 10
)

// Ends are the connections to a QEMU. The supervisor makes none of its own.
type Ends struct {
	Monitor, Serial, Agent net.Conn
}

// Process is QEMU's process.
type Process interface {
	// Gone receives how the process has ended, once.
	Gone() <-chan string
	// Kill ends it at once, and waits until it is gone.
	Kill(ctx context.Context) error
	// WaitGone waits until it is gone, as long as ctx allows.
	WaitGone(ctx context.Context) error
	// Usage returns what the process uses.
	Usage() (proc.Usage, error)
	// LastOutput returns the end of what it printed, in one line.
	LastOutput(most int) string
	// CutLogs keeps its logs short.
	CutLogs() error
}

// End is how a run has ended.
type End struct {
	// Reason is one of package machine.
	Reason string `json:"reason"`
	// Message says more, for people, and Output is what QEMU printed last.
	Message string    `json:"message,omitempty"`
	Output  string    `json:"output,omitempty"`
	At      time.Time `json:"at"`
}

// Config is what a supervisor is given.
type Config struct {
	Forwards []launch.Forward
	// Disks has the sizes of the disks that can grow, by QEMU's names for them.
	Disks map[string]int64
	// GracePeriod is how long the guest has to shut down, until SetGracePeriod says another.
	GracePeriod time.Duration
	// RecordEnd keeps how the run has ended. QEMU is made to quit only after that, since until then it
	// alone knows.
	RecordEnd func(End) error
	// ProbeForward returns nil once the guest has answered at a port of it that is forwarded.
	ProbeForward func(context.Context, launch.Forward) error
	// LogBytes is how much the guest may print before its log is cut; 0 means that it has none.
	LogBytes int64
	// Progress returns how far the disk that is being made is, before QEMU is started; nil if none is.
	Progress func() *control.Copied
	Clock    clock.WithTicker
	Log      logr.Logger
}

// Supervisor follows one QEMU.
type Supervisor struct {
	Config

	// What QEMU is reached by, once attached is closed.
	attached    chan struct{}
	process     Process
	accelerator string
	monitor     machine.Monitor
	client      *qmp.Client
	serial      *serialConsole
	agent       *agentLine

	changed chan struct{}
	faults  chan machine.DiskFault
	watches watches
	memory  execMemory

	mu          sync.Mutex
	gracePeriod time.Duration
	startedAt   time.Time // of the guest, zero until it was resumed
	stop        *stop
	forced      string // why the run is to end at once
	waits       error  // what the guest waits for
	waitsFor    control.Fault

	// Of Run alone.
	isSilent  bool // QEMU did not answer the last time
	fault     machine.DiskFault
	resumedAt time.Time
	pressedAt time.Time
	said      string // what was logged that the guest waits for
}

// stop is a stop that was begun. It cannot be taken back: a power button that was pressed cannot be
// released.
type stop struct {
	id string
	by time.Time // zero for never
}

// New returns a supervisor of a QEMU that may be yet to start.
func New(c Config) *Supervisor {
	return &Supervisor{Config: c, gracePeriod: c.GracePeriod, attached: make(chan struct{}), changed: make(chan struct{}, 1), faults: make(chan machine.DiskFault, 1), memory: newExecMemory()}
}

// Attach connects the supervisor to a QEMU whose guest is halted or runs, on an accelerator. QEMU has to answer within a
// time; 0 means that it may take any.
func (s *Supervisor) Attach(ctx context.Context, within time.Duration, process Process, accelerator string, ends Ends) error {
	serial := newSerialConsole(ends.Serial)
	if s.LogBytes > 0 {
		serial.onPrinted, serial.most = s.wake, s.LogBytes
	}
	bounded := ctx
	if within > 0 {
		var cancel context.CancelFunc
		bounded, cancel = context.WithTimeout(ctx, within)
		defer cancel()
	}
	client, err := qmp.NewClient(bounded, ends.Monitor, func(event qmp.Event) { s.onEvent(ctx, event) })
	if err != nil {
		return err
	}
	s.process, s.accelerator, s.serial, s.agent = process, accelerator, serial, newAgentLine(ends.Agent)
	s.client, s.monitor = client, machine.Monitor{Executor: client}
	close(s.attached)
	go serial.follow(ends.Serial)
	return nil
}

// isAttached reports whether there is a QEMU to ask.
func (s *Supervisor) isAttached() bool {
	select {
	case <-s.attached:
		return true
	default:
		return false
	}
}

// waitAttached waits for a QEMU to ask.
func (s *Supervisor) waitAttached(ctx context.Context) error {
	select {
	case <-s.attached:
		return nil
	case <-ctx.Done():
		return control.ErrFailed
	}
}

// onEvent must not wait for the client.
func (s *Supervisor) onEvent(ctx context.Context, event qmp.Event) {
	if fault, ok := machine.DiskFaultOf(event); ok {
		select {
		case s.faults <- fault:
		default:
		}
	}
	if machine.IsResume(event) {
		go s.setGuestClock(ctx)
	}
	if machine.ChangesState(event) {
		s.wake()
	}
}

// wake has Run look at the guest, and tells those who watch.
func (s *Supervisor) wake() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
	s.watches.notify()
}

// setGuestClock sets the clock of a guest that was resumed.
func (s *Supervisor) setGuestClock(ctx context.Context) {
	if err := s.guestAgent().SetTime(ctx); err != nil && ctx.Err() == nil && !isAgentMissing(err) {
		s.Log.Info("Clock of the guest could not be set after a pause", "cause", err.Error())
	}
}

// Start resumes the guest for the first time, after disks have grown to their sizes. An error means that it was
// not resumed. It may be repeated.
func (s *Supervisor) Start(ctx context.Context) error {
	if s.HasStarted() {
		return nil
	}
	if err := s.waitAttached(ctx); err != nil {
		return err
	}
	if _, err := s.growDisks(ctx, s.Disks); err != nil {
		return err
	}
	err := s.monitor.Execute(ctx, "cont", nil, nil)
	if _, refused := errors.AsType[*qmp.Error](err); refused {
		return err
	}
	s.noteStart(s.Clock.Now())
	if err != nil { // the guest may run
		s.logWait(fmt.Errorf("QEMU does not answer: %w", err))
	}
	return nil
}

func (s *Supervisor) noteStart(at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.startedAt = at; at.IsZero() {
		s.startedAt = s.Clock.Now()
	}
}

// Run follows the guest until it has ended, and QEMU is made to quit. If ctx ends before, only the
// supervisor ends.
func (s *Supervisor) Run(ctx context.Context) (End, error) {
	defer s.client.Close()
	for {
		if end := s.look(ctx); end != nil {
			return *end, nil
		}
		check := s.Clock.NewTimer(s.checkAfter())
		select {
		case <-ctx.Done():
			check.Stop()
			return End{}, context.Cause(ctx)
		case how := <-s.process.Gone():
			check.Stop()
			return s.explainKill(how), nil
		case fault := <-s.faults:
			s.fault = fault
		case <-s.changed:
		case <-check.C():
		}
		check.Stop()
	}
}

// explainKill is the end of a run whose QEMU has ended without one.
func (s *Supervisor) explainKill(how string) End {
	e := End{Reason: machine.EndKilled, Output: s.process.LastOutput(lastOutput), At: s.Clock.Now()}
	if how != "" {
		e.Message = "QEMU ended with " + how
	}
	if err := s.record(e); err != nil {
		s.Log.Error(err, "End of the machine could not be recorded", "reason", e.Reason)
	}
	return e
}

func (s *Supervisor) record(e End) error {
	if s.RecordEnd == nil {
		return nil
	}
	return s.RecordEnd(e)
}

// checkAfter returns when to look at the guest next.
func (s *Supervisor) checkAfter() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stop == nil && s.waits == nil {
		return checkEvery
	}
	after := min(machine.PressEvery, machine.ResumeAgain)
	if s.stop != nil && !s.stop.by.IsZero() {
		after = max(0, min(after, s.stop.by.Sub(s.Clock.Now())))
	}
	return after
}

// TooLate is the message of the end of a guest that had to be ended by force.
const TooLate = "the guest did not shut down in its time"

// findForce returns why the run is to be ended by force, if it is.
func (s *Supervisor) findForce() (why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.forced == "" && s.stop != nil && !s.stop.by.IsZero() && !s.Clock.Now().Before(s.stop.by) {
		return TooLate
	}
	return s.forced
}

// look looks at the guest, helps it, and makes QEMU quit if the guest has ended or is to be ended by
// force; nil means that it has not ended.
func (s *Supervisor) look(ctx context.Context) *End {
	bounded, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	status, err := s.monitor.Status(bounded)
	if err != nil && ctx.Err() != nil {
		return nil
	}
	s.isSilent = err != nil
	reason, hasEnded := machine.EndOf(status)
	why := s.findForce()
	switch {
	case hasEnded:
		return s.finish(ctx, End{Reason: reason})
	case why != "":
		return s.finish(ctx, End{Reason: machine.EndForced, Message: why})
	case s.isSilent:
		s.logWait(errors.New("QEMU does not answer"))
		return nil
	}
	s.help(bounded, status)
	if err := s.process.CutLogs(); err != nil {
		s.Log.Info("Logs could not be cut", "cause", err.Error())
	}
	return nil
}

// finish records an end and makes QEMU quit, with its disks consistent if that is possible. It returns
// nil if the end cannot be recorded yet.
func (s *Supervisor) finish(ctx context.Context, e End) *End {
	e.At = s.Clock.Now()
	if e.Reason == machine.EndPanicked || e.Reason == machine.EndInternalError {
		e.Output = s.process.LastOutput(lastOutput)
	}
	if err := s.record(e); err != nil {
		s.logWait(fmt.Errorf("the end of the run cannot be recorded, so QEMU does not quit yet: %w", err))
		return nil
	}
	if s.quit(ctx) != nil {
		if err := s.process.Kill(ctx); err != nil && ctx.Err() == nil {
			s.Log.Error(err, "QEMU could not be ended")
		}
	}
	return &e
}

// quit has QEMU end itself.
func (s *Supervisor) quit(ctx context.Context) error {
	if s.isSilent {
		return errors.New("QEMU does not answer")
	}
	bounded, cancel := context.WithTimeout(ctx, machine.QuitWithin)
	defer cancel()
	err := s.monitor.Execute(bounded, "quit", nil, nil)
	if _, refused := errors.AsType[*qmp.Error](err); refused {
		return err
	}
	return s.process.WaitGone(bounded)
}

// help does what a guest in a run state needs: it resumes one that waits for its disk, and presses the
// power button of one that is to stop.
func (s *Supervisor) help(ctx context.Context, status string) {
	s.mu.Lock()
	isStopping := s.stop != nil
	s.mu.Unlock()
	switch {
	case status == machine.StatusIOError:
		s.resumeDisk(ctx)
	case isStopping && s.Clock.Since(s.pressedAt) >= machine.PressEvery:
		s.pressedAt = s.Clock.Now()
		isPaused := status == machine.StatusPaused || status == machine.StatusPrelaunch
		if err := s.monitor.PowerDown(ctx, isPaused); err != nil {
			s.Log.Info("Power button could not be pressed", "cause", err.Error())
		}
		fallthrough
	default:
		s.logWait(nil)
	}
}

// resumeDisk resumes a guest that a disk error has paused: it repeats the request.
func (s *Supervisor) resumeDisk(ctx context.Context) {
	select {
	case s.fault = <-s.faults:
	default:
	}
	fault := machine.FindDiskFault(ctx, s.monitor, s.fault)
	s.mu.Lock()
	s.waitsFor = control.Fault{Node: fault.Node, Operation: fault.Operation, Reason: fault.Reason}
	s.mu.Unlock()
	s.logWait(fault.Explain())
	if s.Clock.Since(s.resumedAt) < machine.ResumeAgain {
		return
	}
	s.resumedAt = s.Clock.Now()
	_ = s.monitor.Execute(ctx, "cont", nil, nil)
}

// logWait logs what the guest waits for, once.
func (s *Supervisor) logWait(cause error) {
	now := ""
	if cause != nil {
		now = cause.Error()
	}
	s.mu.Lock()
	s.waits = cause
	s.mu.Unlock()
	switch {
	case now == s.said:
		return
	case now != "":
		s.Log.Info("Guest waits", "cause", now)
	default:
		s.Log.Info("Guest continues")
	}
	s.said = now
	s.watches.notify()
}

// SetGracePeriod implements control.Machine.
func (s *Supervisor) SetGracePeriod(_ context.Context, period time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gracePeriod = period
	return nil
}

// CurrentGracePeriod returns how long the guest has to shut down.
func (s *Supervisor) CurrentGracePeriod() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gracePeriod
}

// HasStarted reports whether the guest was resumed.
func (s *Supervisor) HasStarted() bool { return !s.known().StartedAt.IsZero() }

// IsStopping reports whether a stop was begun.
func (s *Supervisor) IsStopping() bool { return s.known().State == control.StateStopping }

// Stop has the guest shut down: it presses the power button until the guest has ended, and ends the run
// by force after a time; 0 means never. A call of the same ID changes nothing.
func (s *Supervisor) Stop(_ context.Context, id string, within time.Duration) error {
	s.mu.Lock()
	if s.stop == nil || s.stop.id != id {
		s.stop = &stop{id: id}
		if within > 0 {
			s.stop.by = s.Clock.Now().Add(within)
		}
		s.Log.Info("Pressing the power button", "gracePeriod", within)
	}
	s.mu.Unlock()
	s.wake()
	return nil
}

// Quit implements control.Local.
func (s *Supervisor) Quit(context.Context) error {
	s.Force("Drover has ended it")
	return nil
}

// Force ends the run at once.
func (s *Supervisor) Force(why string) {
	s.mu.Lock()
	s.forced = cmp.Or(s.forced, why)
	s.mu.Unlock()
	s.wake()
}

// waitOf returns what a guest waits for, by the error that explains it.
func waitOf(cause error) control.Wait {
	switch {
	case errors.Is(cause, machine.ErrNoRoom):
		return control.WaitRoom
	case errors.Is(cause, machine.ErrDiskFault):
		return control.WaitDisk
	}
	return control.WaitNone
}
