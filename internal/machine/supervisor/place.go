// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/atomicfile"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/confine"
	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/internal/machine/proc"
)

// Names in a machine's directory, of what is the supervisor's. None of it belongs to the supervisor's user.
const (
	lockFile  = "supervisor.lock"
	socket    = "supervisor.sock"
	stateFile = "supervisor.json"
	logFile   = "supervisor.log"
)

// maxState is more than stateFile has.
const maxState = 64 << 10

// endWithin is how long a supervisor may take to end once its QEMU has.
const endWithin = time.Second

// ErrNoQEMU : there is no QEMU to follow.
var ErrNoQEMU = errors.New("QEMU does not run")

// state is which supervisor was started last.
type state struct {
	// Token is what those who connect have to know.
	Token string `json:"token"`
	// Program is the digest of the program.
	Program string `json:"program"`
	// PID and StartTicks identify the process: see proc.StartTicks. They are 0 while it is being started.
	PID        int   `json:"pid,omitempty"`
	StartTicks int64 `json:"startTicks,omitempty"`
}

// isAlive reports whether the process runs.
func (s state) isAlive() bool {
	ticks, err := proc.StartTicks(s.PID)
	return s.PID != 0 && err == nil && ticks == s.StartTicks
}

// Place is a machine on this host, whose QEMU is to have a supervisor.
type Place struct {
	machine.Machine
	Program *Program
	// Record is the path of the record of how the run ends.
	Record string
	// Config is what the supervisor is told, but for the token.
	Config HostConfig
	// User returns the user that QEMU runs as, nil for this program's own.
	User func() (*confine.User, error)
}

// Reach returns a client of the supervisor of a QEMU that runs. It starts the supervisor if there is none, and waits
// for one that another caller is starting.
func (p Place) Reach(ctx context.Context) (*control.Client, error) {
	for {
		lock, err := p.TryLock(lockFile)
		if err == nil {
			err = errors.Join(p.start(ctx, lock), lock.Close())
		}
		if err != nil && !errors.Is(err, machine.ErrRunning) {
			return nil, err
		}
		s, err := p.readState()
		if err == nil && s.isAlive() {
			return p.clientOf(s), nil
		}
		if !proc.Pause(ctx, proc.PollEvery) {
			return nil, errors.Join(fmt.Errorf("the supervisor is being started: %w", ctx.Err()), err)
		}
	}
}

// IsSupervised reports whether the machine has a supervisor, which may be about to end.
func (p Place) IsSupervised() (bool, error) { return p.IsLocked(lockFile) }

// clientOf returns a client of a supervisor.
func (p Place) clientOf(s state) *control.Client {
	return control.NewLocalClient(s.Token, func(ctx context.Context) (net.Conn, error) { return p.DialSocket(ctx, socket) })
}

func (p Place) readState() (s state, err error) {
	content, _, err := atomicfile.Read(p.File(stateFile), maxState)
	if err == nil {
		err = json.Unmarshal(content, &s)
	}
	if err != nil {
		return s, fmt.Errorf("%s: %w", p.File(stateFile), err)
	}
	return s, nil
}

func (p Place) writeState(s state) error {
	content, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return p.Staging.ReplaceVolatile(p.File(stateFile), append(content, '\n'))
}

// start starts a supervisor. The caller has its lock, which the supervisor inherits.
func (p Place) start(ctx context.Context, lock *os.File) error {
	if p.Program == nil {
		return errors.New("the machine has no supervisor, and none can be started")
	}
	var files opened
	defer files.close()
	user, err := p.User()
	if err != nil {
		return err
	}
	o := Order{Program: p.Program.file, UUID: p.UUID, Dir: p.Path, User: user, Config: p.Config, Lock: lock}
	o.Config.Token = rand.Text()
	if err := p.open(ctx, &o, &files); err != nil {
		return err
	}
	s := state{Token: o.Config.Token, Program: p.Program.digest}
	if err := p.writeState(s); err != nil {
		return err
	}
	cmd, err := Spawn(ctx, o)
	if err != nil {
		return err
	}
	go func(cmd *exec.Cmd) { _ = cmd.Wait() }(cmd)
	if s.StartTicks, err = proc.StartTicks(cmd.Process.Pid); err != nil {
		return nil
	}
	s.PID = cmd.Process.Pid
	return p.writeState(s)
}

// open opens what a supervisor is given.
func (p Place) open(ctx context.Context, o *Order, files *opened) (err error) {
	if o.Process, err = files.add(p.openProcess()); err != nil {
		return err
	}
	if o.Listener, err = files.add(p.Listen(socket)); err != nil {
		return err
	}
	for name, to := range map[string]**os.File{machine.EventsSocket: &o.Monitor, machine.SerialSocket: &o.Serial, machine.AgentSocket: &o.Agent} {
		if *to, err = files.add(p.dialFile(ctx, name)); err != nil {
			return err
		}
	}
	if o.Record, err = files.add(p.openRecord()); err != nil {
		return err
	}
	for name, to := range map[string]**os.File{
		machine.SerialLogFile: &o.SerialLog, machine.SerialLogFile + machine.OldLog: &o.SerialAside,
		machine.LogFile: &o.Output, machine.LogFile + machine.OldLog: &o.OutputAside,
	} {
		if *to, err = files.add(os.OpenFile(p.File(name), os.O_CREATE|os.O_RDWR, 0o600)); err != nil {
			return err
		}
	}
	o.Errors, err = files.add(os.OpenFile(p.File(logFile), os.O_CREATE|os.O_TRUNC|os.O_APPEND|os.O_WRONLY, 0o600))
	return err
}

// openRecord opens the record, and makes it if it is missing.
func (p Place) openRecord() (*os.File, error) {
	f, err := os.OpenFile(p.Record, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return MakeRecord(p.Record)
	}
	return f, err
}

// openProcess opens a handle on QEMU's process.
func (p Place) openProcess() (*os.File, error) {
	pid := p.PID()
	if pid == 0 {
		return nil, ErrNoQEMU
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoQEMU, err)
	}
	f := os.NewFile(uintptr(fd), "QEMU")
	if !p.IsOwnProcess(pid) { // another has the ID by now
		return nil, errors.Join(ErrNoQEMU, f.Close())
	}
	return f, nil
}

// dialFile connects to a socket of QEMU.
func (p Place) dialFile(ctx context.Context, name string) (*os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, machine.CommandWithin)
	defer cancel()
	conn, err := p.DialSocket(ctx, name)
	if err != nil {
		return nil, err
	}
	f, err := conn.(*net.UnixConn).File()
	return f, errors.Join(err, conn.Close())
}

// End waits for the supervisor of a QEMU that has ended to record that and to end, and then ends it itself.
func (p Place) End(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, endWithin)
	defer cancel()
	for {
		follows, err := p.IsSupervised()
		if err != nil || !follows {
			return err
		}
		if !proc.Pause(bounded, proc.PollEvery) {
			return p.Replace(ctx)
		}
	}
}

// Replace ends the supervisor, whatever it does, so that the next call of Reach starts another. QEMU runs on.
func (p Place) Replace(ctx context.Context) error {
	s, err := p.readState()
	if err != nil {
		return err
	}
	return proc.Kill(ctx, s.PID, func(int) bool { return s.isAlive() })
}

// IsOutdated reports whether the supervisor was started as an earlier version of the program than this one.
func (p Place) IsOutdated() bool {
	s, err := p.readState()
	return err == nil && p.Program != nil && s.Program != p.Program.digest && p.Program.isLatest()
}

// opened are files that are closed together.
type opened []*os.File

func (o *opened) add(f *os.File, err error) (*os.File, error) {
	if err == nil {
		*o = append(*o, f)
	}
	return f, err
}

func (o *opened) close() {
	for _, f := range *o {
		_ = f.Close()
	}
}
