// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package supervisor follows one QEMU, from when it answers until its guest has ended: it alone
// speaks QMP with it. It knows neither Kubernetes nor where the machine is.
//
// Start with Supervisor, and with Run in follow.go. progress.go has how far a run has come,
// control.go what others may ask of the machine meanwhile (package control), guest.go what people
// reach in its guest, and edge.go what its network does. host.go is the program on a host, which
// package supervised starts by Spawn.
package supervisor

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/guest/report"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/internal/machine/failure"
	"cloudnative.tw/drover/internal/machine/proc"
	"cloudnative.tw/drover/internal/machine/qmp"
)

const (
	// answerWithin is how long QEMU may take to answer, so that one that does not answer is ended
	// in time too.
	answerWithin = time.Second
	// checkEvery is the interval between two checks that no event asks for.
	checkEvery = 10 * time.Second
	// lastOutput is how much of QEMU's output explains an end.
	lastOutput = 1 << 10
)

// Ends are the connections to a QEMU. The supervisor does not make others.
type Ends struct {
	Monitor, Serial, Agent, Network net.Conn
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
	// LastOutput returns the end of its output, in one line.
	LastOutput(most int) string
	// CutLogs keeps its logs short. It is called at any time where there is a log of the guest.
	CutLogs() error
}

// End is how a run has ended.
type End struct {
	// Reason is one of package machine.
	Reason string `json:"reason"`
	// Message says more, for people, and Output is the last output of QEMU.
	Message string    `json:"message,omitempty"`
	Output  string    `json:"output,omitempty"`
	At      time.Time `json:"at"`
}

// Network is the guest's end of the network.
type Network interface {
	control.Network
	// Serve carries the guest's frames from and to QEMU.
	Serve(ctx context.Context, link net.Conn) error
	// Accept takes a connection of another machine: see control.Peer.
	Accept(ctx context.Context, c control.PeerConn, socket *os.File) error
	// Served returns the ports that it serves, of a revision of the wanted configuration.
	Served() (of control.Revision, ports []control.Port)
	// Statistics returns its figures.
	Statistics() report.NetworkStatistics
}

// Options has the settings of a supervisor.
type Options struct {
	// Network is the edge of the machine's network.
	Network Network
	// Links lead to other machines, where there are any.
	Links *Links
	// Disks has the sizes of the disks that can grow, by QEMU's names for them.
	Disks map[string]int64
	// GracePeriod is how long the guest has to shut down, until SetGracePeriod says another.
	GracePeriod time.Duration
	// RecordEnd keeps how the run has ended. QEMU is made to quit only after that, since until then it
	// alone knows.
	RecordEnd func(End) error
	// LogBytes is how much the guest may print before its log is cut; 0 means that it has none.
	LogBytes int64
	// GuestNonce is the secret by which Drover's program in the guest of a container image recognizes its host; nil for
	// other guests.
	GuestNonce []byte
	// Progress returns how far the disk that is being made is, before QEMU is started; nil if none is.
	Progress func() *control.Copied
	Clock    clock.WithTicker
	Log      logr.Logger
}

// Supervisor follows one QEMU.
type Supervisor struct {
	Options

	// The connections to QEMU, which are set once attached is closed.
	attached chan struct{}
	process  Process
	monitor  machine.Monitor
	client   *qmp.Client

	guest    guestAccess
	edge     guardedEdge
	progress progress
	changed  chan struct{}
	faults   chan machine.DiskFault
	watches  watches
}

var (
	_ control.Machine = (*Supervisor)(nil)
	_ control.Run     = (*Supervisor)(nil)
)

// New returns a supervisor of a QEMU that may be yet to start.
func New(c Options) *Supervisor {
	s := &Supervisor{
		Options: c, attached: make(chan struct{}), changed: make(chan struct{}, 1), faults: make(chan machine.DiskFault, 1),
		progress: progress{clock: c.Clock, gracePeriod: c.GracePeriod},
	}
	s.guest = guestAccess{progress: &s.progress, network: c.Network, nonce: c.GuestNonce, clock: c.Clock, memory: newExecMemory()}
	s.edge = guardedEdge{network: c.Network, links: c.Links, progress: &s.progress, watches: &s.watches, log: c.Log}
	return s
}

// Guest returns what people reach in the guest.
func (s *Supervisor) Guest() control.Guest { return &s.guest }

// Edge returns the machine's end of the network, which takes connections only while the guest runs.
func (s *Supervisor) Edge() control.Network { return &s.edge }

// Attach connects the supervisor to a QEMU whose guest is halted or runs, on an accelerator. QEMU has to answer within a
// time; 0 means that it may take any.
func (s *Supervisor) Attach(ctx context.Context, within time.Duration, process Process, accelerator string, ends Ends) error {
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
	s.process, s.client, s.monitor = process, client, machine.Monitor{Executor: client}
	s.guest.attach(s.monitor, ends.Serial, ends.Agent)
	if s.LogBytes > 0 {
		s.guest.console.LimitLog(s.LogBytes, func() { _ = process.CutLogs() }) // Run logs an error
	}
	s.progress.setAccelerator(accelerator)
	close(s.attached)
	go s.guest.console.Follow()
	go s.serveNetwork(ctx, ends.Network)
	return nil
}

// serveNetwork carries the guest's network until QEMU ends.
func (s *Supervisor) serveNetwork(ctx context.Context, link net.Conn) {
	if err := s.Network.Serve(ctx, link); err != nil && ctx.Err() == nil {
		s.Log.Error(err, "The network of the guest has ended")
	}
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
		return failure.ErrFailed
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
	if machine.IsReset(event) && s.guest.image != nil {
		s.guest.image.EndSession()
	}
	if machine.ChangesState(event) {
		s.wakeUp()
	}
}

// wakeUp has Run look at the guest, and tells those who watch.
func (s *Supervisor) wakeUp() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
	s.watches.notifyAll()
}

// setGuestClock sets the clock of a guest that was resumed.
func (s *Supervisor) setGuestClock(ctx context.Context) {
	if err := s.guest.setTime(ctx); err != nil && ctx.Err() == nil && !isAgentMissing(err) {
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
	if _, err := growDisks(ctx, s.monitor, s.Disks); err != nil {
		return err
	}
	err := s.monitor.Execute(ctx, "cont", nil, nil)
	if _, refused := errors.AsType[*qmp.Error](err); refused {
		return err
	}
	s.progress.noteStart(s.Clock.Now())
	if err != nil { // the guest may run
		s.Log.Info("QEMU does not answer", "cause", err.Error())
		s.wakeUp()
	}
	return nil
}

// SetGracePeriod implements control.Machine.
func (s *Supervisor) SetGracePeriod(_ context.Context, period time.Duration) error {
	s.progress.setGracePeriod(period)
	return nil
}

// CurrentGracePeriod returns how long the guest has to shut down.
func (s *Supervisor) CurrentGracePeriod() time.Duration { return s.progress.currentGracePeriod() }

// HasStarted reports whether the guest was resumed.
func (s *Supervisor) HasStarted() bool { return !s.progress.currentStatus().StartedAt.IsZero() }

// IsStopping reports whether a stop was begun.
func (s *Supervisor) IsStopping() bool {
	return s.progress.currentStatus().State == control.StateStopping
}

// Stop has the guest shut down: it presses the power button until the guest has ended, and ends the run
// by force after a time; 0 means never. A call of the same ID changes nothing.
func (s *Supervisor) Stop(_ context.Context, id string, within time.Duration) error {
	if s.progress.beginStop(id, within) {
		s.Log.Info("Pressing the power button", "gracePeriod", within)
	}
	s.wakeUp()
	return nil
}

// Quit implements control.Local.
func (s *Supervisor) Quit(context.Context) error {
	s.Force("Drover has ended it")
	return nil
}

// Force ends the run at once.
func (s *Supervisor) Force(why string) {
	s.progress.forceEnd(why)
	s.wakeUp()
}

// ConsoleLeft returns a channel that is closed once the guest has ended and nobody reads its console any more.
func (s *Supervisor) ConsoleLeft() <-chan struct{} {
	if s.isAttached() {
		return s.guest.console.Left()
	}
	none := make(chan struct{})
	close(none)
	return none
}

// TypeFrom leads what comes from an input to the guest's console, until its end.
func (s *Supervisor) TypeFrom(ctx context.Context, input io.Reader) error {
	return s.guest.console.TypeFrom(ctx, input)
}
