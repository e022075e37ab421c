// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/image/health"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/confine"
	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/internal/machine/output"
	"cloudnative.tw/drover/internal/machine/proc"
)

// Descriptors that the program on a host inherits.
const (
	configFD = 3 + iota
	lockFD
	listenerFD
	monitorFD
	serialFD
	agentFD
	processFD
	recordFD
	serialLogFD
	serialAsideFD
	outputFD
	outputAsideFD
	networkFD
	// firstPortFD is the socket of the first port. After the ports come the files of the command's output, and the
	// program itself.
	firstPortFD
)

// Version is the version of HostConfig and of the inherited descriptors.
const Version = 8

// HostConfig has the settings of the program on a host.
type HostConfig struct {
	Version int `json:"version"`
	// Token is the secret that clients of the control listener send.
	Token string `json:"token"`
	// Disks has the sizes of the disks that can grow, by QEMU's node names.
	Disks       map[string]int64 `json:"disks,omitempty"`
	Accelerator string           `json:"accelerator"`
	// StartedAt is when the guest began to run, if an earlier supervisor has started it.
	StartedAt time.Time `json:"startedAt,omitzero"`
	// LogBytes bounds each log.
	LogBytes int64 `json:"logBytes"`
	// OutputBytes bounds each stream of the output of a container image's command. It is 0 for other machines.
	OutputBytes int64 `json:"outputBytes,omitempty"`
	// StopID is the ID of a stop that was begun before, empty for none. StopWithin is the rest of its grace period, 0 for
	// no limit.
	StopID     string        `json:"stopID,omitempty"`
	StopWithin time.Duration `json:"stopWithin,omitempty"`
	// Network configures the guest's network. Ports are the ports whose sockets the program inherits.
	Network control.NetworkConfig `json:"network"`
	Ports   []control.Port        `json:"ports,omitempty"`
	// GuestNonce is Options.GuestNonce, for a run of a container image.
	GuestNonce []byte `json:"guestNonce,omitempty"`
	// HealthCheck is Options.HealthCheck.
	HealthCheck *health.Check `json:"healthCheck,omitempty"`
}

// maxOwnLog bounds the log of this program.
const maxOwnLog = 64 << 10

// boundedWriter stops writing at a limit, and discards the rest.
type boundedWriter struct {
	writer    io.Writer
	remaining int // bytes
}

// Write implements io.Writer.
func (w *boundedWriter) Write(p []byte) (int, error) {
	if w.remaining -= len(p); w.remaining >= 0 {
		return w.writer.Write(p)
	}
	return len(p), nil
}

// MainOnHost follows a QEMU of this host through inherited descriptors, and returns the exit code of the program. It
// ends with QEMU. SIGKILL loses nothing, since the driver starts another supervisor.
func MainOnHost(ctx context.Context, open NetworkOpener) int {
	log := logr.FromSlogHandler(slog.NewTextHandler(&boundedWriter{os.Stderr, maxOwnLog}, nil))
	if err := runOnHost(ctx, open, log); err != nil {
		log.Error(err, "Supervisor has ended")
		return 1
	}
	return 0
}

func runOnHost(ctx context.Context, open NetworkOpener, log logr.Logger) error {
	if err := confine.DenyStarts(processFD, Rights); err != nil {
		return err
	}
	config, err := readConfig(os.NewFile(configFD, "config"))
	if err != nil {
		return err
	}
	programFD := config.firstOutputFD()
	if config.OutputBytes > 0 {
		programFD += len(output.FileNames)
	}
	for fd := lockFD; fd < programFD; fd++ {
		unix.CloseOnExec(fd)
	}
	_ = unix.Close(programFD)
	inherited, err := openInherited()
	if err != nil {
		return err
	}
	record := os.NewFile(recordFD, "record")
	links := &Links{}
	network, err := open(ctx, config.Network, links)
	if err != nil {
		return err
	}
	if err := servePorts(ctx, network, config); err != nil {
		log.Error(err, "Ports cannot be served")
	}
	s := New(Options{
		Disks: config.Disks, Clock: clock.RealClock{}, Log: log, LogBytes: config.LogBytes, GuestNonce: config.GuestNonce, HealthCheck: config.HealthCheck,
		Network: network, Links: links,
		RecordEnd: func(e End) error { return writeEnd(record, e) },
	})
	process := &processHandle{exited: make(chan string, 1), logs: []boundedLog{
		{os.NewFile(serialLogFD, machine.SerialLogFile), os.NewFile(serialAsideFD, "aside"), config.LogBytes},
		{os.NewFile(outputFD, machine.LogFile), os.NewFile(outputAsideFD, "aside"), config.LogBytes},
	}}
	go process.awaitEnd()
	go keepOutput(ctx, config, log)
	if config.StopID != "" { // before Attach: the grace period passes also while QEMU does not answer
		_ = s.Stop(ctx, config.StopID, config.StopWithin)
	}
	// Also before Attach: clients get answers even while QEMU hangs.
	go func() { _ = control.NewLocalServer(ctx, config.Token, s.local()).Serve(inherited.listener) }()
	go endUnattached(ctx, s, process)
	if err := s.Attach(ctx, 0, process, config.Accelerator, inherited.ends); err != nil {
		return err
	}
	if err := adoptQEMU(ctx, s, config.StartedAt); err != nil {
		return err
	}
	_, err = s.Run(ctx)
	select { // let readers of the console receive the last output
	case <-s.ConsoleLeft():
	case <-time.After(drainWithin):
	}
	return err
}

// local returns the parts of the machine that its control listener serves.
func (s *Supervisor) local() control.Local {
	return control.Local{Machine: s, Run: s, Guest: &s.guest, Network: &s.edge, Peer: &s.edge}
}

// firstOutputFD is the descriptor of the first file of the output.
func (c HostConfig) firstOutputFD() int { return firstPortFD + len(c.Ports) }

// keepOutput bounds the output of a container image's command.
func keepOutput(ctx context.Context, c HostConfig, log logr.Logger) {
	if c.OutputBytes <= 0 {
		return
	}
	var files []*output.Bounded
	for stream, name := range output.FileNames {
		files = append(files, &output.Bounded{File: os.NewFile(uintptr(c.firstOutputFD()+stream), name), Most: c.OutputBytes})
	}
	output.Keep(ctx, files, func(err error) { log.Error(err, "Output cannot be bounded") })
}

// servePorts serves the ports whose sockets the program inherits.
func servePorts(ctx context.Context, n Network, c HostConfig) error {
	sockets := map[control.Port]*os.File{}
	for i, p := range c.Ports {
		sockets[p] = os.NewFile(uintptr(firstPortFD+i), "port")
	}
	defer control.CloseFiles(slices.Collect(maps.Values(sockets))...)
	return n.GiveSockets(ctx, c.Network.Wanted.Revision, sockets)
}

// NetworkOpener opens the host's end of a guest's network.
type NetworkOpener func(context.Context, control.NetworkConfig, control.Switchboard) (Network, error)

// endUnattached kills QEMU if the run is to be ended by force before QEMU has answered. It returns once QEMU is
// attached, since Run does the same from then on.
func endUnattached(ctx context.Context, s *Supervisor, process Process) {
	for {
		check := s.Clock.NewTimer(s.progress.checkAfter())
		select {
		case <-ctx.Done():
		case <-s.attached:
		case <-s.changed:
		case <-check.C():
		}
		check.Stop()
		reason := s.progress.forceReason()
		switch {
		case ctx.Err() != nil || s.isAttached():
			s.wakeUp() // this loop may have received a change that Run needs
			return
		case reason == "":
			continue
		}
		if err := s.RecordEnd(End{Reason: machine.EndForced, Message: reason, At: s.Clock.Now()}); err != nil {
			s.Log.Error(err, "End of the run could not be recorded, so QEMU is not killed yet")
			continue
		}
		if err := process.Kill(ctx); err != nil {
			s.Log.Error(err, "QEMU could not be ended")
		}
	}
}

// drainWithin is how long readers of the console may take to read its last output. The driver waits longer
// for the program to end.
const drainWithin = time.Second / 2

func readConfig(file *os.File) (c HostConfig, err error) {
	defer func() { _ = file.Close() }()
	content, err := io.ReadAll(io.LimitReader(file, 1<<20))
	if err == nil {
		err = json.Unmarshal(content, &c)
	}
	if err == nil && c.Version != Version {
		err = fmt.Errorf("its version is %d, and must be %d", c.Version, Version)
	}
	if err != nil {
		return c, fmt.Errorf("reading the configuration of this supervisor: %w", err)
	}
	return c, nil
}

// inheritedSockets are the sockets that the program on a host inherits.
type inheritedSockets struct {
	listener net.Listener
	ends     Ends
}

func openInherited() (s inheritedSockets, err error) {
	listener := os.NewFile(listenerFD, "listener")
	s.listener, err = net.FileListener(listener)
	err = errors.Join(err, listener.Close())
	for fd, conn := range map[uintptr]*net.Conn{monitorFD: &s.ends.Monitor, serialFD: &s.ends.Serial, agentFD: &s.ends.Agent, networkFD: &s.ends.Network} {
		file := os.NewFile(fd, "socket")
		var openErr error
		*conn, openErr = net.FileConn(file)
		err = errors.Join(err, openErr, file.Close())
	}
	return s, err
}

// adoptQEMU notes that the guest was started, if an earlier supervisor has started it.
func adoptQEMU(ctx context.Context, s *Supervisor, startedAt time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, machine.CommandWithin)
	defer cancel()
	status, err := s.monitor.Status(ctx)
	switch {
	case err != nil:
		return err
	case status != machine.StatusPrelaunch:
		s.progress.noteStart(startedAt)
	}
	return nil
}

// processHandle is a QEMU that another process has started. processFD is its pidfd.
type processHandle struct {
	exited  chan string
	cutting sync.Mutex
	logs    []boundedLog
}

var _ Process = (*processHandle)(nil)

// awaitEnd waits for the end of the process. Only its parent gets the exit status.
func (h *processHandle) awaitEnd() {
	if h.pollEnd(-1) == nil {
		h.exited <- ""
	}
}

// pollEnd waits until the pidfd is readable, which means the end of the process. A negative timeout means no limit.
func (h *processHandle) pollEnd(milliseconds int) error {
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: processFD, Events: unix.POLLIN}}, milliseconds)
		switch {
		case n > 0:
			return nil
		case err == nil:
			return context.DeadlineExceeded
		case !errors.Is(err, unix.EINTR):
			return err
		}
	}
}

// Exited implements Process.
func (h *processHandle) Exited() <-chan string { return h.exited }

// WaitExited implements Process.
func (h *processHandle) WaitExited(ctx context.Context) error {
	for ctx.Err() == nil {
		if h.pollEnd(int(proc.PollEvery.Milliseconds())) == nil {
			return nil
		}
	}
	return ctx.Err()
}

// Kill implements Process.
func (h *processHandle) Kill(ctx context.Context) error {
	if err := unix.PidfdSendSignal(processFD, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, proc.KillWithin)
	defer cancel()
	return h.WaitExited(ctx)
}

// Usage implements Process. It returns zeros, since the driver measures the process.
func (h *processHandle) Usage() (proc.Usage, error) { return proc.Usage{}, nil }

// LastOutput implements Process.
func (h *processHandle) LastOutput(maxBytes int) string {
	return machine.LastLine(h.logs[1].file, maxBytes)
}

// CutLogs implements Process.
func (h *processHandle) CutLogs() error {
	h.cutting.Lock()
	defer h.cutting.Unlock()
	return errors.Join(h.logs[0].cutLog(), h.logs[1].cutLog())
}

// boundedLog is a log that QEMU appends to. When the log is cut, its end is copied to aside.
type boundedLog struct {
	file, aside *os.File
	maxBytes    int64
}

func (l boundedLog) cutLog() error { return machine.CutLog(l.file, l.aside, l.maxBytes) }
