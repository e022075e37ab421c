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

// command returns the entrypoint, without its standard streams.
func (m *machine) command() (process.Command, error) {
	base := m.base()
	user, err := lookup(base.User)
	if err != nil {
		return process.Command{}, err
	}
	c := process.Command{Args: m.config.Args, User: user, Dir: base.Dir}
	defaults := append([]string{"HOME=" + user.Home}, base.Defaults...)
	if m.config.TTY {
		defaults = append(defaults, "TERM=xterm")
	}
	c.Env = process.Environment(base.Env, defaults...)
	if err := os.MkdirAll(c.Dir, 0o755); err != nil { //nolint:gosec // the mode that container engines use
		return c, fmt.Errorf("make the working directory: %w", err)
	}
	c.Path, err = process.LookPath(c.Args[0], c.Dir, c.Env)
	return c, err
}

// serveAgent answers the host until the machine ends.
func (m *machine) serveAgent(base agent.Base, port io.ReadWriter) {
	a := &agent.Agent{Table: m.table, Base: base, Lookup: lookup, HoldOutput: m.gate.hold, Input: m.input, Mounts: &m.mounts}
	warn(fmt.Errorf("the agent has ended: %w", a.Serve(port, m.config.Nonce)))
}

// run runs the entrypoint until it ends.
func (m *machine) run(c process.Command) (config.Result, error) {
	if err := m.openStreams(&c); err != nil {
		return config.Result{}, err
	}
	initProcess, p, err := m.start(c)
	if err != nil {
		return config.Result{}, err
	}
	closeChildFiles := func() {
		for _, f := range c.Files {
			_ = f.Close()
		}
	}
	if !c.Terminal { // a terminal is kept open, since reads report its end once no process has it open
		closeChildFiles()
	}
	var copying sync.WaitGroup
	for stream := range m.output {
		copying.Go(func() { m.output[stream].copyAll(&m.gate) })
	}
	warn(m.report(config.Result{Kind: config.KindStarted}))
	go m.serveAgent(m.base(), m.agent) // after the report, so that a host that gets an answer also finds the report
	m.superviseEntrypoint(p)
	m.gate.keepOpen() // the entrypoint has ended, and only the output in its pipes is left to copy
	end := m.endNamespace(initProcess, p.End())
	closeChildFiles()
	within(outputWithin, copying.Wait)
	return config.Result{Kind: config.KindExited, Code: end.Code, Signal: end.Signal, OOMKilled: findOOMKilled(p.PID, end)}, nil
}

// codeKilled is the exit code of a program that was killed by SIGKILL, and of a shell whose last command was.
const codeKilled = 128 + int(syscall.SIGKILL)

// findOOMKilled returns the name of the process that the kernel has killed for lack of memory, if the entrypoint ended
// because of that: it was killed itself, or it returns the code of a child that was.
func findOOMKilled(entrypoint int, end process.End) (name string) {
	killed, found, err := system.LastKilled()
	warn(err)
	if found && end.Code != 0 && (killed.PID == entrypoint || end.Code == codeKilled) {
		return killed.Name
	}
	return ""
}

// start starts the entrypoint: as process 1 of a PID namespace if it is an init or is to be one, otherwise alongside a
// process 1 that reaps orphans.
func (m *machine) start(c process.Command) (initProcess, entrypoint *process.Process, err error) {
	namespace, err := process.NewNamespace()
	if err != nil {
		return nil, nil, err
	}
	if err := m.table.Enter(namespace); err != nil {
		return nil, nil, err
	}
	kind, isInit := findInit(c.Path)
	if m.config.Init == config.InitImage || m.config.Init == "" && isInit {
		if m.config.StopSignal == "" {
			m.config.StopSignal = kind.stopSignal
		}
		if kind.printsToConsole {
			warn(system.LinkConsole())
		}
		p, err := m.startInit(&program{c.Path, c.Args, c.Env, c.Dir, c.User}, [3]*os.File(c.Files), c.Terminal)
		return p, p, err
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = null.Close() }()
	if initProcess, err = m.startInit(nil, [3]*os.File{null, os.Stderr, os.Stderr}, false); err != nil {
		return nil, nil, err
	}
	entrypoint, err = m.table.Start(c)
	return initProcess, entrypoint, err
}

// endNamespace ends all processes of the image, and returns how the image has ended. reboot(2) in a PID namespace kills
// its process 1 with SIGHUP for a restart, and with SIGINT for a shutdown, which is a success: pid_namespaces(7).
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

// report writes a result for the host, as a line of JSON.
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

// superviseEntrypoint waits for the entrypoint to end, and stops it at the first press of the power button. Later
// presses change nothing: a second stop signal makes many programs abandon what they are doing.
func (m *machine) superviseEntrypoint(p *process.Process) {
	var graceOver <-chan time.Time
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
				graceOver = time.After(time.Duration(m.config.GraceSeconds) * time.Second)
			}
		case <-graceOver:
			warn(p.Signal(syscall.SIGKILL))
		}
	}
}
