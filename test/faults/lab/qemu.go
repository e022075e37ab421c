// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/journal"
	"cloudnative.tw/drover/internal/driver/qemu"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/internal/driver/qemu/record"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/test/failover/processlog"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/rules"
)

// QEMU is the engine whose servers are emulated machines on this host. Controllers start a
// recorder instead of QEMU, which records each start of a machine and then runs QEMU.
type QEMU struct {
	tools *qemuTools
}

// qemuTools are shared by all worlds.
type qemuTools struct {
	prepare  sync.Once
	err      error
	log      *processlog.Log
	recorder string
	guest    string
}

// NewQEMU returns a QEMU engine.
func NewQEMU() QEMU { return QEMU{&qemuTools{}} }

// Name implements Engine.
func (QEMU) Name() string { return qemu.Name }

// Runs implements Engine. In create-outage a controller that finds no folder would create an empty
// engine, and bind the new VirtualMachine to it.
func (QEMU) Runs(workload string) bool { return workload != "create-outage" }

// Dir is the engine's folder.
func (QEMU) Dir(w *World) string { return filepath.Join(w.Dir, "qemu") }

// Journal is the file in which the driver records its changes.
func (QEMU) Journal(w *World) string { return filepath.Join(w.Dir, "qemu-journal") }

// Args implements Engine.
func (e QEMU) Args(w *World) []string {
	return []string{
		"--vm-driver=qemu", "--qemu-dir=" + e.Dir(w), "--qemu-image-dirs=" + filepath.Dir(e.tools.guest), "--qemu-image=" + e.tools.guest,
		"--qemu-accel=tcg", "--qemu-binary=" + e.tools.recorder, "--qemu-journal=" + e.Journal(w),
	}
}

// Variables implements Engine.
func (QEMU) Variables(*World) []string { return nil }

// Prepare implements Engine.
func (e QEMU) Prepare(ctx context.Context, w *World) error {
	e.tools.prepare.Do(func() { e.tools.err = e.tools.make(context.WithoutCancel(ctx), w.labDir()) })
	if e.tools.err != nil {
		return e.tools.err
	}
	if err := os.Mkdir(e.Dir(w), 0o700); err != nil {
		return err
	}
	if err := foreignMachines.write(e.Dir(w)); err != nil {
		return err
	}
	return os.WriteFile(e.Journal(w), nil, 0o600)
}

// make builds the recorder and the guest.
func (t *qemuTools) make(ctx context.Context, dir string) (err error) {
	if dir, err = os.MkdirTemp(dir, "qemu-*"); err != nil {
		return err
	}
	t.recorder, t.guest = filepath.Join(dir, "qemu"), filepath.Join(dir, "images", "boot.img")
	const searchable = 0o711 // the user of the machines starts the recorder by its path
	if err := errors.Join(os.Chmod(dir, searchable), os.Mkdir(filepath.Dir(t.guest), 0o700)); err != nil {
		return err
	}
	if t.log, err = processlog.NewLog(t.recorder); err != nil {
		return err
	}
	if err := framework.BuildProgram(t.recorder, "test/failover/recorder"); err != nil {
		return err
	}
	if err := os.Chmod(t.recorder, 0o755); err != nil { // the user of the machines starts it
		return err
	}
	return framework.AssembleBootGuest(ctx, t.guest)
}

// NewVM implements Engine.
func (QEMU) NewVM(name string) *framework.VMBuilder {
	return framework.NewVM(name).Driver(qemu.Name).Resource(api.ResourceCPU, "1").Resource(api.ResourceMemory, "64Mi").
		Resource(api.ResourceRootDisk, "16Mi").GracePeriod(5).UserDataSecret(SecretName, SecretKey)
}

// BreakImage implements Engine.
func (e QEMU) BreakImage(context.Context, *World, string) (image string, err error) {
	return filepath.Join(filepath.Dir(e.tools.guest), "missing.img"), nil
}

// RepairImage implements Engine.
func (e QEMU) RepairImage(context.Context, *World) (image string, err error) {
	return e.tools.guest, nil
}

// Resize implements Engine: a disk grows while the guest runs.
func (QEMU) Resize(vm *api.VirtualMachine) {
	vm.Spec.Resource[api.ResourceRootDisk] = resource.MustParse("32Mi")
}

// Inspect implements Engine. It counts runs in the recorder's log of starts, and takes the other
// effects from the journal.
func (e QEMU) Inspect(ctx context.Context, w *World, processes []rules.Process) (Observed, error) {
	o := newObserved()
	var err error
	if o.Servers, o.Text, err = e.readServers(ctx, w); err != nil {
		return o, err
	}
	allStarts, err := e.tools.log.Starts()
	if err != nil {
		return o, err
	}
	names := w.names()
	for uid, starts := range rules.StartsByUID(allStarts) {
		name, ok := names[string(uid)]
		if !ok {
			continue // it belongs to another world
		}
		effects := o.Effects[name]
		effects.Runs += len(starts)
		o.Effects[name] = effects
		for _, v := range rules.CheckProcesses(starts) {
			o.Violations = append(o.Violations, rules.Broken(v.Rule, "%s: %s", name, v.Text))
		}
	}
	left, err := findLeftSupervisors(names)
	if err != nil {
		return o, err
	}
	o.Violations = slices.Concat(o.Violations, left, foreignMachines.check(e.Dir(w)))
	return o, w.readJournal(e.Journal(w), processes, &o)
}

// findLeftSupervisors returns a violation for each machine that has supervisors but no QEMU.
func findLeftSupervisors(names map[string]string) (broken []rules.Violation, err error) {
	for uid, name := range names {
		supervisors, err := processlog.Supervisors(types.UID(uid))
		if err != nil {
			return nil, err
		}
		qemuProcesses, err := processlog.Processes(types.UID(uid))
		if err != nil {
			return nil, err
		}
		if len(supervisors) > 0 && len(qemuProcesses) == 0 {
			broken = append(broken, rules.Broken(rules.NoOrphans, "%s lacks a QEMU, but still has the supervisors %v", name, supervisors))
		}
	}
	return broken, nil
}

func (e QEMU) readServers(ctx context.Context, w *World) (servers []Server, text string, err error) {
	for _, sub := range []string{instance.VMsDir, instance.RetainedDir} {
		records, content, err := readRecords[record.Record](filepath.Join(e.Dir(w), sub, "*", instance.RecordFile))
		if err != nil {
			return nil, "", err
		}
		text += content
		for _, r := range records {
			if r.ClusterID != w.ClusterID {
				continue
			}
			s, lines, err := serverOfRecord(ctx, filepath.Join(e.Dir(w), sub, string(r.UID)), r)
			if err != nil {
				return nil, "", err
			}
			servers, text = append(servers, s), text+lines
		}
	}
	return servers, text, nil
}

// serverOfRecord returns the server of a record, and the command lines of its processes.
func serverOfRecord(ctx context.Context, dir string, r record.Record) (s Server, lines string, err error) {
	s = Server{UID: r.UID, ID: r.ID, Name: r.Name, State: driver.StateStopped, Released: r.Retained, Snapshot: &journal.Snapshot{ID: r.ID}}
	pids, err := processlog.Processes(r.UID)
	if err != nil {
		return s, "", err
	}
	for _, pid := range pids {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		lines += strings.ReplaceAll(string(line), "\x00", " ")
	}
	if len(pids) > 0 {
		s.State = machineState(ctx, dir, r)
	}
	supervisors, err := countActiveSupervisors(r.UID)
	s.Config = fmt.Sprintf("phase=%s cpu=%d memory=%d root=%d processes=%d supervisors=%d",
		r.Phase, r.Settings.CPUMilli, r.Settings.MemoryBytes, r.Root.Size, len(pids), supervisors)
	return s, lines, err
}

// countActiveSupervisors returns the number of supervisors of a machine, without halted ones.
func countActiveSupervisors(uid types.UID) (count int, err error) {
	pids, err := processlog.Supervisors(uid)
	for _, pid := range pids {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err == nil && !strings.Contains(string(status), "\nState:\tT") {
			count++
		}
	}
	return count, err
}

// machineStates maps QEMU's status to the machine's state. QEMU keeps running after its guest has ended. If a start
// was interrupted before the guest's first instruction, the machine counts as paused.
var machineStates = map[string]driver.State{
	"running": driver.StateRunning, machine.StatusPaused: driver.StatePaused, machine.StatusPrelaunch: driver.StatePaused,
	machine.StatusShutdown: driver.StateStopped, machine.StatusPanicked: driver.StateStopped,
}

// statusTimeout bounds the wait for QEMU's answer. QEMU may be busy with a command of Drover's.
const statusTimeout = 20 * time.Second

// machineState asks QEMU for the machine's state, unless the machine was released.
func machineState(ctx context.Context, dir string, r record.Record) driver.State {
	if r.Retained {
		return "released"
	}
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	status, err := machine.Machine{Path: dir, Mark: string(r.UID)}.Status(ctx)
	if err != nil {
		return driver.State("without an answer: " + err.Error())
	}
	return cmp.Or(machineStates[status], driver.State(status))
}

// Outage implements Engine.
func (e QEMU) Outage(_ context.Context, w *World, exchanged bool) (back func() error, err error) {
	other := e.Dir(w) + "-other"
	exchangeBack := func() error {
		return errors.Join(exchangeFolders(e.Dir(w), other), checkEmpty(filepath.Join(other, instance.VMsDir, "*")))
	}
	if exchanged {
		if err := makeFolderEngine(other); err != nil {
			return nil, err
		}
		return exchangeBack, exchangeFolders(e.Dir(w), other)
	}
	back = func() error {
		if _, err := os.Stat(e.Dir(w)); err == nil { // a controller that was started during the outage has created a new folder
			return exchangeBack()
		}
		return os.Rename(other, e.Dir(w))
	}
	return back, os.Rename(e.Dir(w), other)
}

// CleanUp implements Engine: it ends the machines. Their files are removed with the world's folder.
func (e QEMU) CleanUp(ctx context.Context, w *World) error {
	servers, _, err := e.readServers(ctx, w)
	return errors.Join(err, endMachines(slices.Collect(maps.Keys(w.names()))), endMachines(uidsOf(servers)))
}

// EndReleased ends the released machines, as a user would.
func (e QEMU) EndReleased(ctx context.Context, w *World) error {
	servers, _, err := e.readServers(ctx, w)
	servers = slices.DeleteFunc(servers, func(s Server) bool { return !s.Released })
	return errors.Join(err, endMachines(uidsOf(servers)))
}

func uidsOf(servers []Server) (all []string) {
	for _, s := range servers {
		all = append(all, string(s.UID))
	}
	return all
}

func endMachines(uids []string) error {
	var errs []error
	for _, uid := range uids {
		pids, err := processlog.Processes(types.UID(uid))
		supervisors, supervisorsErr := processlog.Supervisors(types.UID(uid))
		errs = append(errs, err, supervisorsErr)
		for _, pid := range slices.Concat(pids, supervisors) {
			if err := syscall.Kill(pid, syscall.SIGKILL); !errors.Is(err, syscall.ESRCH) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}
