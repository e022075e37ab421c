// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/exits"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/proc"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// stateFile records which process is a machine's supervisor.
const stateFile = "supervisor.json"

// startedSupervisor has the fields that tests change in stateFile.
type startedSupervisor struct {
	Token      string `json:"token"`
	Program    string `json:"program"`
	PID        int    `json:"pid"`
	StartTicks int64  `json:"startTicks"`
	Boot       string `json:"boot"`
}

// liar replaces a machine's supervisor, whose token it knows.
type liar struct {
	process *exec.Cmd
	answer  atomic.Pointer[http.HandlerFunc]
}

// says sets the answer of the liar from now on.
func (l *liar) says(answer http.HandlerFunc) { l.answer.Store(&answer) }

// hasEnded reports whether the liar was ended.
func (l *liar) hasEnded() bool {
	_, err := os.Stat(proc.Path(l.process.Process.Pid, "exe"))
	return err != nil
}

// replaceByLiar ends the supervisor of a machine and replaces it by a liar, which may release the lock.
func replaceByLiar(t *testing.T, h *instance.Instance, hasLock bool) *liar {
	t.Helper()
	signalSupervisor(t, h, syscall.SIGKILL)
	var lock *os.File
	assert.Eventually(t, "the supervisor has ended", func(testing.TB) (err error) {
		lock, err = h.Machine.TryLock(supervisorLock)
		return err
	})
	l := &liar{process: exec.CommandContext(context.WithoutCancel(t.Context()), "/bin/sh", "-c", "read line", "-machine", string(h.UID))}
	l.process.Dir, l.process.ExtraFiles = h.Machine.Path, []*os.File{lock}
	input, err := l.process.StdinPipe() // the process ends when its input is closed
	assert.NoError(t, errors.Join(err, l.process.Start(), os.Remove(h.Machine.File("supervisor.sock"))))
	ended := make(chan struct{})
	go func() { defer close(ended); _ = l.process.Wait() }()
	t.Cleanup(func() { _, _ = input.Close(), l.process.Process.Kill(); <-ended })
	ticks, err := proc.StartTicks(l.process.Process.Pid)
	assert.NoError(t, err)
	framework.EditJSON(t, h.Machine.File(stateFile), func(s *startedSupervisor) { s.PID, s.StartTicks = l.process.Process.Pid, ticks })
	if !hasLock { // of which a process that another test forks may have a copy until its exec
		assert.NoError(t, unix.FcntlFlock(lock.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_UNLCK}))
	}
	assert.NoError(t, lock.Close())
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*l.answer.Load())(w, r) })} //nolint:gosec // a test's
	listener := framework.Listen(t, "unix", h.Machine.File("supervisor.sock"))
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	return l
}

// never never answers.
func never(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// text answers each call with a text.
func text(s string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, s) }
}

// endless answers with a text that is repeated without end.
func endless(s string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for {
			if _, err := io.WriteString(w, s); err != nil || http.NewResponseController(w).Flush() != nil {
				return
			}
		}
	}
}

// listOf returns all servers by their UIDs.
func listOf(t testing.TB, d *Driver) map[types.UID]driver.Server {
	t.Helper()
	servers, err := d.List(t.Context())
	assert.NoError(t, err)
	found := map[types.UID]driver.Server{}
	for _, s := range servers {
		found[s.UID] = s
	}
	return found
}

// TestLyingSupervisor checks that the claims of a supervisor are bounded, that they concern only the machine that it
// follows, and that the machine can be stopped and deleted whatever it says.
func TestLyingSupervisor(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	honest, lied := e.spec(), e.spec()
	reach(t, d, honest, driver.StateRunning)
	reach(t, d, lied, driver.StateRunning)
	h := d.Host.InstanceOf(lied.UID)
	l := replaceByLiar(t, h, true)
	status := func(more string) http.HandlerFunc {
		return text(`{"state":"running","accelerator":"tcg",` + more + `}`)
	}
	for _, lie := range []struct {
		name    string
		answer  http.HandlerFunc
		isError bool
	}{
		{"never", never, true},
		{"a long body", endless(strings.Repeat(" ", 4<<10)), true},
		{"no JSON", text("\x1b[2J"), true},
		{"another state", text(`{"state":"gone"}`), true},
		{"an escape", status(`"runState":"\u001b[2J"`), true},
		{"a fault", status(`"runState":"io-error","fault":{"reason":"\n"}`), true},
		{"less than none", status(`"runState":"running","guestMemoryBytes":-1`), true},
		{"a failure", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "\x1b[2J", http.StatusInternalServerError) }, true},
		{"another run state", status(`"runState":"levitating"`), false},
		{"far too much", status(`"runState":"running","guestMemoryBytes":4611686018427387904`), false},
	} {
		l.says(lie.answer)
		var s driver.Server
		assert.Eventually(t, lie.name+": the honest one is listed as ever", func(t testing.TB) error {
			found := listOf(t, d)
			if s = found[lied.UID]; found[honest.UID].Err != nil || found[honest.UID].State != driver.StateRunning {
				return fmt.Errorf("listed: %+v", found)
			}
			return nil
		})
		assert.True(t, s.State == driver.StateRunning && (s.Err != nil) == lie.isError && !strings.ContainsAny(fmt.Sprint(s.Err, s.Progress), "\x1b\n"),
			"%s: listed as %+v", lie.name, s)
		if lie.isError {
			continue
		}
		used, err := d.Usage(t.Context(), lied.UID)
		assert.True(t, err == nil && len(used) == 1 && used[0].MemoryBytes <= lied.MemoryBytes && used[0].MemoryBytes > 0,
			"%s: it uses %+v, %v", lie.name, used, err)
	}

	lied.Power, lied.StopBy = driver.PowerOff, time.Now().Add(-time.Second)
	s := reach(t, d, lied, driver.StateStopped)
	assert.True(t, s.Exit != nil && s.Exit.Reason == machine.EndForced, "it ended with %+v", s.Exit)
	assert.True(t, l.hasEnded(), "the liar outlives its machine")
}

// TestFalseEnd checks that a machine is ended if its supervisor says that the guest has ended, but does not end QEMU.
func TestFalseEnd(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec := e.spec()
	reach(t, d, spec, driver.StateRunning)
	l := replaceByLiar(t, d.Host.InstanceOf(spec.UID), true)
	l.says(text(`{"state":"running","runState":"shutdown"}`))
	spec.Power, spec.StopBy = driver.PowerOff, time.Now()
	s := reach(t, d, spec, driver.StateStopped)
	assert.True(t, s.Exit != nil && s.Exit.Reason == machine.EndCompleted && !s.Exit.At.IsZero(), "it ended with %+v", s.Exit)
	waitStopped(t, d.Host.InstanceOf(spec.UID))
}

// TestLyingRecord checks that a record of an end with any content is an end that can be, the same each time, and that
// nothing else is ever read in its place. It concerns only one server.
func TestLyingRecord(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec, other := e.spec(), e.spec()
	off(t, d, other)
	s := reach(t, d, spec, driver.StateRunning)
	assert.NoError(t, d.Host.InstanceOf(spec.UID).Machine.Kill(t.Context()))
	waitExit(t, d, spec.UID)
	path := d.Host.StateDir.Path(exits.Dir, string(spec.UID)+"."+s.ID+"."+s.Run+".end")
	secret := d.Host.StateDir.Path("secret")
	record := func(text string) []byte { return fmt.Appendf(nil, "%x %s\n", sha256.Sum256([]byte(text)), text) }
	assert.NoError(t, os.WriteFile(secret, record(`{"reason":"Completed"}`), 0o600))
	write := func(content []byte) func() error {
		return func() error { return os.WriteFile(path, content, 0o600) }
	}
	for name, c := range map[string]struct {
		make     func() error
		isBroken bool
		reason   string
	}{
		"the year 9999":    {write(record(`{"reason":"Completed","at":"9999-01-01T00:00:00Z"}`)), false, machine.EndCompleted},
		"no time":          {write(record(`{"reason":"GuestPanicked","output":"\u001b[2J\n"}`)), false, machine.EndPanicked},
		"another reason":   {write(record(`{"reason":"\u001b[2J"}`)), false, machine.EndKilled},
		"another content":  {write([]byte("\x1b[2J")), false, machine.EndKilled},
		"a huge file":      {func() error { return errors.Join(write([]byte("x"))(), os.Truncate(path, 1<<40)) }, false, machine.EndKilled},
		"a link":           {func() error { return os.Symlink(secret, path) }, true, ""},
		"a folder":         {func() error { return os.Mkdir(path, 0o700) }, true, ""},
		"a pipe":           {func() error { return syscall.Mkfifo(path, 0o600) }, true, ""},
		"a link to itself": {func() error { return os.Symlink(path, path) }, true, ""},
	} {
		d.Host.Exits.RemoveAll(spec.UID, "")
		assert.NoError(t, c.make())
		first := listOf(t, d)
		got, again := first[spec.UID], listOf(t, d)[spec.UID]
		assert.True(t, first[other.UID].Err == nil, "%s: the other is %+v", name, first[other.UID])
		switch {
		case c.isBroken && got.Err == nil, !c.isBroken && (got.Exit == nil || got.Exit.Reason != c.reason || strings.ContainsAny(got.Exit.Output, "\x1b\n")):
			t.Errorf("%s: listed as %+v with the exit %+v", name, got, got.Exit)
		case !c.isBroken && (*again.Exit != *got.Exit || got.Exit.At.Before(s.StartedAt) || got.Exit.At.After(time.Now())):
			t.Errorf("%s: its exit is %+v and then %+v", name, got.Exit, again.Exit)
		}
		assert.NoError(t, os.RemoveAll(path))
	}
}

// TestLiarsAreEnded checks that a supervisor which does not answer ends with its machine. A supervisor that releases its
// lock ends before another supervisor is started, even if its process is not recorded.
func TestLiarsAreEnded(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	for name, c := range map[string]struct{ hasLock, isUnknown bool }{
		"with its lock": {true, false}, "without it": {false, false}, "unknown, without it": {false, true},
	} {
		t.Run(name, func(t *testing.T) {
			deleted, reached := e.spec(), e.spec()
			l := letLie(t, d, deleted, c.hasLock, c.isUnknown)
			gone(t, d, deleted)
			assert.True(t, l.hasEnded(), "it outlives its machine")
			if c.hasLock {
				return
			}
			l = letLie(t, d, reached, c.hasLock, c.isUnknown)
			next, err := d.Host.InstanceOf(reached.UID).Supervisor().Reach(t.Context())
			assert.NoError(t, err)
			assert.True(t, l.hasEnded(), "there are two supervisors")
			assert.NoError(t, assert.ErrorOf(next.Status(t.Context())))
		})
	}
}

// letLie runs a machine whose supervisor is a liar that does not answer, and whose process may be unknown.
func letLie(t *testing.T, d *Driver, spec driver.ServerSpec, hasLock, isUnknown bool) *liar {
	t.Helper()
	reach(t, d, spec, driver.StateRunning)
	h := d.Host.InstanceOf(spec.UID)
	l := replaceByLiar(t, h, hasLock)
	l.says(never)
	if isUnknown {
		framework.EditJSON(t, h.Machine.File(stateFile), func(s *startedSupervisor) { s.PID, s.StartTicks = 0, 0 })
	}
	return l
}

// TestHeldLock checks that no second supervisor is started while anything holds the lock of the first, as a process
// that is being forked does until its exec. The first is reached meanwhile.
func TestHeldLock(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec := e.spec()
	reach(t, d, spec, driver.StateRunning)
	h := d.Host.InstanceOf(spec.UID)
	l := replaceByLiar(t, h, false)
	l.says(text(`{"state":"running"}`))
	held, err := h.Machine.TryLock(supervisorLock)
	assert.NoError(t, err)
	first := supervisorOf(t, h)
	c, err := h.Supervisor().Reach(t.Context())
	assert.NoError(t, errors.Join(err, assert.ErrorOf(c.Status(t.Context()))))
	now := supervisorOf(t, h)
	assert.True(t, now == first && !l.hasEnded(), "the supervisor is %+v, and was %+v, which has ended: %t", now, first, l.hasEnded())
	assert.NoError(t, held.Close())
}

// TestInterruptedSpawn checks that a supervisor is replaced, and is gone with its machine, if whoever started it ended
// before that was written down.
func TestInterruptedSpawn(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	replaced, deleted := e.spec(), e.spec()
	for _, spec := range []driver.ServerSpec{replaced, deleted} {
		reach(t, d, spec, driver.StateRunning)
		h := d.Host.InstanceOf(spec.UID)
		signalSupervisor(t, h, syscall.SIGSTOP)
		framework.EditJSON(t, h.Machine.File(stateFile), func(s *startedSupervisor) { s.PID, s.StartTicks = 0, 0 })
	}
	c, err := d.Host.InstanceOf(replaced.UID).Supervisor().Reach(t.Context())
	assert.NoError(t, err)
	assert.NoError(t, assert.ErrorOf(c.Status(t.Context())))
	n := supervisorsOf(replaced.UID)
	assert.True(t, len(n) == 1, "its supervisors are %v", n)
	gone(t, d, deleted)
	n = supervisorsOf(deleted.UID)
	assert.True(t, len(n) == 0, "left are the supervisors %v", n)
}

// TestUserIsFound checks that a QEMU gets a supervisor with the same user if its starter ended before that user was
// recorded.
func TestUserIsFound(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec := e.spec()
	run := reach(t, d, spec, driver.StateRunning).Run
	h := d.Host.InstanceOf(spec.UID)
	user := proc.UserID(h.Machine.PID())
	signalSupervisor(t, h, syscall.SIGKILL)
	assert.NoError(t, os.Remove(h.Machine.File(machine.StartedFile)))
	s := listAnswering(t, d, spec.UID)[0]
	assert.True(t, s.Run == run && s.State == driver.StateRunning, "it is %+v, and was in run %s", s, run)
	status := framework.ReadFile(t, proc.Path(supervisorOf(t, h).PID, "status"))
	assert.True(t, strings.Contains(status, fmt.Sprintf("\nUid:\t%d\t%[1]d\t%[1]d\t%[1]d\n", user)), "its user is not %d: %s", user, status)
}

// supervisorsOf returns the supervisors of a machine that run at the same time.
func supervisorsOf(uid types.UID) []int {
	isOne := func(pid int) bool { return proc.HasOption(pid, "-machine", string(uid)) }
	var found []int
	for _, pid := range proc.IDs() {
		if isOne(pid) {
			found = append(found, pid)
		}
	}
	return slices.DeleteFunc(found, func(pid int) bool { return !isOne(pid) })
}

// TestOneSupervisor checks that a machine never has two supervisors, whoever starts one while others are killed, and
// none once it is deleted.
func TestOneSupervisor(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	drivers := []*Driver{e.open(t), e.open(t)}
	spec := e.spec()
	run := reach(t, drivers[0], spec, driver.StateRunning).Run
	const callers, kills = 8, 15
	stop := make(chan struct{})
	var calling, watching sync.WaitGroup
	var reached atomic.Int64
	for n := range callers {
		calling.Go(func() {
			h := drivers[n%len(drivers)].Host.InstanceOf(spec.UID)
			for {
				select {
				case <-stop:
					return
				default:
				}
				if s, err := h.Observe(t.Context()); err == nil && s.QueryErr == nil {
					reached.Add(1)
				}
			}
		})
	}
	over := make(chan struct{})
	watching.Go(func() {
		for {
			select {
			case <-over:
				return
			default:
			}
			if n := supervisorsOf(spec.UID); len(n) > 1 {
				t.Errorf("there are the supervisors %v", n)
				return
			}
		}
	})
	seed := rand.Uint64() //nolint:gosec // printed
	t.Logf("the seed is %d", seed)
	random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // see above
	for range kills {
		before := reached.Load()
		wanted := before + random.Int64N(4)
		assert.Eventually(t, "the machine answers", func(testing.TB) error {
			n := reached.Load()
			return assert.ErrorUnless(n >= wanted, "it has %d times", n)
		})
		for _, pid := range supervisorsOf(spec.UID) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	close(stop)
	calling.Wait()
	s := listAnswering(t, drivers[1], spec.UID)[0]
	assert.True(t, s.Run == run && s.State == driver.StateRunning, "it is %+v, and was in run %s", s, run)
	gone(t, drivers[0], spec)
	close(over)
	watching.Wait()
	n := supervisorsOf(spec.UID)
	assert.True(t, len(n) == 0, "left are the supervisors %v", n)
}

// floods says that something has changed: without end, or once on each connection.
func floods(isEndless bool) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		_, err = io.WriteString(conn, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n!")
		for isEndless && err == nil {
			_, err = io.WriteString(conn, "!!!!!!!!!!!!!!!!")
		}
	}
}

// TestFloodedWatch checks that a supervisor which says without end that something has changed, or ends each stream at
// once, has its machine looked at a few times and then once in a while.
func TestFloodedWatch(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]http.HandlerFunc{"without end": floods(true), "again and again": floods(false)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEngine(t) // who watches a folder replaces the supervisors of all machines in it
			o := e.options()
			o.Clock = framework.NewFakeClock(time.Now())
			d := openWith(t, o)
			spec, other := e.spec(), e.spec()
			reach(t, d, spec, driver.StateRunning)
			off(t, d, other)
			l := replaceByLiar(t, d.Host.InstanceOf(spec.UID), true)
			l.says(answer)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			changes, err := d.Watch(ctx)
			assert.NoError(t, err)
			seen := map[types.UID]int{}
			for seen[other.UID] < 200 { // long enough to see a machine that is looked at again and again
				d.Host.Notify(other.UID)
				for uid := types.UID(""); uid != other.UID; seen[uid]++ {
					uid = <-changes
				}
			}
			n := seen[spec.UID]
			assert.True(t, n >= 1 && n <= 25, "it was looked at %d times", n)
			cancel()
			for range changes {
			}
		})
	}
}
