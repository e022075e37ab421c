// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package supervisor follows one QEMU from its first answer until its guest has ended. No other
// program uses QEMU's monitor meanwhile. It knows neither Kubernetes nor where the machine is.
//
// Start with Supervisor, and with Run in follow.go. progress.go has the state of a run.
// control.go, guest.go and edge.go serve the requests of package control: for the machine, its
// guest and its network. host.go is the program on a host, which package supervised starts with
// Spawn.
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
	"cloudnative.tw/drover/internal/image/health"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/internal/machine/failure"
	"cloudnative.tw/drover/internal/machine/proc"
	"cloudnative.tw/drover/internal/machine/qmp"
)

const (
	// answerWithin bounds one query of QEMU. It is short, so that a QEMU that does not answer can
	// still be killed in time.
	answerWithin = time.Second
	// checkEvery is the interval between two checks of the guest without an event.
	checkEvery = 10 * time.Second
	// lastOutput bounds End.Output, in bytes.
	lastOutput = 1 << 10
)

// Ends are the only connections of a supervisor to its QEMU.
type Ends struct {
	Monitor, Serial, Agent, Network net.Conn
}

// Process is QEMU's process.
type Process interface {
	// Exited returns a channel that receives the exit status, once. The status is empty if unknown.
	Exited() <-chan string
	// Kill kills the process, and waits for its end.
	Kill(ctx context.Context) error
	// WaitExited waits until the process has ended.
	WaitExited(ctx context.Context) error
	// Usage returns the resource usage of the process.
	Usage() (proc.Usage, error)
	// LastOutput returns the end of the process's output in one line.
	LastOutput(maxBytes int) string
	// CutLogs keeps the logs of process and guest short. It may be called concurrently.
	CutLogs() error
}

// End is how a run has ended.
type End struct {
	// Reason is one of package machine, such as machine.EndCompleted.
	Reason string `json:"reason"`
	// Message explains Reason to people. Output is the last output of QEMU.
	Message string    `json:"message,omitempty"`
	Output  string    `json:"output,omitempty"`
	At      time.Time `json:"at"`
}

// Network is the host's end of the guest's network: see package edge.
type Network interface {
	control.Network
	// Serve carries the guest's frames from and to QEMU.
	Serve(ctx context.Context, link net.Conn) error
	// Accept accepts a connection from another machine: see control.Peer.
	Accept(ctx context.Context, c control.PeerConn, socket *os.File) error
	// Served returns the ports that are served, and the revision of the wanted configuration that has them.
	Served() (of control.Revision, ports []control.Port)
	// Statistics returns the traffic counters.
	Statistics() report.NetworkStatistics
}

// Options has the settings of a supervisor.
type Options struct {
	// Network is the host's end of the guest's network.
	Network Network
	// Links are the links to other machines, nil if there are none.
	Links *Links
	// Disks has the sizes of the disks that can grow, by QEMU's node names.
	Disks map[string]int64
	// GracePeriod is how long the guest has to shut down. SetGracePeriod changes it.
	GracePeriod time.Duration
	// RecordEnd stores how the run has ended. QEMU quits only after that: until then only QEMU has that
	// information. nil means that nothing is stored.
	RecordEnd func(End) error
	// LogBytes is how much the guest may print before its log is cut; 0 means that there is no log.
	LogBytes int64
	// GuestNonce is the secret that proves the host to Drover's program in the guest of a container image. It is nil for
	// other guests.
	GuestNonce []byte
	// HealthCheck is the health check of a container image, nil without one.
	HealthCheck *health.Check
	// CopyProgress returns how much of a disk was copied. It is called until QEMU is attached, and nil if no disk is made.
	CopyProgress func() *control.Copied
	Clock        clock.WithTicker
	Log          logr.Logger
}

// Supervisor follows one QEMU.
type Supervisor struct {
	Options

	// attached is closed once process, monitor and client are set.
	attached chan struct{}
	process  Process
	monitor  machine.Monitor
	client   *qmp.Client

	guest    guestAccess
	edge     guardedEdge
	progress progress
	changed  chan struct{}
	watches  watches
}

var (
	_ control.Machine = (*Supervisor)(nil)
	_ control.Run     = (*Supervisor)(nil)
)

// New returns a supervisor without a QEMU: see Attach.
func New(c Options) *Supervisor {
	s := &Supervisor{
		Options: c, attached: make(chan struct{}), changed: make(chan struct{}, 1),
		progress: progress{clock: c.Clock, gracePeriod: c.GracePeriod},
	}
	if c.HealthCheck != nil {
		s.progress.setHealth(health.Starting)
	}
	s.guest = guestAccess{progress: &s.progress, network: c.Network, nonce: c.GuestNonce, clock: c.Clock, memory: newExecMemory()}
	s.edge = guardedEdge{network: c.Network, links: c.Links, progress: &s.progress, watches: &s.watches, log: c.Log}
	return s
}

// Guest returns the guest's console, commands and interfaces.
func (s *Supervisor) Guest() control.Guest { return &s.guest }

// Edge returns the network, which accepts connections to the guest only while the guest runs.
func (s *Supervisor) Edge() control.Network { return &s.edge }

// Attach connects the supervisor to a QEMU whose guest is halted or runs. It fails if QEMU does not answer within timeout;
// 0 means that it waits until ctx ends.
func (s *Supervisor) Attach(ctx context.Context, timeout time.Duration, process Process, accelerator string, ends Ends) error {
	bounded := ctx
	if timeout > 0 {
		var cancel context.CancelFunc
		bounded, cancel = context.WithTimeout(ctx, timeout)
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
		s.Log.Error(err, "Network of the guest has failed")
	}
}

// isAttached reports whether Attach has connected to a QEMU.
func (s *Supervisor) isAttached() bool {
	select {
	case <-s.attached:
		return true
	default:
		return false
	}
}

func (s *Supervisor) waitAttached(ctx context.Context) error {
	select {
	case <-s.attached:
		return nil
	case <-ctx.Done():
		return failure.ErrFailed
	}
}

// onEvent handles an event of QEMU. The QMP client calls it while it reads, so it must not wait for an answer.
func (s *Supervisor) onEvent(ctx context.Context, event qmp.Event) {
	if fault, ok := machine.DiskFaultOf(event); ok {
		s.progress.setFault(fault) // before QEMU answers that it has paused the guest
		s.checkSoon()
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

// wakeUp makes Run check the guest, and notifies the watchers.
func (s *Supervisor) wakeUp() {
	s.checkSoon()
	s.watches.notifyAll()
}

// checkSoon makes Run check the guest.
func (s *Supervisor) checkSoon() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// setGuestClock sets the clock of the guest after it was resumed.
func (s *Supervisor) setGuestClock(ctx context.Context) {
	if err := s.guest.setTime(ctx); err != nil && ctx.Err() == nil && !mayLackAgent(err) {
		s.Log.Info("Clock of the guest could not be set after a pause", "cause", err.Error())
	}
}

// Start grows the disks, and starts the paused guest. After an error the guest is still paused.
// After a success, later calls do nothing.
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
	if err != nil { // QEMU has not answered, but the guest may run
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

// Stop makes Run press the power button until the guest has shut down, and end the run by force after gracePeriod;
// 0 means never. A second call with the same ID has no effect.
func (s *Supervisor) Stop(_ context.Context, id string, gracePeriod time.Duration) error {
	if s.progress.beginStop(id, gracePeriod) {
		s.Log.Info("Pressing the power button", "gracePeriod", gracePeriod)
	}
	s.wakeUp()
	return nil
}

// Quit implements control.Local.
func (s *Supervisor) Quit(context.Context) error {
	s.Force("Drover has ended it")
	return nil
}

// Force makes Run end the guest at once. The reason is for people.
func (s *Supervisor) Force(reason string) {
	s.progress.forceEnd(reason)
	s.wakeUp()
}

// ConsoleLeft returns a channel that is closed once the guest has ended and all sessions of its console are closed.
func (s *Supervisor) ConsoleLeft() <-chan struct{} {
	if s.isAttached() {
		return s.guest.console.Left()
	}
	closed := make(chan struct{})
	close(closed)
	return closed
}

// TypeFrom copies input to the guest's console until the input ends.
func (s *Supervisor) TypeFrom(ctx context.Context, input io.Reader) error {
	return s.guest.console.TypeFrom(ctx, input)
}
