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
	"syscall"
	"time"

	"cloudnative.tw/drover/internal/guest/agent"
	"cloudnative.tw/drover/internal/guest/config"
	"cloudnative.tw/drover/internal/guest/process"
	"cloudnative.tw/drover/internal/guest/system"
)

// base is what the entrypoint and the agent's commands have in common.
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
	a := &agent.Agent{Table: m.table, Base: base, Lookup: lookup}
	warn(fmt.Errorf("the agent has ended: %w", a.Serve(port, m.config.Nonce)))
}

// run runs the entrypoint until it ends.
func (m *machine) run(c process.Command) (config.Result, error) {
	output, theirs, err := os.Pipe()
	if err != nil {
		return config.Result{}, err
	}
	input, err := os.Open(os.DevNull)
	if err != nil {
		return config.Result{}, err
	}
	// A program of another user than root can open /dev/stdout.
	if err := theirs.Chown(int(c.User.UID), int(c.User.GID)); err != nil {
		return config.Result{}, err
	}
	c.Files = [3]*os.File{input, theirs, theirs}
	p, err := m.table.Start(c)
	if err != nil {
		return config.Result{}, err
	}
	_, _ = input.Close(), theirs.Close()
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		m.copyOutput(output)
	}()
	warn(m.report(config.Result{Kind: config.KindStarted}))
	m.follow(p)
	warn(system.KillAll())
	within(outputWithin, func() { <-copied })
	return config.Result{Kind: config.KindExited, Code: p.End().Code, Signal: p.End().Signal}, nil
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

// chunk is how much output is passed on at a time.
const chunk = 32 << 10

// copyOutput passes the output on to the log's port until all that write to it have ended.
func (m *machine) copyOutput(output *os.File) {
	buffer := make([]byte, chunk)
	for {
		n, err := output.Read(buffer)
		if n > 0 {
			_, failed := m.log.Write(buffer[:n])
			warn(failed)
		}
		if err != nil {
			return
		}
	}
}
