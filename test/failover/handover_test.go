// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver/statedir"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/users"
	"cloudnative.tw/drover/test/tier"
)

// TestLeaderHaltedDuringCreations halts a leader while it creates servers. The next leader,
// which has no other work, removes the finalizers of the objects, because they were
// deleted. When the first one continues, it must not create servers without an
// owner.
func TestLeaderHaltedDuringCreations(t *testing.T) {
	tier.Full(t, "it starts a cluster and three replicas; the gate keeps a halted leader in TestFailover, and creations of one in test/schedules")
	t.Parallel()
	w := newEnvironment(t, fencedController(t), outputDir(t, "halted"), 0)
	for _, r := range w.replicas {
		// Long enough to be met, and short enough to be over before the process
		// looks at the clock: then some calls go on that should have been cut.
		r.args = append(r.args, "--fake-latency=800ms")
	}
	creators := w.users
	w.users = nil
	e := w.runWithFaults(t, func(ctx context.Context, w *environment) ([]Fault, error) {
		ctx, cancel := withLimit(ctx)
		defer cancel()
		fault, err := w.haltDuringCreations(ctx, creators)
		return []Fault{fault}, err
	})
	t.Log(e.Summary())
	for _, v := range Judge(e) {
		t.Errorf("%s\n%s", v, e.History(v.UID))
	}
}

func (w *environment) haltDuringCreations(ctx context.Context, creators []*users.User) (f Fault, err error) {
	err = forAllUsers(creators, func(u *users.User) error {
		return errors.Join(u.CreateVM(ctx, framework.NewVM(u.Name).Obj(), 1), u.WaitFor(ctx, checkStarted))
	})
	if err != nil {
		return f, err
	}
	p, err := w.haltLeader(ctx)
	if err != nil {
		return f, err
	}
	f = Fault{Kind: Halt, PID: p.PID(), From: time.Now()}
	err = forAllUsers(creators, func(u *users.User) error { return u.DeleteVM(ctx) })
	f.To = time.Now()
	if err := errors.Join(err, sendSignal(p, syscall.SIGCONT)); err != nil {
		return f, err
	}
	return f, waitForEnd(ctx, p) // it lost the Lease
}

// haltLeader halts the process of the replica that has the Lease. One that has lost it
// just before, as on a loaded machine, continues: it is a standby, which never ends. One that
// holds a server's lock continues too: until then the next leader could not delete that server.
func (w *environment) haltLeader(ctx context.Context) (*framework.Process, error) {
	for ctx.Err() == nil {
		r, p, err := w.reserveLeader(ctx)
		if err != nil {
			return nil, err
		}
		if err := sendSignal(p, syscall.SIGSTOP); err != nil {
			return nil, err
		}
		locked := false
		if err = waitUntilHalted(ctx, p); err == nil {
			locked, err = w.isAnyServerLocked()
		}
		if err != nil {
			return nil, errors.Join(err, sendSignal(p, syscall.SIGCONT))
		}
		if !locked && w.leadingReplica(ctx) == r {
			return p, nil
		}
		if err := sendSignal(p, syscall.SIGCONT); err != nil {
			return nil, err
		}
		r.release()
	}
	return nil, fmt.Errorf("no replica leads: %w", ctx.Err())
}

// waitUntilHalted waits until a process that got SIGSTOP runs no more.
func waitUntilHalted(ctx context.Context, p *framework.Process) error {
	for !p.HasEnded() && !isHalted(p.PID()) {
		if users.Sleep(ctx, pollPeriod); ctx.Err() != nil {
			return fmt.Errorf("process %d is not halted: %w", p.PID(), ctx.Err())
		}
	}
	return nil
}

// isAnyServerLocked reports whether a process holds the lock of a server of the fake engine.
func (w *environment) isAnyServerLocked() (bool, error) {
	paths, err := filepath.Glob(filepath.Join(w.FakeDir, "locks", "*"))
	if err != nil {
		return false, err
	}
	for _, path := range paths {
		switch lock, err := statedir.TryLockExisting(path, syscall.LOCK_EX); {
		case err == nil:
			lock.Release()
		case errors.Is(err, syscall.EWOULDBLOCK):
			return true, nil
		case !errors.Is(err, fs.ErrNotExist):
			return false, err
		}
	}
	return false, nil
}

// isHalted reports whether all threads of a process are stopped.
func isHalted(pid int) bool {
	paths, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	return err == nil && len(paths) > 0 && !slices.ContainsFunc(paths, func(path string) bool {
		stat, err := os.ReadFile(path)
		return err != nil || !strings.Contains(string(stat), ") T ")
	})
}

// reserveLeader reserves the replica that the Lease names for a fault, once its process runs:
// on a loaded machine one may have lost the Lease, and ended.
func (w *environment) reserveLeader(ctx context.Context) (*replica, *framework.Process, error) {
	for ; ctx.Err() == nil; users.Sleep(ctx, pollPeriod) {
		r := w.leadingReplica(ctx)
		if r == nil {
			continue
		}
		if p, runs := r.reserve(); runs {
			return r, p, nil
		}
	}
	return nil, nil, fmt.Errorf("no replica leads: %w", ctx.Err())
}

func forAllUsers(all []*users.User, do func(*users.User) error) error {
	errs := make(chan error, len(all))
	for _, u := range all {
		go func() { errs <- do(u) }()
	}
	var err error
	for range all {
		err = errors.Join(err, <-errs)
	}
	return err
}

// checkStarted reports whether the VM's server is being created now, or was created
// already, where a slow machine looks too late.
func checkStarted(vm *api.VirtualMachine) error {
	if vm == nil || vm.Status.Operation == nil && vm.Status.Server == nil {
		return errors.New("its server is not started")
	}
	return nil
}
