// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package outage

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/testenv"
	"cloudnative.tw/drover/test/tier"
)

// TestCrashBeforeCreation starts with a finalizer and a binding but no server,
// and a next controller with another default driver.
func TestCrashBeforeCreation(t *testing.T) {
	t.Parallel()
	w := testenv.StartVirtual(t)
	w.SetFaults(t, `vm: {hang: true}`)
	first := w.StartControllerProcess(t, nil, "--vm-driver=fake,docker")
	vm := w.CreateVM(t, newSmallVM("vm", ""))
	w.WaitForVM(t, vm, isBoundTo("fake/"), framework.HasPhase(api.PhaseCreating, api.ReasonCreating))
	first.MustKill()
	w.CheckServers(t, vm, 0)

	w.SetFaults(t, "")
	w.RunController(t, "--vm-driver=docker,fake")
	vm = w.WaitForVM(t, vm, framework.IsActive, isBoundTo("fake/"))
	if vm.Status.Driver != "fake" || w.ReadFakeServer(t, vm.UID) == nil {
		t.Errorf("it was created elsewhere: %s", framework.FormatStatus(vm))
	}
	w.CheckServers(t, vm, 1)
}

func isBoundTo(to string) framework.VMCheck {
	return func(vm *api.VirtualMachine) error {
		if have := vm.Annotations[api.AnnotationBound]; !strings.HasPrefix(have, to) || len(vm.Finalizers) == 0 {
			return fmt.Errorf("bound to %q, finalizers %v: want %q", have, vm.Finalizers, to)
		}
		return nil
	}
}

// TestRestartIsNotRepeated checks that later controllers do not repeat a restart,
// whenever the first one was killed.
func TestRestartIsNotRepeated(t *testing.T) {
	t.Parallel()
	w := testenv.StartVirtual(t)
	var vms []*api.VirtualMachine
	controller := w.StartControllerProcess(t, nil)
	for _, name := range drivers {
		vms = append(vms, w.CreateActiveVM(t, newSmallVM("vm-"+name, name).Image(framework.GuestPlain)))
	}
	for _, vm := range vms {
		w.UpdateVM(t, vm, func(vm *api.VirtualMachine) { vm.Spec.RestartedAt = new(metav1.Now()) })
	}
	controller.MustKill()
	for n := range 2 {
		controller = w.StartControllerProcess(t, nil)
		for _, vm := range vms {
			now := w.WaitForVM(t, vm, framework.IsActive, func(vm *api.VirtualMachine) error {
				if !vm.Spec.RestartedAt.Equal(vm.Status.RestartedAt) {
					return fmt.Errorf("status.restartedAt is %v", vm.Status.RestartedAt)
				}
				return nil
			})
			now = resizeVM(t, w, now, fmt.Sprintf("%dm", 110+n))
			if now.Status.RestartCount != 1 || now.Status.Server.ID != vm.Status.Server.ID {
				t.Errorf("%s: %s", vm.Name, framework.FormatStatus(now))
			}
		}
		controller.MustStop()
	}
}

// killStorm is a user who is active while the controller is killed repeatedly.
type killStorm struct {
	w      *testenv.Environment
	driver string
	random *rand.Rand
	made   int
	vms    map[types.UID]*api.VirtualMachine
}

// TestKillStorms checks that, however a controller is killed while users create,
// change and delete VMs, in the end every VM has one server and every server has a
// VM. The gate has a short storm; what a crash at one of the crash points leaves is tested
// beside the controller.
func TestKillStorms(t *testing.T) {
	t.Parallel()
	storms, seed := map[string]int{"fake": 3}, uint64(1)
	if tier.IsFull() {
		storms, seed = map[string]int{"fake": 15, "docker": 6}, uint64(time.Now().UnixNano())
	}
	for name, rounds := range storms {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			t.Logf("seed %d", seed)
			s := &killStorm{w: testenv.StartVirtual(t), driver: name, random: rand.New(rand.NewPCG(seed, 1)), vms: map[types.UID]*api.VirtualMachine{}} //nolint:gosec // no secret
			if name == "fake" {
				s.w.SetFaults(t, `"*": {latency: 20ms}`)
			}
			args := []string{"--vm-driver=" + name, "--orphan-grace=2s", "--orphan-max=100"} // no controller but the last lives until a sweep
			for range rounds {
				controller := s.w.StartControllerProcess(t, nil, args...)
				s.killRepeatedly(t, time.Now().Add(time.Duration(500+s.random.IntN(1500))*time.Millisecond))
				controller.MustKill()
				s.killRepeatedly(t, time.Now().Add(100*time.Millisecond))
			}
			// All may be settled before the last controller is up, and a signal that comes
			// before its handler ends it at once.
			last := s.w.StartControllerProcess(t, nil, args...)
			s.w.WaitForLog(t, last, "Starting workers")
			s.waitUntilSettled(t)
		})
	}
}

func (s *killStorm) killRepeatedly(t *testing.T, until time.Time) {
	t.Helper()
	for time.Now().Before(until) {
		s.changeRandomVM(t)
		time.Sleep(time.Duration(20+s.random.IntN(80)) * time.Millisecond)
	}
}

// changeRandomVM makes one change that a user may make.
func (s *killStorm) changeRandomVM(t *testing.T) {
	t.Helper()
	vm := s.randomVM()
	switch do := s.random.IntN(10); {
	case vm == nil || len(s.vms) < 4 || do < 3 && len(s.vms) < 10:
		s.made++
		vm = s.w.CreateVM(t, newSmallVM(fmt.Sprintf("vm-%d", s.made), s.driver).GracePeriod(1))
		s.vms[vm.UID] = vm
	case do < 6:
		s.w.DeleteVM(t, vm)
		delete(s.vms, vm.UID)
	case do < 8:
		actions := []api.Action{api.ActionActive, api.ActionStopped, api.ActionPaused}
		s.w.UpdateVM(t, vm, func(vm *api.VirtualMachine) { vm.Spec.Action = actions[s.random.IntN(3)] })
	case do < 9:
		s.w.UpdateVM(t, vm, func(vm *api.VirtualMachine) { vm.Spec.RestartedAt = new(metav1.Now()) })
	default:
		s.w.UpdateVM(t, vm, func(vm *api.VirtualMachine) {
			vm.Spec.Resource[api.ResourceCPU] = parseQuantity(fmt.Sprintf("%dm", 100+s.random.IntN(100)))
		})
	}
}

func (s *killStorm) randomVM() *api.VirtualMachine {
	for _, vm := range s.vms {
		return vm
	}
	return nil
}

// waitUntilSettled waits until all is as the objects say.
func (s *killStorm) waitUntilSettled(t *testing.T) {
	t.Helper()
	phases := map[api.Action]api.Phase{
		api.ActionActive: api.PhaseActive, api.ActionStopped: api.PhaseStopped, api.ActionPaused: api.PhasePaused,
	}
	for _, vm := range s.vms {
		s.w.WaitForVM(t, vm, framework.HasCondition(api.ConditionReady, metav1.ConditionTrue), func(vm *api.VirtualMachine) error {
			if vm.Status.Phase != phases[vm.Spec.Action] {
				return fmt.Errorf("phase %s for action %s", vm.Status.Phase, vm.Spec.Action)
			}
			return nil
		})
	}
	assert.Eventually(t, "the objects and the servers are those that there should be", func(t testing.TB) error {
		list, err := s.w.VMClient.CloudnativeV1alpha1().VirtualMachines(s.w.Namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		servers := s.checkServers(t)
		if len(list.Items) != len(s.vms) || len(servers) != len(s.vms) {
			return fmt.Errorf("%d objects and %d servers, want %d", len(list.Items), len(servers), len(s.vms))
		}
		for uid := range s.vms {
			if servers[uid] != 1 {
				return fmt.Errorf("%d servers of %s", servers[uid], uid)
			}
		}
		return nil
	})
}

// checkServers counts the servers by UID.
func (s *killStorm) checkServers(t testing.TB) map[types.UID]int {
	t.Helper()
	counts := map[types.UID]int{}
	for uid := range s.w.ReadFakeServers(t) {
		counts[uid]++
	}
	for _, c := range s.w.ListClusterContainers(t) {
		counts[types.UID(c.Labels["cloudnative.tw/uid"])]++
	}
	return counts
}
