// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/confine"
	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/internal/machine/installation"
	"cloudnative.tw/drover/internal/machine/proc"
	"cloudnative.tw/drover/internal/machine/supervised"
)

// Names in the broker's folder.
const (
	lockFile = "broker.lock"
	socket   = "broker.sock"
	logFile  = "broker.log"
)

const (
	// startWithin is how long the start of a broker may take until it answers.
	startWithin = 3 * time.Second
	// CheckEvery is how often it is checked that the broker answers.
	CheckEvery = 10 * time.Second
)

// Place is the folder of a host's broker. Only the owner of the folder may connect.
type Place struct {
	// Folder has the mark by which processes are found.
	Folder machine.Machine
	// Program returns the program, and fails where none can be started.
	Program func() (*installation.Program, error)
	// StartAs calls start with the user that the program runs as.
	StartAs func(start func(*confine.User) error) error
	// Starts bounds how often the broker is started.
	Starts *proc.Starts
	// Checks limits how often those who have connected a machine check whether the broker answers.
	Checks *rate.Sometimes
}

// Connect lets a machine meet others, as long as its supervisor and the broker run. It starts the broker if there is
// none. join gives the supervisor its ends of the link.
func (p Place) Connect(ctx context.Context, m Machine, join func(ctx context.Context, calls, accepts *os.File) error) error {
	calls, callsThere, err := control.SocketPair(unix.SOCK_STREAM)
	if err != nil {
		return err
	}
	defer control.CloseFiles(calls, callsThere)
	accepts, acceptsThere, err := control.SocketPair(unix.SOCK_STREAM)
	if err != nil {
		return err
	}
	defer control.CloseFiles(accepts, acceptsThere)
	conn, err := p.sendRequest(ctx, request{Machine: m}, callsThere, acceptsThere)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if err := join(ctx, calls, accepts); err != nil {
		return err
	}
	control.CloseFiles(calls, callsThere, accepts, acceptsThere) // so that each end learns of the end of the other
	return p.waitForEnd(ctx, conn)
}

// waitForEnd waits until the broker has ended a connection. One that is halted does not, and is killed.
func (p Place) waitForEnd(ctx context.Context, conn net.Conn) error {
	ended := make(chan error, 1)
	go func() {
		_, err := conn.Read(make([]byte, 1))
		ended <- err
	}()
	check := time.NewTicker(CheckEvery)
	defer check.Stop()
	for {
		var err error
		select {
		case err = <-ended:
			return err
		case <-ctx.Done():
			return ctx.Err()
		case <-check.C:
			p.Checks.Do(func() { err = p.Remove(ctx, "") }) // no machine, so it is only answered
		}
		if err != nil {
			return err
		}
	}
}

// Remove keeps a machine from meeting others. It does nothing if no broker runs, and kills one that does not answer.
func (p Place) Remove(ctx context.Context, uid string) error {
	if runs, err := p.Folder.IsLocked(lockFile); err != nil || !runs {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, machine.CommandWithin)
	defer cancel()
	conn, err := p.Folder.DialSocket(bounded, socket)
	if err == nil {
		defer func() { _ = conn.Close() }()
		err = exchange(bounded, conn, request{Machine: Machine{UID: uid}, Leaves: true}, nil)
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil: // which says nothing of the broker
		return ctx.Err()
	}
	return p.killAll(ctx)
}

// sendRequest sends a request to the broker, which it starts if there is none, and returns the connection once it has
// the answer. It kills a broker that does not answer, so that the next call starts another.
func (p Place) sendRequest(ctx context.Context, r request, sockets ...*os.File) (net.Conn, error) {
	installed, err := p.Program()
	if err != nil {
		return nil, fmt.Errorf("machines cannot be connected: %w", err)
	}
	if installed.IsLatest() {
		r.Program = installed.Digest()
	}
	bounded, cancel := context.WithTimeout(ctx, machine.CommandWithin)
	defer cancel()
	for {
		conn, err := p.dialOrStart(bounded, installed)
		if err != nil {
			return nil, err
		}
		if err = exchange(bounded, conn, r, sockets); err == nil {
			return conn, nil
		}
		_ = conn.Close()
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case bounded.Err() != nil, errors.Is(err, os.ErrDeadlineExceeded): // the latter may be noticed before
			return nil, errors.Join(fmt.Errorf("the broker does not answer, and is ended: %w", err), p.killAll(ctx))
		}
		_ = proc.Pause(bounded, proc.PollEvery) // it is ending, as one of an earlier version
	}
}

// exchange sends a request and receives the answer.
func exchange(ctx context.Context, conn net.Conn, r request, sockets []*os.File) error {
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return err
	}
	socket := conn.(*net.UnixConn) //nolint:forcetypeassert // by its name
	err := control.SendMessage(socket, r, sockets...)
	if err == nil {
		_, err = control.ReceiveMessage(socket, &struct{}{}, 0)
	}
	if err != nil {
		return err
	}
	return conn.SetDeadline(time.Time{})
}

// dialOrStart connects to the broker. It starts one if there is none, and waits for one that another caller is starting, or
// that is ending.
func (p Place) dialOrStart(ctx context.Context, installed *installation.Program) (net.Conn, error) {
	for late := time.After(startWithin); ; {
		conn, err := p.Folder.DialSocket(ctx, socket)
		if err == nil {
			return conn, nil
		}
		if !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		lock, err := p.Folder.TryLock(lockFile)
		if err == nil {
			err = errors.Join(p.start(ctx, installed, lock), lock.Close())
		}
		if err != nil && !errors.Is(err, machine.ErrRunning) {
			return nil, fmt.Errorf("starting the broker: %w", err)
		}
		if !proc.Pause(ctx, proc.PollEvery) {
			return nil, fmt.Errorf("the broker is being started: %w", ctx.Err())
		}
		select {
		case <-late:
			if err := p.killAll(ctx); err != nil {
				return nil, err
			}
		default:
		}
	}
}

// start starts the broker, confined. The caller has its lock, which it inherits.
func (p Place) start(ctx context.Context, installed *installation.Program, lock *os.File) error {
	if err := p.Starts.Count(p.Folder.Mark); err != nil {
		return fmt.Errorf("%w: see %s", err, p.Folder.File(logFile))
	}
	if err := p.killAll(ctx); err != nil { // one may have let go of its lock, and run
		return err
	}
	listener, err := p.Folder.Listen(socket)
	if err != nil {
		return err
	}
	defer control.CloseFiles(listener)
	log, err := os.OpenFile(p.Folder.File(logFile), os.O_CREATE|os.O_TRUNC|os.O_WRONLY|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer control.CloseFiles(log)
	return p.StartAs(func(user *confine.User) error {
		cmd, policy := confine.CommandOf(context.WithoutCancel(ctx), installed.File(), installation.ProgramName, []*os.File{lock, listener}, Rights,
			Command, installation.MachineOption, p.Folder.Mark, installed.Digest())
		cmd.Env = append(cmd.Env, "GOMAXPROCS=1", "GOMEMLIMIT=64MiB")
		cmd.Stderr = log
		policy.User, policy.Dir = user, p.Folder.Path
		if err := confine.Start(cmd, policy); err != nil {
			return err
		}
		go func() { _ = proc.Wait(cmd) }()
		return nil
	})
}

// killAll ends the broker, whatever it does.
func (p Place) killAll(ctx context.Context) error {
	return supervised.Machine{Machine: p.Folder}.KillAll(ctx)
}
