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

	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/confine"
	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/internal/machine/output"
	"cloudnative.tw/drover/internal/machine/proc"
)

// Descriptors that the program on a host is given.
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
	// firstPortFD is the descriptor of the first port's socket. After the last of them come those of the output, and that of
	// the program.
	firstPortFD
)

// Version is the version of the messages between the driver and the program on a host.
const Version = 7

// HostConfig has the settings that the program on a host gets.
type HostConfig struct {
	Version int `json:"version"`
	// Token is known by those who may connect.
	Token string `json:"token"`
	// Disks has the sizes of the disks that can grow, by QEMU's names for them.
	Disks       map[string]int64 `json:"disks,omitempty"`
	Accelerator string           `json:"accelerator"`
	// StartedAt is when the guest began to run, for a QEMU that had another supervisor before.
	StartedAt time.Time `json:"startedAt,omitzero"`
	// LogBytes bounds each log.
	LogBytes int64 `json:"logBytes"`
	// OutputBytes bounds each stream of the output of a container image's command. Without such output it is 0.
	OutputBytes int64 `json:"outputBytes,omitempty"`
	// StopID is the ID of a stop that was begun, empty for none; StopWithin is the rest of its time, 0 for ever.
	StopID     string        `json:"stopID,omitempty"`
	StopWithin time.Duration `json:"stopWithin,omitempty"`
	// Network configures the edge of the machine's network. Ports are the ports whose sockets the program inherits.
	Network control.NetworkConfig `json:"network"`
	Ports   []control.Port        `json:"ports,omitempty"`
	// GuestNonce is Config.GuestNonce, for a run of a container image.
	GuestNonce []byte `json:"guestNonce,omitempty"`
}

// maxOwnLog bounds what the program says of itself.
const maxOwnLog = 64 << 10

// boundedWriter writes so many bytes, and discards the rest.
type boundedWriter struct {
	to   io.Writer
	left int
}

// Write implements io.Writer.
func (w *boundedWriter) Write(p []byte) (int, error) {
	if w.left -= len(p); w.left >= 0 {
		return w.to.Write(p)
	}
	return len(p), nil
}

// MainOnHost follows a QEMU of this host by the descriptors that it is given, and returns the exit code of the
// program. It ends with QEMU, or by SIGKILL: nothing is lost by that, and the driver starts another.
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
	given, err := openGiven()
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
		Disks: config.Disks, Clock: clock.RealClock{}, Log: log, LogBytes: config.LogBytes, GuestNonce: config.GuestNonce, Network: network, Links: links,
		RecordEnd: func(e End) error { return writeEnd(record, e) },
	})
	process := &handle{gone: make(chan string, 1), logs: []keptLog{
		{os.NewFile(serialLogFD, machine.SerialLogFile), os.NewFile(serialAsideFD, "aside"), config.LogBytes},
		{os.NewFile(outputFD, machine.LogFile), os.NewFile(outputAsideFD, "aside"), config.LogBytes},
	}}
	go process.awaitEnd()
	go keepOutput(ctx, config, log)
	if config.StopID != "" { // its time goes on while QEMU does not answer
		_ = s.Stop(ctx, config.StopID, config.StopWithin)
	}
	// A QEMU that is halted does not answer yet. This program does.
	go func() { _ = control.NewLocalServer(ctx, config.Token, s.local()).Serve(given.listener) }()
	go forceSilent(ctx, s, process)
	if err := s.Attach(ctx, 0, process, config.Accelerator, given.ends); err != nil {
		return err
	}
	if err := adoptQEMU(ctx, s, config.StartedAt); err != nil {
		return err
	}
	_, err = s.Run(ctx)
	select { // those who read the console learn of its end
	case <-s.ConsoleLeft():
	case <-time.After(drainWithin):
	}
	return err
}

// local returns the machine as its control port serves it.
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

// servePorts serves the ports whose sockets the program is given.
func servePorts(ctx context.Context, n Network, c HostConfig) error {
	sockets := map[control.Port]*os.File{}
	for i, p := range c.Ports {
		sockets[p] = os.NewFile(uintptr(firstPortFD+i), "port")
	}
	defer control.CloseFiles(slices.Collect(maps.Values(sockets))...)
	return n.GiveSockets(ctx, c.Network.Wanted.Revision, sockets)
}

// NetworkOpener opens the guest's end of the network.
type NetworkOpener func(context.Context, control.NetworkConfig, control.Switchboard) (Network, error)

// forceSilent ends a run by force that is to be ended while QEMU has not answered yet.
func forceSilent(ctx context.Context, s *Supervisor, process Process) {
	for {
		check := s.Clock.NewTimer(s.progress.checkAfter())
		select {
		case <-ctx.Done():
		case <-s.attached:
		case <-s.changed:
		case <-check.C():
		}
		check.Stop()
		why := s.progress.findForce()
		switch {
		case ctx.Err() != nil || s.isAttached():
			s.wakeUp() // for Run, which may have missed a change
			return
		case why == "":
			continue
		}
		if err := s.RecordEnd(End{Reason: machine.EndForced, Message: why, At: s.Clock.Now()}); err != nil {
			s.Log.Error(err, "End of the run could not be recorded, so QEMU is not killed yet")
			continue
		}
		if err := process.Kill(ctx); err != nil {
			s.Log.Error(err, "QEMU could not be ended")
		}
	}
}

// drainWithin is how long readers of the console may take to leave it. It is a part of the time that the driver gives
// the program to end.
const drainWithin = time.Second / 2

func readConfig(file *os.File) (c HostConfig, err error) {
	defer func() { _ = file.Close() }()
	content, err := io.ReadAll(io.LimitReader(file, 1<<20))
	if err == nil {
		err = json.Unmarshal(content, &c)
	}
	if err == nil && c.Version != Version {
		err = fmt.Errorf("it has version %d, and must have %d", c.Version, Version)
	}
	if err != nil {
		return c, fmt.Errorf("what this program is told: %w", err)
	}
	return c, nil
}

// given are the sockets that the program on a host is given.
type given struct {
	listener net.Listener
	ends     Ends
}

func openGiven() (g given, err error) {
	listener := os.NewFile(listenerFD, "listener")
	g.listener, err = net.FileListener(listener)
	err = errors.Join(err, listener.Close())
	for fd, to := range map[uintptr]*net.Conn{monitorFD: &g.ends.Monitor, serialFD: &g.ends.Serial, agentFD: &g.ends.Agent, networkFD: &g.ends.Network} {
		file := os.NewFile(fd, "socket")
		var openErr error
		*to, openErr = net.FileConn(file)
		err = errors.Join(err, openErr, file.Close())
	}
	return g, err
}

// adoptQEMU finds out how far a QEMU has come that may have had another supervisor.
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

// handle is a QEMU that this program has not started.
type handle struct {
	gone    chan string
	cutting sync.Mutex
	logs    []keptLog
}

var _ Process = (*handle)(nil)

// awaitEnd waits for the end of the process, whose handle becomes readable then. Only its parent learns how.
func (h *handle) awaitEnd() {
	if h.pollEnd(-1) == nil {
		h.gone <- ""
	}
}

// pollEnd waits for the end of the process, for ever if milliseconds are negative.
func (h *handle) pollEnd(milliseconds int) error {
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

// Gone implements Process.
func (h *handle) Gone() <-chan string { return h.gone }

// WaitGone implements Process.
func (h *handle) WaitGone(ctx context.Context) error {
	for ctx.Err() == nil {
		if h.pollEnd(int(proc.PollEvery.Milliseconds())) == nil {
			return nil
		}
	}
	return ctx.Err()
}

// Kill implements Process.
func (h *handle) Kill(ctx context.Context) error {
	if err := unix.PidfdSendSignal(processFD, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, proc.KillWithin)
	defer cancel()
	return h.WaitGone(ctx)
}

// Usage implements Process. The driver measures the process itself.
func (h *handle) Usage() (proc.Usage, error) { return proc.Usage{}, nil }

// LastOutput implements Process.
func (h *handle) LastOutput(most int) string { return machine.LastLine(h.logs[1].file, most) }

// CutLogs implements Process.
func (h *handle) CutLogs() error {
	h.cutting.Lock()
	defer h.cutting.Unlock()
	return errors.Join(h.logs[0].cutLog(), h.logs[1].cutLog())
}

// keptLog is a log that QEMU appends to, and the file that gets its end when it is cut.
type keptLog struct {
	file, aside *os.File
	most        int64
}

func (l keptLog) cutLog() error { return machine.CutLog(l.file, l.aside, l.most) }
