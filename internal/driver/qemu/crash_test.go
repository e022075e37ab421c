// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/internal/driver/qemu/record"
	"cloudnative.tw/drover/internal/machine/proc"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/tier"
)

// crashEnv holds, in a process that a test starts, the engine and the servers that the
// process is to start.
const crashEnv = "DROVER_TEST_START_MACHINES"

type crashPlan struct {
	Dir, Images string
	Source      string
	Binary      string // empty for the usual QEMU
	UIDs        []types.UID
}

// machineProgram is the program that follows each QEMU, which processes that tests start have too.
var machineProgram = os.Getenv(machineEnv)

const machineEnv = "DROVER_TEST_MACHINE_PROGRAM"

func TestMain(m *testing.M) {
	if plan := os.Getenv(crashEnv); plan != "" {
		startMachines(plan)
	}
	os.Exit(runWithMachine(m))
}

// runWithMachine runs the tests with a drover-machine that every user may execute.
func runWithMachine(m *testing.M) int {
	if machineProgram != "" { // of the tests that have started these
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "drover-machine-")
	if err == nil {
		defer func() { _ = os.RemoveAll(dir) }()
		var remove func()
		if remove, err = framework.TrustTestServers(); err == nil {
			defer remove()
		}
		machineProgram = filepath.Join(dir, "drover-machine")
		err = errors.Join(err, os.Chmod(dir, 0o755), framework.BuildMachine(machineProgram), os.Setenv(machineEnv, machineProgram))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// startMachines acts as a controller that is killed while it is at work.
func startMachines(text string) {
	var plan crashPlan
	if err := json.Unmarshal([]byte(text), &plan); err != nil {
		panic(err)
	}
	o := (&engine{dir: plan.Dir, images: plan.Images}).options()
	if o.Binary = plan.Binary; o.Binary != "" {
		o.User, o.UserIDs = "", "" // so that it can kill this process
	}
	d, err := New(o)
	if err != nil {
		panic(err)
	}
	if _, err := d.List(context.Background()); err != nil { // as controllers do first
		panic(err)
	}
	var all sync.WaitGroup
	for _, uid := range plan.UIDs {
		all.Go(func() { _, _ = d.Ensure(context.Background(), plan.spec(uid)) })
	}
	all.Wait()
	time.Sleep(time.Hour)
}

// controller returns a process that carries the plan out.
func (p crashPlan) controller(t *testing.T) *exec.Cmd {
	t.Helper()
	text, err := json.Marshal(p)
	assert.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), crashEnv+"="+string(text))
	return cmd
}

func (p crashPlan) spec(uid types.UID) driver.ServerSpec {
	e := engine{plain: p.Source}
	spec := e.spec()
	spec.UID = uid
	return spec
}

// TestControllerKilled checks ten machines whose controller was killed. Those that
// existed keep running unchanged, and each exists exactly once in the end.
func TestControllerKilled(t *testing.T) {
	t.Parallel()
	kills := []int{5}
	if tier.IsFull() {
		kills = []int{1, 5, 10}
	}
	for _, atLeast := range kills {
		e := newEngine(t)
		plan := crashPlan{Dir: e.dir, Images: e.images, Source: e.plain}
		for range 10 {
			plan.UIDs = append(plan.UIDs, e.spec().UID)
		}
		d := e.open(t)
		controller := plan.controller(t)
		assert.NoError(t, controller.Start())
		assert.Eventually(t, fmt.Sprintf("%d machines are there", atLeast), func(testing.TB) error {
			n := len(machines(d, plan.UIDs))
			return assert.ErrorUnless(n >= atLeast, "there are %d", n)
		})
		assert.NoError(t, controller.Process.Kill())
		_ = controller.Wait()
		before := machines(d, plan.UIDs)
		for _, uid := range plan.UIDs {
			reach(t, d, plan.spec(uid), driver.StateRunning)
		}
		after := machines(d, plan.UIDs)
		for _, uid := range plan.UIDs {
			assert.True(t, len(after[uid]) == 1, "server %s has the processes %v, want one", uid, after[uid])
			assert.True(t, len(before[uid]) == 0 || before[uid][0] == after[uid][0], "server %s was process %v and is %v", uid, before[uid], after[uid])
		}
		t.Logf("killed with %d machines there", len(before))
	}
}

// TestControllerKilledInStart checks that the end of the previous run is not taken for
// that of a run which did not start.
func TestControllerKilledInStart(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec := e.spec()
	first := reach(t, d, spec, driver.StateRunning)
	end := off(t, d, spec).Exit
	assert.Require(t, end != nil && end.Code == 0, "it ended with %+v", end)
	// The program that the controller starts kills it, before there is a QEMU.
	killer := fails(t, "kill -9 $PPID")
	plan := crashPlan{Dir: e.dir, Images: e.images, Source: e.plain, Binary: killer, UIDs: []types.UID{spec.UID}}
	_ = plan.controller(t).Run()
	s := listed(t, e.open(t), spec)
	assert.True(t, s.State == driver.StateStopped && s.Run != first.Run && s.Exit == nil, "a machine that did not come to start is %+v", s)
	reach(t, d, spec, driver.StateRunning)
}

// TestStartIsAnnounced checks that other processes see to a machine as soon as its QEMU runs: the leader may end before
// the guest does anything.
func TestStartIsAnnounced(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec := e.spec()
	off(t, d, spec)
	d.Host.RemoveNotification(spec.UID)
	starting := e.openBinary(t, fails(t, "exec sleep 1000")) // which never answers
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		spec.Power = driver.PowerOn
		_, _ = starting.Ensure(ctx, spec)
	}()
	assert.Eventually(t, "the start is announced", func(testing.TB) error {
		_, err := os.Stat(d.Host.StateDir.Path(instance.NotificationsDir, string(spec.UID)))
		return err
	})
	inst, err := d.Host.InstanceOf(spec.UID).Load()
	assert.True(t, err == nil && inst.Phase == record.PhaseStarting, "it was announced in phase %q, %v", inst.Phase, err)
	cancel()
	<-done
	gone(t, d, spec)
}

// machines returns the processes of each server that has any.
func machines(d *Driver, uids []types.UID) map[types.UID][]int {
	all := proc.IDs()
	found := map[types.UID][]int{}
	for _, uid := range uids {
		for _, pid := range all {
			if d.Host.InstanceOf(uid).Machine.IsOwnProcess(pid) {
				found[uid] = append(found[uid], pid)
			}
		}
	}
	return found
}
