// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package guestwrites

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/api/resource"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/hack/guest/blocks"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/test/faults/lab"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/rules"
	"cloudnative.tw/drover/test/framework/users"
)

// vmName is the name of the VirtualMachine.
const vmName = "vm-1"

// nodes are the names of the disks in QEMU.
var nodes = [blocks.Disks]string{"root", "volume-data"}

// engine is lab.QEMU with a Linux guest that writes blocks.
type engine struct {
	lab.QEMU

	qemu  string // program attach
	guest framework.LinuxGuest
}

// Args implements lab.Engine.
func (e engine) Args(w *lab.World) []string {
	return append(e.QEMU.Args(w), "--qemu-binary="+e.qemu, "--qemu-image-dirs="+filepath.Dir(e.guest.Kernel))
}

// NewVM implements lab.Engine.
func (e engine) NewVM(name string) *framework.VMBuilder {
	size := resource.NewQuantity(blocks.SmallSize, resource.BinarySI)
	return e.QEMU.NewVM(name).Resource(api.ResourceMemory, "256Mi").Resource(api.ResourceRootDisk, size.String()).
		GracePeriod(30).Spec(func(spec *api.VirtualMachineSpec) {
		spec.Image = &api.Image{Kernel: &api.Kernel{
			Source: e.guest.Kernel, Initrd: e.guest.Initrd, Cmdline: framework.GuestCmdline + " blocks=vda,vdb",
		}}
		spec.Volumes = []api.Volume{{Name: "data", Size: *size}}
	})
}

// maxEntriesToCut is the most writes and flushes after a resize until the power is cut.
const maxEntriesToCut = 200

// run is a machine whose power is cut, and its world.
type run struct {
	world    *lab.World
	engine   engine
	replicas *lab.Replicas
	server   *nbdServer
	random   *rand.Rand
	result   *lab.Result

	mu     sync.Mutex
	record *record
}

// startRun creates the world and the machine.
func startRun(ctx context.Context, l *lab.Lab, random *rand.Rand, result *lab.Result) (r *run, err error) {
	r = &run{random: random, result: result, engine: engine{QEMU: lab.NewQEMU()}}
	if r.world, err = l.NewWorld(ctx); err != nil {
		return nil, err
	}
	r.engine.qemu = filepath.Join(r.world.Dir, fmt.Sprintf("qemu-%d", os.Getpid()))
	if r.server, err = startNBDServer(r.engine.qemu, r.open); err != nil {
		return nil, errors.Join(err, r.world.Close())
	}
	if err := r.start(ctx); err != nil {
		return nil, errors.Join(err, r.close(ctx))
	}
	return r, nil
}

func (r *run) start(ctx context.Context) (err error) {
	if err := framework.BuildProgram(r.engine.qemu, "test/faults/guestwrites/attach"); err != nil {
		return err
	}
	if err := os.Chmod(r.engine.qemu, 0o755); err != nil { // for the user of machines
		return err
	}
	if r.engine.guest, err = framework.BuildLinuxGuestIn(filepath.Join(r.world.Dir, "guest")); err != nil {
		return err
	}
	if err := r.engine.Prepare(ctx, r.world); err != nil {
		return err
	}
	if err := r.startReplicas(); err != nil {
		return err
	}
	return r.world.CreateVM(ctx, r.engine.NewVM(vmName).Obj())
}

func (r *run) startReplicas() (err error) {
	r.replicas, err = r.world.StartReplicas(lab.Plan{Engine: r.engine, Recovery: lab.ByRestart})
	return err
}

// close ends all processes and closes the world.
func (r *run) close(ctx context.Context) error {
	if r.replicas != nil {
		r.replicas.Stop()
	}
	err := r.engine.CleanUp(context.WithoutCancel(ctx), r.world)
	if current := r.current(); current != nil {
		current.end()
	}
	return errors.Join(err, r.server.close(), r.world.Close())
}

// noFlush is the suffix of exports that ignore flushes: see program attach.
const noFlush = "/no-flush"

// open opens the disk of a node for a QEMU.
func (r *run) open(export string) (device, error) {
	node, ignoresFlushes := strings.CutSuffix(export, noFlush)
	disk := slices.Index(nodes[:], node)
	vm := r.world.Existing()[vmName]
	if disk < 0 || vm == nil {
		return nil, fmt.Errorf("QEMU uses the unknown disk %q", export)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.record == nil {
		folder := filepath.Join(r.engine.Dir(r.world), instance.VMsDir, string(vm.UID))
		r.record = newRecord([blocks.Disks]string{filepath.Join(folder, instance.RootDiskFile), filepath.Join(folder, instance.VolumeFile("data"))})
	}
	return r.record.open(disk, ignoresFlushes)
}

// current returns the record, nil before the first QEMU uses a disk.
func (r *run) current() *record {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.record
}

// waitRounds waits until the machine's spec is applied, and its guest has synced further
// rounds and seen the size of its disks.
func (r *run) waitRounds(ctx context.Context) error {
	before := r.shown()
	return r.world.WaitVM(ctx, vmName, func(vm *api.VirtualMachine) error {
		now := r.shown()
		isLarge := vm.Spec.Volumes[0].Size.Value() == blocks.LargeSize
		for disk := range nodes {
			if now.Synced[disk] < before.Synced[disk]+2 || isLarge != (now.GrownAt[disk] > 0) {
				return fmt.Errorf("the guest claims %+v, and before %+v", now, before)
			}
		}
		return users.CheckApplied(vm)
	})
}

// shown returns the claims of the guest so far.
func (r *run) shown() claims {
	if current := r.current(); current != nil {
		return current.shown()
	}
	return claims{}
}

// play cuts the power while disks grow, checks possible states, and starts Drover with one of them.
func (r *run) play(ctx context.Context) error {
	if err := r.waitRounds(ctx); err != nil {
		return err
	}
	current, size := r.current(), *resource.NewQuantity(blocks.LargeSize, resource.BinarySI)
	err := r.world.UpdateVM(ctx, vmName, func(vm *api.VirtualMachine) {
		vm.Spec.Resource[api.ResourceRootDisk], vm.Spec.Volumes[0].Size = size, size
	})
	if err != nil {
		return err
	}
	current.cutAfter(1 + r.random.IntN(maxEntriesToCut))
	if err := r.awaitCut(ctx, current); err != nil {
		return err
	}
	// All processes end while their last requests to the disks are unanswered.
	r.replicas.Stop()
	if err := r.engine.CleanUp(ctx, r.world); err != nil {
		return err
	}
	current.end()
	r.checkBoots(current)
	last, err := r.checkStates(ctx, current)
	if err != nil || len(r.result.Violations) > 0 {
		return err
	}
	if err := r.restore(last, current); err != nil {
		return err
	}
	if err := errors.Join(r.replicas.ClearLease(), r.startReplicas()); err != nil {
		return err
	}
	if err := r.waitRounds(ctx); err != nil {
		return fmt.Errorf("after %s: %w", last.text, err)
	}
	r.checkBoots(r.current())
	return nil
}

// checkBoots checks that the guest found all that it had synced whenever it booted.
func (r *run) checkBoots(current *record) {
	for _, text := range current.lostRounds() {
		r.addViolation(lab.Violation{Rule: rules.GuestDataKept, Text: text})
	}
}

// awaitCut waits until the power is cut.
func (r *run) awaitCut(ctx context.Context, current *record) error {
	defer current.cutNow()
	return r.world.WaitVM(ctx, vmName, func(*api.VirtualMachine) error {
		select {
		case <-current.off:
			return nil
		default:
			return errors.New("the machine has not written enough for the power cut")
		}
	})
}

// checkStates checks possible states after power cuts at random entries, and last after the real
// one, which it returns.
func (r *run) checkStates(ctx context.Context, current *record) (last state, err error) {
	dir, err := os.MkdirTemp(r.world.Dir, "state-")
	if err != nil {
		return last, err
	}
	entries := current.len()
	r.result.Points += entries
	choices := []choice{keepNone, keepAll, keepByChance(r.random)}
	for n := range states {
		at, chosen := r.random.IntN(entries+1), choices[n%len(choices)]
		if n == states-1 {
			at, chosen = entries, keepByChance(r.random)
		}
		last = current.stateAt(at, chosen)
		r.result.Runs++
		broken := last.check(ctx, dir)
		if errors.As(broken, new(lostError)) {
			r.addViolation(lab.Violation{Rule: rules.GuestDataKept, Text: fmt.Sprintf("after %s: %v", last.text, broken)})
			return last, nil
		}
		if broken != nil {
			return last, broken
		}
	}
	return last, nil
}

func (r *run) addViolation(v lab.Violation) {
	v.Case, v.History = "resize", r.replicas.Decisions()
	r.result.Violations = append(r.result.Violations, v)
}

// restore replaces the disks by a state, and begins a new record.
func (r *run) restore(s state, old *record) error {
	for disk, path := range old.paths {
		if err := os.WriteFile(path, s.disks[disk], 0o600); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.record = newRecord(old.paths)
	r.record.start = s.shown
	return nil
}
