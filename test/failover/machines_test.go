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
	"time"

	"k8s.io/apimachinery/pkg/types"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver/journal"
	"cloudnative.tw/drover/internal/driver/statedir"
	"cloudnative.tw/drover/test/failover/births"
	"cloudnative.tw/drover/test/rig"
	"cloudnative.tw/drover/test/vmtest"
)

const (
	machineUsers    = 6
	machineReplicas = 3
)

// machinePlans are for worlds of QEMU machines, which need more of the host than
// simulated servers.
var machinePlans = map[string]plan{
	"":     {1, map[Kind]int{Halt: 5, Kill: 5, Term: 4}},
	"full": {1, map[Kind]int{Halt: 30, Kill: 20, Term: 15, Cut: 5, Late: 5, Unlease: 5}},
}

// newMachines returns a world whose servers are QEMU machines with the guest of one
// boot sector.
func newMachines(t testing.TB, binary, dir string, users int, seed uint64) *world {
	t.Helper()
	vmtest.QEMU(t)
	w := emptyWorld(t, dir)
	w.populate(users, seed)
	for _, u := range w.users {
		u.ofMachines = true
	}
	var err error
	if w.engine, err = os.MkdirTemp("", "drover-machines-"); err != nil { //nolint:usetesting // Sockets want short paths.
		t.Fatal(err)
	}
	t.Cleanup(func() { complain(t, os.RemoveAll(w.engine)) })
	if err := errors.Join(os.Mkdir(w.images(), 0o700), os.Symlink(program(t, recorder), w.recorder())); err != nil {
		t.Fatal(err)
	}
	guest := vmtest.BootGuest(t, w.images(), "A", false)
	for range machineReplicas {
		w.addReplica(t, binary,
			"--vm-driver=qemu", "--qemu-dir="+w.engine, "--qemu-image-dirs="+w.images(), "--qemu-image="+guest,
			"--qemu-accel=tcg", "--qemu-binary="+w.recorder(), "--qemu-journal="+w.journal)
	}
	t.Cleanup(func() { w.endMachines(t) })
	return w
}

func (w *world) images() string   { return filepath.Join(w.dir, "images") }
func (w *world) recorder() string { return filepath.Join(w.dir, "qemu") }

// endMachines ends the machines that a failed test has left running.
func (w *world) endMachines(t testing.TB) {
	t.Helper()
	for uid := range w.book.asked {
		pids, err := births.Processes(uid)
		complain(t, err)
		for _, pid := range pids {
			t.Errorf("a machine was left running: process %d", pid)
			complain(t, syscall.Kill(pid, syscall.SIGKILL))
		}
	}
}

// judgeMachines runs the world with faults and reads the result.
func (w *world) judgeMachines(t testing.TB, strike weather) MachineEvidence {
	t.Helper()
	e := MachineEvidence{Evidence: w.run(t, strike)}
	var err error
	if e.Births, err = births.Read(w.recorder() + births.Suffix); err != nil {
		t.Fatal(err)
	}
	// A QEMU may take a moment to end after the controller has.
	if _, err := vmtest.Poll(rig.Soon, func() error {
		if e.Left = w.left(t); len(e.Left) > 0 {
			return errors.New("something is left")
		}
		return nil
	}); err != nil {
		t.Log(err)
	}
	return e
}

// left returns what remains of machines after all are deleted. The next process
// sweeps what a killed one left unfinished.
func (w *world) left(t testing.TB) []string {
	t.Helper()
	var all []string
	for uid, asked := range w.book.asked {
		pids, err := births.Processes(uid)
		complain(t, err)
		for _, pid := range pids {
			all = append(all, fmt.Sprintf("process %d of %s (%s)", pid, uid, asked.Name))
		}
	}
	if _, err := statedir.Open("the engine's folder", w.engine); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(w.engine, func(path string, _ os.DirEntry, err error) error {
		name, _ := filepath.Rel(w.engine, path)
		if err == nil && strings.ContainsRune(name, '/') && !strings.HasPrefix(name, "epochs/") && name != "cache/lock" {
			all = append(all, name)
		}
		return err
	})
	complain(t, err)
	return all
}

// TestMachines checks that, whatever happens to replicas, no server has two QEMUs,
// each run is started once, nothing is lost and nothing is left behind.
func TestMachines(t *testing.T) {
	t.Parallel()
	p, known := machinePlans[os.Getenv(sizeEnv)]
	if !known {
		t.Fatalf("%s is %q: it must be full or empty", sizeEnv, os.Getenv(sizeEnv))
	}
	seed := seedOf(t)
	w := newMachines(t, program(t, fenced), folder(t, "machines"), machineUsers, seed)
	e := w.judgeMachines(t, func(ctx context.Context, w *world) ([]Fault, error) {
		s := newStorm(w, p.kinds(), seed)
		s.hands = 1 // machines take a while, in which there should be a leader
		return s.rage(ctx)
	})
	t.Log(e.Summary())
	if len(e.Faults) != len(p.kinds()) || len(e.Births) < machineUsers {
		t.Errorf("%d faults struck, want %d; %d machines were started", len(e.Faults), len(p.kinds()), len(e.Births))
	}
	for _, v := range JudgeMachines(e) {
		t.Errorf("%s\n%s", v, e.Story(v.UID))
	}
}

// TestKilledInStarts kills a leader while it starts machines. The next one adopts
// all of them as they are, and starts the others.
func TestKilledInStarts(t *testing.T) {
	t.Parallel()
	w := newMachines(t, program(t, fenced), folder(t, "starts"), 10, 0)
	makers := w.users
	w.users = nil
	e := w.judgeMachines(t, func(ctx context.Context, w *world) ([]Fault, error) {
		ctx, cancel := context.WithTimeout(ctx, calmWithin)
		defer cancel()
		fault, err := w.killInStarts(ctx, makers)
		return []Fault{fault}, err
	})
	t.Log(e.Summary())
	for _, v := range JudgeMachines(e) {
		t.Errorf("%s\n%s", v, e.Story(v.UID))
	}
}

func (w *world) killInStarts(ctx context.Context, makers []*user) (f Fault, err error) {
	err = together(makers, func(u *user) error {
		return u.begin(ctx, vmtest.VM(u.name).Resource(api.ResourceMemory, "32M").Obj(), 1)
	})
	for n := 0; n < len(makers)/3 && err == nil; sleep(ctx, lookPeriod) {
		var born []births.ProcessStart
		born, err = births.Read(w.recorder() + births.Suffix)
		n, err = len(born), errors.Join(err, ctx.Err())
	}
	r := w.leader(ctx)
	if err != nil || r == nil {
		return f, errors.Join(err, errors.New("nobody leads"))
	}
	p, ok := r.seize()
	if !ok {
		return f, errors.New("the leader does not run")
	}
	f = Fault{Kind: Kill, PID: p.PID(), From: time.Now()}
	err = signal(p, syscall.SIGKILL)
	r.letGo()
	err = errors.Join(err, together(makers, func(u *user) error { return u.granted(ctx, 1) }))
	f.To = time.Now()
	return f, errors.Join(err, together(makers, func(u *user) error { return u.delete(ctx) }))
}

// TestMachinesCheckCanFail checks that without guard and fence, replicas that were
// halted act on machines after their successors, and that the rules detect it. It
// takes long, so only the long test includes it.
func TestMachinesCheckCanFail(t *testing.T) {
	t.Parallel()
	if os.Getenv(sizeEnv) != "full" {
		t.Skipf("it takes minutes: %s=full has it", sizeEnv)
	}
	seed := seedOf(t)
	w := newMachines(t, program(t, unfenced), folder(t, "machines-unfenced"), machineUsers, seed)
	e := w.judgeMachines(t, func(ctx context.Context, w *world) ([]Fault, error) {
		ctx, cancel := context.WithTimeout(ctx, haltsWithin)
		defer cancel()
		go func() {
			for ; ctx.Err() == nil; sleep(ctx, time.Second) {
				if len(fallenSoFar(w.journal)) >= enough {
					cancel()
				}
			}
		}()
		return newStorm(w, plan{faults: map[Kind]int{Halt: maxHalts}}.kinds(), seed).rage(ctx)
	})
	t.Logf("without guard and fence:\n%s", e.Summary())
	violations := JudgeMachines(e)
	for _, v := range violations {
		t.Log(v)
	}
	if len(violations) == 0 {
		t.Error("no violation was found: the check is worth nothing")
	}
}

// machineStory is hand-made evidence.
func machineStory() MachineEvidence {
	asked := newStory().Evidence
	asked.Journal = []journal.Entry{{At: second(1), PID: 11, Epoch: 5, UID: one, Action: journal.ActionCreate}, {At: second(2), PID: 11, Epoch: 5, UID: one, Action: "start"}}
	return MachineEvidence{Evidence: asked, Births: []births.ProcessStart{{At: second(3), PID: 21, UID: one, Run: "run-1"}}}
}

func TestJudgeMachines(t *testing.T) {
	t.Parallel()
	entry := func(e *MachineEvidence, epoch uint64, uid types.UID, deed journal.Action) {
		e.Journal = append(e.Journal, journal.Entry{At: second(10), PID: 12, Epoch: epoch, UID: uid, Action: deed})
	}
	born := func(e *MachineEvidence, uid types.UID, run string, others ...int) {
		e.Births = append(e.Births, births.ProcessStart{At: second(9), PID: 22, UID: uid, Run: run, Others: others})
	}
	twice := func(e *MachineEvidence) { e.Asked[one] = Asked{"vm-1", time.Time{}, 2, 2, nil} }
	for name, c := range map[string]struct {
		change func(*MachineEvidence)
		want   Rule // empty: all is well
	}{
		"a start":   {func(*MachineEvidence) {}, ""},
		"a restart": {func(e *MachineEvidence) { twice(e); born(e, one, "run-2") }, ""},
		"refused":   {func(e *MachineEvidence) { entry(e, 6, one, "pause"); entry(e, 5, one, journal.ActionRefused) }, ""},
		"deleted": {func(e *MachineEvidence) {
			e.Asked[one] = Asked{"vm-1", second(5), 1, 1, nil}
			entry(e, 6, one, journal.ActionDelete)
		}, ""},
		"old epoch":   {func(e *MachineEvidence) { entry(e, 6, one, "pause"); entry(e, 5, one, "resume") }, RuleEpochs},
		"two at once": {func(e *MachineEvidence) { twice(e); born(e, one, "run-2", 21) }, RuleAlone},
		"run twice":   {func(e *MachineEvidence) { twice(e); born(e, one, "run-1") }, RuleRun},
		"once more":   {func(e *MachineEvidence) { born(e, one, "run-2") }, RuleStarts},
		"never":       {func(e *MachineEvidence) { e.Births = nil }, RuleStarts},
		"unasked":     {func(e *MachineEvidence) { entry(e, 6, one, journal.ActionDelete) }, RuleKept},
		"too early": {func(e *MachineEvidence) {
			e.Asked[one] = Asked{"vm-1", second(11), 1, 1, nil}
			entry(e, 6, one, journal.ActionDelete)
		}, RuleKept},
		"nobody's":   {func(e *MachineEvidence) { born(e, two, "run-1") }, RuleKept},
		"entry only": {func(e *MachineEvidence) { entry(e, 6, two, journal.ActionCreate) }, RuleKept},
		"finalizer":  {func(e *MachineEvidence) { e.Sights = []Sight{{one, second(4), false}} }, RuleFinalizer},
		"made again": {func(e *MachineEvidence) { entry(e, 6, one, journal.ActionCreate) }, RuleOnce},
		"left":       {func(e *MachineEvidence) { e.Left = []string{"process 21"} }, RuleNothing},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := machineStory()
			c.change(&e)
			violations := JudgeMachines(e)
			found := c.want == ""
			for _, v := range violations {
				found = found || v.Rule == c.want
			}
			if !found || c.want == "" && len(violations) > 0 {
				t.Errorf("got %v, want %q", violations, c.want)
			}
		})
	}
}
