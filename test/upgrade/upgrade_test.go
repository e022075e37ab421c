// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
)

// Environment variables that name the program before the upgrade, and the one after
// it, which is bin/drover of this checkout where it is empty.
const (
	beforeEnv = "DROVER_BEFORE"
	afterEnv  = "DROVER_AFTER"
)

// TestUpgrade checks that servers in every state stay as they are while Drover is
// replaced by another version, and when it is replaced again by the first.
func TestUpgrade(t *testing.T) {
	before, after := os.Getenv(beforeEnv), os.Getenv(afterEnv)
	if before == "" {
		t.Skipf("%s is empty: make test-upgrade builds the version before and runs this", beforeEnv)
	}
	h := newTestHost(t)
	h.runVersion(before)
	for _, driver := range []string{"fake", "docker", "qemu"} {
		h.createServers(driver)
	}
	h.createHalfReplaced()
	left := h.serverSummary()
	h.runVersion(after)
	h.checkSameServers("after the upgrade", left)
	h.finishHalfReplaced(after == before)

	// Users continue, and the old version must read what the new version writes.
	for _, driver := range []string{"fake", "docker", "qemu"} {
		h.updateVM(driver+"-paused", func(s *api.VirtualMachineSpec) { s.Action = api.ActionActive })
		h.updateVM(driver+"-stopped", func(s *api.VirtualMachineSpec) { s.Action = api.ActionActive })
		h.updateVM(driver+"-running", func(s *api.VirtualMachineSpec) { s.Action = api.ActionStopped })
		h.CreateVM(t, h.newVM(driver, "new"))
		for name, phase := range map[string]api.Phase{"paused": api.PhaseActive, "stopped": api.PhaseActive, "running": api.PhaseStopped, "new": api.PhaseActive} {
			h.waitForPhase(driver+"-"+name, phase)
		}
	}
	left = h.serverSummary()
	h.runVersion(before)
	h.checkSameServers("back at the version before", left)
	h.deleteAll()
}

// createServers creates a driver's servers in every lasting state.
func (h *testHost) createServers(driver string) {
	for _, state := range []string{"running", "paused", "stopped", "exited", "retained"} {
		vm := h.newVM(driver, state)
		if state == "exited" {
			vm.RestartPolicy(api.RestartNever)
		}
		if state == "retained" {
			vm.DeletionPolicy(api.DeletionRetain)
		}
		h.CreateVM(h.t, vm)
		h.waitForPhase(driver+"-"+state, api.PhaseActive)
	}
	h.updateVM(driver+"-paused", func(s *api.VirtualMachineSpec) { s.Action = api.ActionPaused })
	h.waitForPhase(driver+"-paused", api.PhasePaused)
	h.updateVM(driver+"-stopped", func(s *api.VirtualMachineSpec) { s.Action = api.ActionStopped })
	h.waitForPhase(driver+"-stopped", api.PhaseStopped)
	h.crashServer(driver)
	h.waitForPhase(driver+"-exited", api.PhaseFailed)
	h.deleteVM(driver + "-retained")
}

// createHalfReplaced makes the earlier version begin to replace a machine's root disk,
// and fail at the start of the machine with the new one. Earlier versions replaced
// the disk when image.source was edited.
func (h *testHost) createHalfReplaced() {
	h.CreateVM(h.t, h.newVM("qemu", "half"))
	h.waitForBanner("qemu-half", "drover guest 1 A")
	h.updateVM("qemu-half", func(s *api.VirtualMachineSpec) { s.Action = api.ActionStopped })
	h.waitForPhase("qemu-half", api.PhaseStopped)
	h.failStarts(true)
	h.updateVM("qemu-half", func(s *api.VirtualMachineSpec) { s.Action, s.Image.Source = api.ActionActive, h.other })
	h.WaitForVM(h.t, h.getVM("qemu-half"), func(vm *api.VirtualMachine) error {
		if vm.Status.Operation == nil || vm.Status.Operation.Attempts == 0 {
			return errors.New("its start with another disk has not failed")
		}
		return nil
	})
}

// finishHalfReplaced lets the machine start: with the disk that it had, unless the
// same version continues.
func (h *testHost) finishHalfReplaced(same bool) {
	h.failStarts(false)
	banner := "drover guest 2 A"
	if same {
		banner = "drover guest 1 B"
	}
	h.waitForBanner("qemu-half", banner)
	h.waitForPhase("qemu-half", api.PhaseActive)
}

// checkSameServers compares the current servers with the earlier ones.
func (h *testHost) checkSameServers(when string, left map[string]string) {
	h.t.Helper()
	now := h.serverSummary()
	names := slices.Sorted(maps.Keys(left))
	for name := range now {
		if _, known := left[name]; !known {
			names = append(names, name)
		}
	}
	for _, name := range names {
		if left[name] != now[name] {
			h.t.Errorf("%s %s is\n  %s\nand was\n  %s", when, name, now[name], left[name])
		}
	}
}

// deleteAll removes all VMs, and checks that only released servers are left.
func (h *testHost) deleteAll() {
	for _, vm := range h.listVMs() {
		h.updateVM(vm.Name, func(s *api.VirtualMachineSpec) { s.ShutdownGracePeriodSeconds = new(int64) })
		h.deleteVM(vm.Name)
	}
	for name, is := range h.serverSummary() {
		if !strings.HasPrefix(name, "engine ") || strings.Count(is, ";") != 1 {
			h.t.Errorf("left after all VMs: %s %s", name, is)
		}
	}
}

func (h *testHost) getVM(name string) *api.VirtualMachine {
	h.t.Helper()
	vm, err := h.VMClient.CloudnativeV1alpha1().VirtualMachines(h.Namespace).Get(h.t.Context(), name, metav1.GetOptions{})
	h.must(err)
	return vm
}

func (h *testHost) listVMs() []api.VirtualMachine {
	h.t.Helper()
	list, err := h.VMClient.CloudnativeV1alpha1().VirtualMachines(h.Namespace).List(h.t.Context(), metav1.ListOptions{})
	h.must(err)
	return list.Items
}

func (h *testHost) updateVM(name string, change func(*api.VirtualMachineSpec)) *api.VirtualMachine {
	h.t.Helper()
	return h.UpdateVM(h.t, h.getVM(name), func(vm *api.VirtualMachine) { change(&vm.Spec) })
}

// deleteVM waits until the VM is gone.
func (h *testHost) deleteVM(name string) {
	h.t.Helper()
	vm := h.getVM(name)
	h.DeleteVM(h.t, vm)
	h.WaitForDeletion(h.t, vm)
}

func (h *testHost) waitForPhase(name string, phase api.Phase) {
	h.t.Helper()
	h.WaitForVM(h.t, h.getVM(name), func(vm *api.VirtualMachine) error {
		if vm.Status.Phase != phase {
			return fmt.Errorf("phase %s, want %s", vm.Status.Phase, phase)
		}
		return nil
	})
}

// waitUntilObserved waits until the controller has observed every VM's current spec. It
// changes each VM for that, in a field that takes effect immediately.
func (h *testHost) waitUntilObserved() {
	h.t.Helper()
	h.grace++
	for _, vm := range h.listVMs() {
		changed := h.updateVM(vm.Name, func(s *api.VirtualMachineSpec) { s.ShutdownGracePeriodSeconds = new(h.grace) })
		h.WaitForVM(h.t, changed, func(vm *api.VirtualMachine) error {
			if vm.Status.ObservedGeneration != vm.Generation {
				return fmt.Errorf("observed at generation %d of %d", vm.Status.ObservedGeneration, vm.Generation)
			}
			return nil
		})
	}
}
