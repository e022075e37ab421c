// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/prometheus/procfs"

	"cloudnative.tw/drover/internal/driver/statedir"
	"cloudnative.tw/drover/internal/machine/confine"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/failover/processlog"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/rules"
	"cloudnative.tw/drover/test/tier"
)

const (
	machineUsers    = 6
	machineReplicas = 3
)

// machinePlan is for environments of QEMU machines, which use more of the host's resources than
// simulated servers.
var machinePlan = faultPlan{1, map[Kind]int{Halt: 30, Kill: 20, Term: 15, Disconnect: 5, DelayReplies: 5, DeleteLease: 5}}

// machineEnvironment is an environment whose servers are QEMU machines.
type machineEnvironment struct {
	*environment
	// engine is the folder of the machines, and log records their starts.
	engine string
	log    *processlog.Log
	// user is the user that runs the replicas; nil means the user of the test.
	user *syscall.Credential
}

// newMachineEnvironment returns an environment whose machines run a guest of one boot sector.
func newMachineEnvironment(t testing.TB, dir string, seed uint64, asPlainUser bool) *machineEnvironment {
	t.Helper()
	framework.QEMUBinary(t)
	w := &machineEnvironment{environment: newEmptyEnvironment(t, dir)}
	w.addUsers(machineUsers, seed)
	for _, u := range w.users {
		u.UsesQEMU = true
	}
	w.makeEngine(t, asPlainUser)
	guest := framework.BuildBootGuest(t, w.images(), "A", false)
	program := w.copyProgram(t, fencedController(t), "controller")
	for range machineReplicas {
		w.addReplica(t, program, w.user,
			"--vm-driver=qemu", "--qemu-dir="+w.engine, "--qemu-image-dirs="+w.images(), "--qemu-image="+guest,
			"--qemu-accel=tcg", "--qemu-binary="+w.recorder(), "--qemu-journal="+w.journal)
	}
	w.giveAway(t)
	t.Cleanup(func() { w.endMachines(t) })
	return w
}

// makeEngine makes the folder of the machines in a folder that the machines' user may enter, which
// also has the program that replaces QEMU.
func (w *machineEnvironment) makeEngine(t testing.TB, asPlainUser bool) {
	t.Helper()
	if asPlainUser {
		w.user = framework.PlainUser(t)
	}
	w.engine = filepath.Join(framework.ShortTempDir(t), "engine")
	w.copyProgram(t, builtProgram(t, processRecorder), filepath.Base(w.recorder()))
	assert.NoError(t, errors.Join(os.Chmod(w.beside(""), 0o711), os.Mkdir(w.engine, 0o700), os.Mkdir(w.images(), 0o700)))
	var err error
	w.log, err = processlog.NewLog(w.recorder())
	assert.NoError(t, err)
	t.Cleanup(func() { assert.ReportError(t, w.log.Close()) })
}

// copyProgram copies a program to a folder where every user may execute it.
func (w *machineEnvironment) copyProgram(t testing.TB, program, name string) (path string) {
	t.Helper()
	path = w.beside(name)
	assert.NoError(t, errors.Join(framework.CopyFile(program, path), os.Chmod(path, 0o755)))
	return path
}

// giveAway makes the replicas' user the owner of the files that the replicas use.
func (w *machineEnvironment) giveAway(t testing.TB) {
	t.Helper()
	if w.user == nil {
		return
	}
	w.journal = w.beside("journal")
	assert.NoError(t, os.WriteFile(w.journal, nil, 0o600))
	for name, c := range w.commands {
		config := w.beside("kubeconfig-" + name)
		assert.NoError(t, framework.CopyFile(w.proxies[name].Kubeconfig, config))
		c.Args = append(c.Args, "--kubeconfig="+config, "--qemu-journal="+w.journal)
		w.commands[name] = c
	}
	assert.NoError(t, framework.ChownAll(w.beside(""), w.user))
}

// beside returns the path of a file beside the engine's folder.
func (w *machineEnvironment) beside(name string) string {
	return filepath.Join(filepath.Dir(w.engine), name)
}

func (w *machineEnvironment) images() string   { return w.beside("images") }
func (w *machineEnvironment) recorder() string { return w.beside("qemu") }

// endMachines kills the machines that a failed test has left running.
func (w *machineEnvironment) endMachines(t testing.TB) {
	t.Helper()
	for uid := range w.requests.Requested() {
		pids, err := processlog.Processes(uid)
		assert.ReportError(t, err)
		for _, pid := range pids {
			t.Errorf("a machine was left running: process %d", pid)
			assert.ReportError(t, syscall.Kill(pid, syscall.SIGKILL))
		}
	}
}

// judgeMachines runs the environment with faults and reads the result.
func (w *machineEnvironment) judgeMachines(t testing.TB, inject faultFunc) Evidence {
	t.Helper()
	e := w.runWithFaults(t, inject)
	var err error
	e.Starts, err = w.log.Starts()
	assert.NoError(t, err)
	// A QEMU may take a moment to end after the controller has.
	if err := assert.Poll(t.Context(), "nothing is left", func() error {
		if e.Leftovers = w.listLeftovers(t); len(e.Leftovers) > 0 {
			return errors.New("something is left")
		}
		return nil
	}); err != nil {
		t.Logf("%v: %v", err, e.Leftovers)
	}
	return e
}

// listLeftovers returns the remains of machines after all VMs are deleted. Before, a new process
// sweeps unfinished work of killed ones.
func (w *machineEnvironment) listLeftovers(t testing.TB) []string {
	t.Helper()
	var all []string
	for uid, requested := range w.requests.Requested() {
		pids, err := processlog.Processes(uid)
		assert.ReportError(t, err)
		for _, pid := range pids {
			all = append(all, fmt.Sprintf("process %d of %s (%s), %s", pid, uid, requested.Name, describeProcess(pid)))
		}
	}
	var owner *confine.User
	if w.user != nil {
		owner = &confine.User{ID: w.user.Uid, GroupID: w.user.Gid}
	}
	assert.NoError(t, confine.RunAs(owner, func() error {
		return assert.ErrorOf(statedir.Open("the engine's folder", w.engine))
	}))
	err := filepath.WalkDir(w.engine, func(path string, _ os.DirEntry, err error) error {
		name, _ := filepath.Rel(w.engine, path)
		if err == nil && strings.ContainsRune(name, '/') && !strings.HasPrefix(name, "epochs/") && !strings.HasPrefix(name, "broker/") && !strings.HasPrefix(name, "programs/") && name != "cache/lock" {
			all = append(all, name)
		}
		return err
	})
	assert.ReportError(t, err)
	return all
}

// describeProcess returns the state of a process, and the kernel function in which it waits.
func describeProcess(pid int) string {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return err.Error()
	}
	stat, _ := p.Stat() // empty once the process has ended
	waits, _ := p.Wchan()
	return fmt.Sprintf("state %s, at %s", stat.State, waits)
}

// TestMachines checks that during all faults no server has two QEMUs, that each run is started once, and
// that nothing is lost or left behind. The controllers run as the test's user, and as a
// plain user.
func TestMachines(t *testing.T) {
	tier.Full(t, "machines and replicas in two environments; the gate keeps TestFailover, where servers are simulated, and the driver's tests that no server has two QEMUs")
	t.Parallel()
	for name, asPlainUser := range map[string]bool{"test's user": false, "plain user": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testMachines(t, asPlainUser)
		})
	}
}

func testMachines(t *testing.T, asPlainUser bool) {
	t.Helper()
	seed := newSeed(t)
	w := newMachineEnvironment(t, outputDir(t, "machines"), seed, asPlainUser)
	e := w.judgeMachines(t, func(ctx context.Context, w *environment) ([]Fault, error) {
		s := newFaultInjector(w, machinePlan.kinds(), seed)
		s.workers = 1 // machines start slowly, and need a leader meanwhile
		return s.injectAll(ctx)
	})
	t.Logf("%s\nQEMU started %d times", e.Summary(), len(e.Starts))
	// A user may delete a VM that has not started yet, so fewer machines than users may start.
	assert.True(t, len(e.Faults) == len(machinePlan.kinds()) && len(e.Starts) != 0,
		"%d faults were injected, want %d; %d machines were started", len(e.Faults), len(machinePlan.kinds()), len(e.Starts))
	for _, v := range rules.Judge(e.Evidence) {
		t.Errorf("%s\n%s", v, e.History(v.UID))
	}
}
