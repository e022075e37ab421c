// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package boot

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"sync"
	"syscall"
	"time"

	"cloudnative.tw/drover/internal/guest/agent"
	"cloudnative.tw/drover/internal/guest/config"
	"cloudnative.tw/drover/internal/guest/process"
	"cloudnative.tw/drover/internal/guest/system"
)

// base returns the settings that the agent's commands share with the entrypoint.
func (m *machine) base() agent.Base {
	dir := "/"
	if m.config.WorkingDir != "" {
		dir = path.Clean(m.config.WorkingDir)
	}
	return agent.Base{
		Env: m.config.Env, User: m.config.User, Dir: dir,
		Defaults: []string{"PATH=" + process.DefaultPath, "HOSTNAME=" + m.config.Hostname},
	}
}

// command returns the entrypoint, without its files.
func (m *machine) command() (process.Command, error) {
	base := m.base()
	user, err := lookup(base.User)
	if err != nil {
		return process.Command{}, err
	}
	c := process.Command{Args: m.config.Args, User: user, Dir: base.Dir}
	c.Env = process.Environment(base.Env, append([]string{"HOME=" + user.Home}, base.Defaults...)...)
	if err := os.MkdirAll(c.Dir, 0o755); err != nil { //nolint:gosec // as a container engine makes it
		return c, fmt.Errorf("make the working directory: %w", err)
	}
	c.Path, err = process.LookPath(c.Args[0], c.Dir, c.Env)
	return c, err
}

// serveAgent answers the host until the machine ends.
func (m *machine) serveAgent(base agent.Base, port io.ReadWriter) {
	a := &agent.Agent{Table: m.table, Base: base, Lookup: lookup, HoldOutput: m.gate.hold}
	warn(fmt.Errorf("the agent has ended: %w", a.Serve(port, m.config.Nonce)))
}

// run runs the entrypoint until it ends.
func (m *machine) run(c process.Command) (config.Result, error) {
	input, err := os.Open(os.DevNull)
	if err != nil {
		return config.Result{}, err
	}
	c.Files = []*os.File{input}
	for stream := range m.output {
		theirs, err := m.output[stream].openPipe(c.User)
		if err != nil {
			return config.Result{}, err
		}
		c.Files = append(c.Files, theirs)
	}
	initProcess, p, err := m.start(c)
	if err != nil {
		return config.Result{}, err
	}
	for _, f := range c.Files {
		_ = f.Close()
	}
	go m.serveAgent(m.base(), m.agent)
	var copying sync.WaitGroup
	for stream := range m.output {
		copying.Go(func() { m.output[stream].copyAll(&m.gate) })
	}
	warn(m.report(config.Result{Kind: config.KindStarted}))
	m.follow(p)
	m.gate.keepOpen() // only a pipe of output is left
	end := m.endNamespace(initProcess, p.End())
	within(outputWithin, copying.Wait)
	return config.Result{Kind: config.KindExited, Code: end.Code, Signal: end.Signal}, nil
}

// start starts the entrypoint: as process 1 of a PID namespace if it is an init, else beside a process 1 that reaps
// orphans.
func (m *machine) start(c process.Command) (initProcess, entrypoint *process.Process, err error) {
	namespace, err := process.NewNamespace()
	if err != nil {
		return nil, nil, err
	}
	m.table.Enter(namespace)
	stopSignal, isInit := findInit(c.Path)
	if isInit {
		if m.config.StopSignal == "" {
			m.config.StopSignal = stopSignal
		}
		p, err := m.startInit(&program{c.Path, c.Args, c.Env, c.Dir, c.User}, [3]*os.File(c.Files))
		return p, p, err
	}
	if initProcess, err = m.startInit(nil, [3]*os.File{c.Files[0], os.Stderr, os.Stderr}); err != nil {
		return nil, nil, err
	}
	entrypoint, err = m.table.Start(c)
	return initProcess, entrypoint, err
}

// endNamespace ends all processes of the image, and returns the end of its run. reboot(2) in the namespace has ended its
// process 1 by SIGHUP for a restart, and by SIGINT for a shutdown, which is a success: pid_namespaces(7).
func (m *machine) endNamespace(initProcess *process.Process, end process.End) process.End {
	warn(system.KillAll())
	within(namespaceWithin, func() { <-initProcess.Done() })
	select {
	case <-initProcess.Done():
	default:
		return end
	}
	ended := syscall.Signal(initProcess.End().Signal)
	m.restarts = ended == syscall.SIGHUP
	if ended == syscall.SIGINT {
		return process.End{}
	}
	return end
}

// report writes a line for the host.
func (m *machine) report(r config.Result) error {
	if m.result == nil {
		return errors.New("the disk for the result is missing")
	}
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	_, err = m.result.Write(append(line, '\n'))
	return err
}

// follow waits for the entrypoint to end, and stops it at the first press of the power button. Later
// ones change nothing: a second stop signal makes many programs drop what they do.
func (m *machine) follow(p *process.Process) {
	var late <-chan time.Time
	pressed := m.pressed
	for {
		select {
		case <-p.Done():
			return
		case <-pressed:
			pressed = nil
			signal, err := config.ParseSignal(m.config.StopSignal)
			warn(errors.Join(err, p.Signal(syscall.Signal(signal))))
			if m.config.GraceSeconds > 0 {
				late = time.After(time.Duration(m.config.GraceSeconds) * time.Second)
			}
		case <-late:
			warn(p.Signal(syscall.SIGKILL))
		}
	}
}
