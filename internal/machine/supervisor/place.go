// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/atomicfile"
	"cloudnative.tw/drover/internal/crashpoint"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/confine"
	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/internal/machine/proc"
)

// Names of the supervisor's files in a machine's directory. None of them belongs to the supervisor's user.
const (
	lockFile  = "supervisor.lock"
	socket    = "supervisor.sock"
	stateFile = "supervisor.json"
	logFile   = "supervisor.log"
)

// stateSize is the size of stateFile. Its room on the disk is taken once, and it is written in place: a guest needs its
// next supervisor on a full disk too.
const stateSize = 1 << 10

const (
	// endWithin is how long a supervisor may take to end once its QEMU has, or once it was killed.
	endWithin = time.Second
	// startWithin is how long the start of a supervisor may take until it is known which process it is.
	startWithin = 3 * time.Second
)

// ErrNoQEMU means that there is no QEMU to follow.
var ErrNoQEMU = errors.New("QEMU does not run")

// state is which supervisor was started last.
type state struct {
	// Token must be known to connect.
	Token string `json:"token"`
	// Program is the digest of the program.
	Program string `json:"program"`
	// PID and StartTicks identify the process: see proc.StartTicks. They are 0 while it is being started.
	PID        int   `json:"pid,omitempty"`
	StartTicks int64 `json:"startTicks,omitempty"`
	// Boot is the boot of the host in which that is so: two boots can be alike.
	Boot string `json:"boot"`
	// Sum is a checksum of the other fields, by which a reader recognizes a state that is being written. Earlier versions
	// of Drover, which replaced the whole file, wrote none.
	Sum string `json:"sum,omitempty"`
}

// checksum returns the value that Sum should have.
func (s state) checksum() string {
	return fmt.Sprintf("%x", sha256.Sum256(fmt.Appendf(nil, "%s %s %d %d %s", s.Token, s.Program, s.PID, s.StartTicks, s.Boot)))
}

// isAlive reports whether the process runs, which one that its parent has not waited for does not.
func (s state) isAlive() bool {
	if s.Boot != proc.Boot() {
		return false
	}
	handle, err := unix.PidfdOpen(s.PID, 0)
	if err != nil { // also for 0
		return false
	}
	defer func() { _ = unix.Close(handle) }()
	ticks, err := proc.StartTicks(s.PID)
	if err != nil || ticks != s.StartTicks {
		return false
	}
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(handle), Events: unix.POLLIN}}, 0) //nolint:gosec // a descriptor
	return err != nil || n == 0
}

// Place is a machine on this host, whose QEMU is to have a supervisor.
type Place struct {
	machine.Machine
	// Program returns the program, and fails where none can be started.
	Program func() (*Program, error)
	// AreSeparate is set if machines run as other users than this program, so that no supervisor may have its user.
	AreSeparate bool
	// Record is the path of the record of how the run ends.
	Record string
	// Config is the configuration of the supervisor, without the token.
	Config HostConfig
	// Sockets are the sockets of ports that the caller has already opened. A start opens those of the other ports.
	Sockets map[control.Port]*os.File
	// Reload returns the place as it is now: another run may have begun since.
	Reload func() (Place, error)
	// Starts bounds how often a supervisor is started.
	Starts *proc.Starts
}

// MemoryBytes returns the memory that only the supervisor uses, without the program, which all share; 0 if that is not
// known.
func (p Place) MemoryBytes() int64 {
	s, err := p.readState()
	if err != nil || !s.isAlive() {
		return 0
	}
	figures, err := proc.ReadFigures(proc.Path(s.PID, "status"))
	if err != nil {
		return 0
	}
	return figures["RssAnon"]
}

// Reach returns a client of the supervisor of a QEMU that runs. It starts the supervisor if there is none, and waits
// for one that another caller is starting. One whose start was interrupted is replaced.
func (p Place) Reach(ctx context.Context) (*control.Client, error) {
	hasStarted := false
	for late := time.After(startWithin); ; {
		lock, err := p.TryLock(lockFile)
		if err == nil && hasStarted {
			return nil, errors.Join(fmt.Errorf("the supervisor has ended at once: see %s", p.File(logFile)), lock.Close())
		}
		if err == nil {
			hasStarted = true
			err = errors.Join(p.startNow(ctx, lock), lock.Close())
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
		select {
		case <-late:
			if err := p.KillAll(ctx); err != nil {
				return nil, err
			}
			late = time.After(startWithin)
		default:
		}
	}
}

// startNow starts a supervisor for the run of now. The caller has the lock, so no other is started meanwhile. What is
// recorded before there is a QEMU may be of the run before.
func (p Place) startNow(ctx context.Context, lock *os.File) error {
	if p.PID() == 0 {
		return ErrNoQEMU
	}
	now, err := p.Reload()
	if err != nil {
		return err
	}
	now.Sockets = p.Sockets
	return now.startSupervisor(ctx, lock)
}

// IsSupervised reports whether the machine has a supervisor, which may be about to end.
func (p Place) IsSupervised() (bool, error) { return p.IsLocked(lockFile) }

// clientOf returns a client of a supervisor.
func (p Place) clientOf(s state) *control.Client {
	return control.NewLocalClient(s.Token, func(ctx context.Context) (net.Conn, error) { return p.DialSocket(ctx, socket) })
}

func (p Place) readState() (s state, err error) {
	content, _, err := atomicfile.Read(p.File(stateFile), stateSize)
	if err == nil {
		err = json.Unmarshal(content, &s)
	}
	if err == nil && s.Sum != "" && s.Sum != s.checksum() {
		err = errors.New("it is being written")
	}
	if err != nil {
		return s, fmt.Errorf("%s: %w", p.File(stateFile), err)
	}
	return s, nil
}

// settleTries is how often a state is read that cannot be read as a whole.
const settleTries = 5

// readSettled is readState for a caller without the lock of the supervisor. A state that cannot be parsed may be in the
// middle of a write, and is read again after a pause. pause reports whether to go on.
func (p Place) readSettled(pause func() bool) (s state, err error) {
	for range settleTries {
		if s, err = p.readState(); err == nil || errors.Is(err, fs.ErrNotExist) || !pause() {
			break
		}
	}
	return s, err
}

// openState opens the state, and takes its room on the disk if it has not got that yet.
func (p Place) openState() (*os.File, error) {
	f, err := os.OpenFile(p.File(stateFile), os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && info.Size() < stateSize {
		_, err = f.WriteAt(bytes.Repeat([]byte("\n"), int(stateSize-info.Size())), info.Size())
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// writeState writes the state in place, by one write. The caller has the lock of the supervisor.
func writeState(f *os.File, s state) error {
	s.Sum = s.checksum()
	content, err := json.Marshal(s)
	if err == nil && len(content) > stateSize {
		err = fmt.Errorf("the state of a supervisor has %d bytes, and may have %d", len(content), stateSize)
	}
	if err != nil {
		return err
	}
	_, err = f.WriteAt(append(content, bytes.Repeat([]byte("\n"), stateSize-len(content))...), 0)
	return err
}

// startSupervisor starts a supervisor. The caller has its lock, which the supervisor inherits.
func (p Place) startSupervisor(ctx context.Context, lock *os.File) error {
	program, err := p.Program()
	if err != nil {
		return fmt.Errorf("the supervisor of the machine does not run: %w", err)
	}
	var files opened
	defer files.closeFiles()
	if err := p.killLast(ctx); err != nil { // which has let go of its lock, and may run
		return err
	}
	o := Order{Program: program.file, UUID: p.UUID, Dir: p.Path, Config: p.Config, Lock: lock}
	o.Config.Token = rand.Text()
	if err := p.openProcess(&o, &files); err != nil {
		return err
	}
	if err := p.Starts.Take(p.UUID); err != nil {
		return fmt.Errorf("the supervisor is not started: %w: see %s", err, p.File(logFile))
	}
	if err := p.openFiles(ctx, &o, &files); err != nil {
		return err
	}
	return p.spawnProcess(ctx, o, state{Token: o.Config.Token, Program: program.digest, Boot: proc.Boot()})
}

// spawnProcess starts the process of a supervisor and records its process ID. Before, it records that a start is under way, so
// that the process of an interrupted start is searched for.
func (p Place) spawnProcess(ctx context.Context, o Order, s state) error {
	f, err := p.openState()
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if err := writeState(f, s); err != nil {
		return err
	}
	point := crashpoint.Begin("start supervisor", p.UUID)
	cmd, err := Spawn(ctx, o)
	point.End()
	if err != nil {
		return err
	}
	go func() { _ = proc.Wait(cmd) }()
	if s.StartTicks, err = proc.StartTicks(cmd.Process.Pid); err != nil {
		return fmt.Errorf("the supervisor has ended at once: see %s", p.File(logFile))
	}
	s.PID = cmd.Process.Pid
	return writeState(f, s)
}

// openFiles opens the descriptors that a supervisor inherits, but for the handle on QEMU's process.
func (p Place) openFiles(ctx context.Context, o *Order, files *opened) (err error) {
	if o.Listener, err = files.addFile(p.Listen(socket)); err != nil {
		return err
	}
	for name, to := range map[string]**os.File{machine.EventsSocket: &o.Monitor, machine.SerialSocket: &o.Serial, machine.AgentSocket: &o.Agent, machine.NetworkSocket: &o.Network} {
		if *to, err = files.addFile(p.dialFile(ctx, name)); err != nil {
			return err
		}
	}
	if o.Record, err = files.addFile(p.openRecord()); err != nil {
		return err
	}
	p.openPorts(ctx, o, files)
	return p.openLogs(o, files)
}

// openLogs opens the logs, and renames the log of the last supervisor, which may say why that ended. Once all log files
// exist, a later start creates none, which would fail on a full disk.
func (p Place) openLogs(o *Order, files *opened) (err error) {
	create := func(name string, flag int) (*os.File, error) {
		return os.OpenFile(p.File(name), os.O_CREATE|unix.O_NOFOLLOW|flag, 0o600)
	}
	for name, to := range map[string]**os.File{
		machine.SerialLogFile: &o.SerialLog, machine.SerialLogFile + machine.OldLog: &o.SerialAside,
		machine.LogFile: &o.Output, machine.LogFile + machine.OldLog: &o.OutputAside,
	} {
		if *to, err = files.addFile(create(name, os.O_RDWR)); err != nil {
			return err
		}
	}
	old, err := create(logFile+machine.OldLog, os.O_WRONLY)
	if err == nil {
		err = old.Close()
	}
	if err == nil {
		_ = os.Rename(p.File(logFile), p.File(logFile+machine.OldLog))
		o.Errors, err = files.addFile(create(logFile, os.O_APPEND|os.O_WRONLY))
	}
	return err
}

// openPorts opens the recorded ports. A port that cannot be opened does not keep a supervisor from being started: the
// supervisor reports that it does not serve that port.
func (p Place) openPorts(ctx context.Context, o *Order, files *opened) {
	o.Ports = map[control.Port]*os.File{}
	for _, port := range p.Config.Network.Wanted.Ports {
		socket := p.Sockets[port]
		if socket == nil {
			opened, _, err := control.Listen(ctx, port)
			if socket, err = files.addFile(opened, err); err != nil {
				continue
			}
		}
		o.Ports[port] = socket
	}
}

// openRecord opens the record, and makes it if it is missing.
func (p Place) openRecord() (*os.File, error) {
	f, err := os.OpenFile(p.Record, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	if f, err = MakeRecord(p.Record); err != nil {
		return nil, err
	}
	if _, err := os.Lstat(p.Path); errors.Is(err, fs.ErrNotExist) { // removed meanwhile, with all records
		return nil, errors.Join(ErrNoQEMU, f.Close(), os.Remove(p.Record))
	}
	return f, nil
}

// openProcess opens a handle on QEMU's process, and finds the user that it runs as.
func (p Place) openProcess(o *Order, files *opened) error {
	pid := p.PID()
	if pid == 0 {
		return ErrNoQEMU
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNoQEMU, err)
	}
	o.Process, _ = files.addFile(os.NewFile(uintptr(fd), "QEMU"), nil)
	user, group, err := proc.UserOf(pid)
	if err != nil || !p.IsOwnProcess(pid) { // another has the ID by now
		return errors.Join(ErrNoQEMU, err)
	}
	isOwn := user == uint32(os.Geteuid()) //nolint:gosec // a user ID
	switch {
	case isOwn && p.AreSeparate:
		return errors.New("it is not known which user QEMU runs as: it has the user of Drover")
	case !isOwn:
		o.User = &confine.User{ID: user, GroupID: group}
	}
	return nil
}

// dialFile connects to a socket of QEMU. One that refuses is of a QEMU that is ending: it closes its sockets before its
// process is gone.
func (p Place) dialFile(ctx context.Context, name string) (*os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, machine.CommandWithin)
	defer cancel()
	conn, err := p.DialSocket(ctx, name)
	if errors.Is(err, unix.ECONNREFUSED) {
		return nil, fmt.Errorf("%w: %w", ErrNoQEMU, err)
	}
	if tooOld := p.checkQEMU(); errors.Is(err, fs.ErrNotExist) && tooOld != nil {
		return nil, tooOld
	}
	if err != nil {
		return nil, err
	}
	f, err := conn.(*net.UnixConn).File()
	return f, errors.Join(err, conn.Close())
}

// checkQEMU refuses a QEMU that no supervisor can serve any more.
func (p Place) checkQEMU() error {
	if p.hasFile(machine.NetworkSocket) || !p.hasFile(machine.EventsSocket) {
		return nil
	}
	return fmt.Errorf("an earlier version of Drover has started QEMU, without a network that a supervisor can serve: end its process %d, and Drover starts it again", p.PID())
}

// hasFile reports whether a file of the machine's directory exists.
func (p Place) hasFile(name string) bool {
	_, err := os.Lstat(p.File(name))
	return err == nil
}

// End waits for the supervisor of a QEMU that has ended to record that and to end, and then ends it itself.
func (p Place) End(ctx context.Context) error {
	last, _ := p.readState()
	if ended, err := p.waitEnded(ctx); ended || err != nil {
		return err
	}
	if err := p.Replace(ctx, last.Token); err != nil {
		return err
	}
	if ended, err := p.waitEnded(ctx); ended || err != nil {
		return err
	}
	return errors.New("the supervisor does not end, though its QEMU has")
}

// waitEnded waits a little until no supervisor has the lock, and the last one that is known does not run: it may have
// let go of the lock.
func (p Place) waitEnded(ctx context.Context) (ended bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, endWithin)
	defer cancel()
	for {
		follows, err := p.IsSupervised()
		if err != nil {
			return false, err
		}
		if !follows && !p.isLastAlive() {
			return true, nil
		}
		if !proc.Pause(ctx, proc.PollEvery) {
			return false, nil
		}
	}
}

// Replace ends the supervisor that has a token, whatever it does, so that the next call of Reach starts another. QEMU
// runs on.
func (p Place) Replace(ctx context.Context, token string) error {
	pause := func() bool { return proc.Pause(ctx, proc.PollEvery) }
	s, err := p.readSettled(pause)
	switch {
	case err == nil && s.Token != token: // another has taken its place
		return nil
	case err == nil && s.isAlive():
		return p.killSupervisor(ctx, s)
	}
	return p.KillAll(ctx)
}

// ReplaceOutdated is Replace for a supervisor that was started as another version of the program, unless that was
// installed later than this one. It fails, and the supervisor stays, if no other could be started: for lack of the
// program, for the QEMU that it follows, or for lack of room on the disk.
func (p Place) ReplaceOutdated(ctx context.Context, token string) (replaced bool, err error) {
	s, err := p.readState()
	if err != nil {
		return false, nil //nolint:nilerr // There is none, or another one is being started.
	}
	program, err := p.Program()
	switch {
	case err == nil && (s.Program == program.digest || !program.IsLatest()):
		return false, nil
	case err == nil:
		err = p.checkStart()
	}
	if err != nil {
		return false, fmt.Errorf("the supervisor is not replaced by this version of Drover: %w", err)
	}
	return true, p.Replace(ctx, token)
}

// checkStart checks that a supervisor could be started.
func (p Place) checkStart() error {
	if err := p.checkQEMU(); err != nil {
		return err
	}
	f, err := p.openState()
	if err != nil {
		return err
	}
	return f.Close()
}

// KillAll ends every supervisor of the machine, also those whose machine's directory was removed.
func (p Place) KillAll(ctx context.Context) error {
	for _, pid := range proc.IDs() {
		if p.isSupervisor(pid) {
			if err := proc.Kill(ctx, pid, p.isSupervisor); err != nil {
				return fmt.Errorf("killing the supervisor %d of %s: %w", pid, p.UUID, err)
			}
		}
	}
	return nil
}

// killLast ends the supervisor that was started last. If that start was interrupted before the process ID was recorded, it
// searches all processes, since a supervisor that has released its lock cannot be found in another way.
func (p Place) killLast(ctx context.Context) error {
	s, err := p.readState()
	if isUnknown(s, err) {
		return p.KillAll(ctx)
	}
	return p.killSupervisor(ctx, s)
}

// isLastAlive reports whether the supervisor that killLast would end still runs.
func (p Place) isLastAlive() bool {
	s, err := p.readState()
	if isUnknown(s, err) {
		return slices.ContainsFunc(proc.IDs(), p.isSupervisor)
	}
	return s.isAlive()
}

// isUnknown reports whether a supervisor may run whose process ID is not recorded: its start was interrupted, or a power
// cut has damaged the state.
func isUnknown(s state, err error) bool {
	return err == nil && s.PID == 0 || err != nil && !errors.Is(err, fs.ErrNotExist)
}

// killSupervisor ends a supervisor, if it runs.
func (p Place) killSupervisor(ctx context.Context, s state) error {
	if err := proc.Kill(ctx, s.PID, func(int) bool { return s.isAlive() }); err != nil {
		return fmt.Errorf("killing the supervisor %d of %s: %w", s.PID, p.UUID, err)
	}
	return nil
}

// isSupervisor reports whether a process is a supervisor of this machine. Its working directory may be hidden from all
// but root. Where the machine's directory is gone, only a process that works in a removed one counts: that of a released
// machine was moved.
func (p Place) isSupervisor(pid int) bool {
	if !proc.HasOption(pid, MachineOption, p.UUID) {
		return false
	}
	here, hereErr := os.Stat(p.Path)
	there, err := os.Stat(proc.Path(pid, "cwd"))
	switch {
	case errors.Is(hereErr, fs.ErrNotExist):
		return err == nil && there.Sys().(*syscall.Stat_t).Nlink == 0 //nolint:forcetypeassert // on Linux
	case errors.Is(err, fs.ErrPermission):
		return unix.Kill(pid, 0) == nil // of this program's user
	}
	return err == nil && hereErr == nil && os.SameFile(here, there)
}

// opened are files that are closed together.
type opened []*os.File

func (o *opened) addFile(f *os.File, err error) (*os.File, error) {
	if err == nil {
		*o = append(*o, f)
	}
	return f, err
}

func (o *opened) closeFiles() {
	for _, f := range *o {
		_ = f.Close()
	}
}
