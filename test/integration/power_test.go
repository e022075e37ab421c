// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/testenv"
)

var drivers = []string{"docker", "fake"}

func setAction(action api.Action) func(*api.VirtualMachine) {
	return func(vm *api.VirtualMachine) { vm.Spec.Action = action }
}

// TestPowerStates goes from each state to each other one.
func TestPowerStates(t *testing.T) {
	t.Parallel()
	states := map[api.Action]struct {
		check   framework.VMCheck
		docker  container.ContainerState
		fake    driver.State
		running metav1.ConditionStatus
	}{
		api.ActionActive:  {framework.HasPhase(api.PhaseActive, api.ReasonRunning), "running", driver.StateRunning, metav1.ConditionTrue},
		api.ActionStopped: {framework.HasPhase(api.PhaseStopped, api.ReasonStoppedAsAsked), "exited", driver.StateStopped, metav1.ConditionFalse},
		api.ActionPaused:  {framework.HasPhase(api.PhasePaused, api.ReasonPausedAsAsked), "paused", driver.StatePaused, metav1.ConditionFalse},
	}
	way := []api.Action{
		api.ActionActive, api.ActionStopped, api.ActionActive, api.ActionPaused, api.ActionStopped,
		api.ActionPaused, api.ActionActive,
	}
	for _, name := range drivers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			vm := environment.CreateActiveVM(t, newSmallVM("vm", environment.CreateNamespace(t), name))
			id := vm.Status.Server.ID
			for _, action := range way[1:] {
				environment.UpdateVM(t, vm, setAction(action))
				want := states[action]
				vm = environment.WaitForVM(t, vm, want.check,
					framework.HasCondition(api.ConditionReady, metav1.ConditionTrue), framework.HasCondition(api.ConditionRunning, want.running))
				if vm.Status.Server.ID != id {
					t.Fatalf("%s: the server was %s and is %s", action, id, vm.Status.Server.ID)
				}
				if name == "docker" && testenv.InspectServer(t, vm).State.Status != want.docker {
					t.Errorf("%s: the container is %s", action, testenv.InspectServer(t, vm).State.Status)
				}
				if name == "fake" && environment.ReadFakeServer(t, vm.UID).State != want.fake {
					t.Errorf("%s: the server is %s", action, environment.ReadFakeServer(t, vm.UID).State)
				}
			}
		})
	}
}

// TestRestartedAt checks that a change restarts once, and that a value present at
// creation does not.
func TestRestartedAt(t *testing.T) {
	t.Parallel()
	first := time.Now().Truncate(time.Second)
	for _, name := range drivers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			vm := environment.CreateActiveVM(t, newSmallVM("vm", environment.CreateNamespace(t), name).RestartedAt(first))
			if vm.Status.RestartCount != 0 || vm.Status.RestartedAt == nil {
				t.Errorf("after creation the status is %s", framework.FormatStatus(vm))
			}
			before := vm
			history := environment.RecordHistory(t, vm)
			environment.UpdateVM(t, vm, func(vm *api.VirtualMachine) { vm.Spec.RestartedAt = &metav1.Time{Time: first.Add(time.Minute)} })
			vm = environment.WaitForVM(t, vm, framework.IsActive, func(vm *api.VirtualMachine) error {
				if !vm.Spec.RestartedAt.Equal(vm.Status.RestartedAt) {
					return fmt.Errorf("status.restartedAt is %v", vm.Status.RestartedAt)
				}
				return nil
			})
			// Another change of the spec makes the controller reconcile again.
			environment.UpdateVM(t, vm, func(vm *api.VirtualMachine) { vm.Spec.Resource[api.ResourceMemory] = parseQuantity("40M") })
			vm = environment.WaitForVM(t, vm, framework.IsActive)
			if n := countStarts(history.WaitForVersion(t, vm)); n != 2 || vm.Status.RestartCount != 1 || vm.Status.Server.ID != before.Status.Server.ID {
				t.Errorf("%d starts, status %s", n, framework.FormatStatus(vm))
			}
		})
	}
}

// countStarts counts the reported start times.
func countStarts(all []*api.VirtualMachine) int {
	var times []string
	for _, vm := range all {
		if at := vm.Status.StartTime; at != nil {
			times = append(times, at.String())
		}
	}
	slices.Sort(times)
	return len(slices.Compact(times))
}

func TestLiveResize(t *testing.T) {
	t.Parallel()
	for _, name := range drivers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before := environment.CreateActiveVM(t, newSmallVM("vm", environment.CreateNamespace(t), name))
			for _, size := range [][2]string{{"1", "64M"}, {"500m", "48M"}} {
				environment.UpdateVM(t, before, func(vm *api.VirtualMachine) {
					vm.Spec.Resource[api.ResourceCPU], vm.Spec.Resource[api.ResourceMemory] = parseQuantity(size[0]), parseQuantity(size[1])
				})
				vm := environment.WaitForVM(t, before, framework.IsActive, framework.HasCondition(api.ConditionRestartRequired, ""))
				if vm.Status.Server.ID != before.Status.Server.ID || vm.Status.RestartCount != 0 {
					t.Errorf("it was not live: %s", framework.FormatStatus(vm))
				}
				checkSize(t, vm, name)
			}
		})
	}
}

func checkSize(t *testing.T, vm *api.VirtualMachine, driver string) {
	t.Helper()
	cpu, memory := vm.Spec.Resource[api.ResourceCPU], vm.Spec.Resource[api.ResourceMemory]
	haveCPU, haveMemory := int64(0), int64(0)
	if driver == "docker" {
		c := testenv.InspectServer(t, vm)
		haveCPU, haveMemory = c.HostConfig.NanoCPUs/1e6, c.HostConfig.Memory
	} else {
		r := environment.ReadFakeServer(t, vm.UID)
		haveCPU, haveMemory = r.CPUMilli, r.MemoryBytes
	}
	if haveCPU != cpu.MilliValue() || haveMemory != memory.Value() {
		t.Errorf("the server has %dm CPU and %d bytes, want %s and %s", haveCPU, haveMemory, &cpu, &memory)
	}
}

// TestPendingChange checks that such a change waits for a restart and that
// the status reports it meanwhile.
func TestPendingChange(t *testing.T) {
	t.Parallel()
	for _, name := range drivers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before := environment.CreateActiveVM(t, newSmallVM("vm", environment.CreateNamespace(t), name).Image(framework.GuestPlain))
			environment.UpdateVM(t, before, func(vm *api.VirtualMachine) { vm.Spec.Image.Source = framework.GuestOther })
			vm := environment.WaitForVM(t, before, framework.HasPhase(api.PhaseActive, api.ReasonChangePending), framework.HasMessage("image"),
				framework.HasCondition(api.ConditionRestartRequired, metav1.ConditionTrue), framework.HasCondition(api.ConditionReady, metav1.ConditionFalse))
			if !vm.Status.StartTime.Equal(before.Status.StartTime) {
				t.Error("it was restarted unasked")
			}
			environment.UpdateVM(t, vm, func(vm *api.VirtualMachine) { vm.Spec.RestartedAt = new(metav1.Now()) })
			vm = environment.WaitForVM(t, vm, framework.IsActive, framework.HasCondition(api.ConditionRestartRequired, ""))
			if name == "docker" && testenv.InspectServer(t, vm).Config.Image != framework.GuestOther {
				t.Errorf("it runs %s", testenv.InspectServer(t, vm).Config.Image)
			}
			if name == "fake" && environment.ReadFakeServer(t, vm.UID).Image != framework.GuestOther {
				t.Errorf("it runs %s", environment.ReadFakeServer(t, vm.UID).Image)
			}
		})
	}
}

// TestGuestIgnoringSIGTERM has a guest that ignores the request to stop, and is stopped by
// force when its grace period is over, not before. That it is not stopped later is in the
// tests of the controller's policy, with a clock of their own.
func TestGuestIgnoringSIGTERM(t *testing.T) {
	t.Parallel()
	const grace = 3 * time.Second
	stubborn := func(t *testing.T) *api.VirtualMachine {
		vm := environment.CreateActiveVM(t, newSmallVM("vm", environment.CreateNamespace(t), "docker").Image(framework.GuestStubborn).GracePeriod(int64(grace.Seconds())))
		testenv.RequestFromGuest(t, vm, "/") // so that it is up and ignores signals
		return vm
	}
	notBefore := func(t *testing.T, took time.Duration) {
		if took < grace-time.Second {
			t.Errorf("it took %s, want %s", took, grace)
		}
	}
	t.Run("stopped", func(t *testing.T) {
		t.Parallel()
		vm := stubborn(t)
		history, begin := environment.RecordHistory(t, vm), time.Now()
		environment.UpdateVM(t, vm, setAction(api.ActionStopped))
		vm = environment.WaitForVM(t, vm, framework.HasPhase(api.PhaseStopped, api.ReasonStoppedAsAsked), framework.HasCondition(api.ConditionReady, metav1.ConditionTrue))
		notBefore(t, time.Since(begin))
		history.WaitFor(t, framework.HasPhase(api.PhaseActive, api.ReasonStopping), framework.HasCondition(api.ConditionReady, metav1.ConditionFalse))
		if code := testenv.InspectServer(t, vm).State.ExitCode; code != 137 {
			t.Errorf("exit code %d, want 137", code)
		}
	})
	t.Run("deleted", func(t *testing.T) {
		t.Parallel()
		vm := stubborn(t)
		history, begin := environment.RecordHistory(t, vm), time.Now()
		environment.DeleteVM(t, vm)
		environment.WaitForDeletion(t, vm)
		notBefore(t, time.Since(begin))
		history.WaitFor(t, framework.HasPhase(api.PhaseTerminating, api.ReasonStopping))
		environment.CheckServers(t, vm, 0)
	})
}

// TestReadyReflectsTheLatestSpec checks that kubectl wait right after a change waits for
// the change, and that no version of the object is reported ready before.
func TestReadyReflectsTheLatestSpec(t *testing.T) {
	t.Parallel()
	vm := environment.CreateActiveVM(t, newSmallVM("vm", environment.CreateNamespace(t), "docker").Image(framework.GuestStubborn).GracePeriod(2))
	testenv.RequestFromGuest(t, vm, "/")
	history := environment.RecordHistory(t, vm)
	environment.MustRunKubectl(t, "", "patch", "vm", "vm", "-n", vm.Namespace, "--type=merge", "-p", `{"spec":{"action":"stopped"}}`)
	environment.MustRunKubectl(t, "", "wait", "vm/vm", "-n", vm.Namespace, "--for=condition=Ready", "--timeout=60s")
	now := environment.GetVM(t, vm)
	if now.Status.Phase != api.PhaseStopped {
		t.Errorf("kubectl wait returned at %s", framework.FormatStatus(now))
	}
	for _, version := range history.WaitForVersion(t, now) {
		ready := meta.FindStatusCondition(version.Status.Conditions, api.ConditionReady)
		reported := ready.Status == metav1.ConditionTrue && ready.ObservedGeneration == version.Generation
		if as := isAsSpecified(version); reported && !as {
			t.Errorf("version %s of generation %d calls itself ready: %s", version.ResourceVersion, version.Generation, framework.FormatStatus(version))
		}
	}
}

func isAsSpecified(vm *api.VirtualMachine) bool {
	return vm.Status.Phase == map[api.Action]api.Phase{api.ActionActive: api.PhaseActive, api.ActionStopped: api.PhaseStopped}[vm.Spec.Action]
}

// TestReadinessProbe checks that a VM becomes Ready only once the port answers.
func TestReadinessProbe(t *testing.T) {
	t.Parallel()
	vm := environment.CreateVM(t, newSmallVM("vm", environment.CreateNamespace(t), "docker").ReadinessProbe(81))
	vm = environment.WaitForVM(t, vm, framework.HasPhase(api.PhaseActive, api.ReasonProbeFailing),
		framework.HasMessage(":81"), framework.HasMessage("refused"),
		framework.HasCondition(api.ConditionReady, metav1.ConditionFalse), framework.HasCondition(api.ConditionRunning, metav1.ConditionTrue))
	testenv.ExecInServer(t, vm, []string{"PORT=81"}, "/demo-guest")
	environment.WaitForVM(t, vm, framework.IsActive)
	environment.UpdateVM(t, vm, func(vm *api.VirtualMachine) { vm.Spec.ReadinessProbe.TCPSocket.Port = 82 })
	environment.WaitForVM(t, vm, framework.HasPhase(api.PhaseActive, api.ReasonProbeFailing), framework.HasCondition(api.ConditionReady, metav1.ConditionFalse))
	environment.UpdateVM(t, vm, func(vm *api.VirtualMachine) { vm.Spec.ReadinessProbe = nil })
	environment.WaitForVM(t, vm, framework.IsActive)
}

// TestTakenPort checks that a host port that another server has is reported, and that the
// server starts once it is free.
func TestTakenPort(t *testing.T) {
	t.Parallel()
	ns, port := environment.CreateNamespace(t), framework.FreePort(t)
	holder := environment.CreateActiveVM(t, newSmallVM("one", ns, "docker").Port("http", 80, port))
	want := []api.PortStatus{{Name: "http", Protocol: api.ProtocolTCP, Port: 80, HostPort: port}}
	if !slices.Equal(holder.Status.Ports, want) {
		t.Errorf("status.ports is %+v, want %+v", holder.Status.Ports, want)
	}
	waiting := environment.CreateVM(t, newSmallVM("two", ns, "docker").Port("http", 80, port))
	environment.WaitForVM(t, waiting, framework.HasPhase(api.PhaseFailed, api.ReasonPortConflict),
		framework.HasMessage("spec.ports[0].hostPort"), framework.HasMessage(fmt.Sprint(port)))
	environment.DeleteVM(t, holder)
	waiting = environment.WaitForVM(t, waiting, framework.IsActive)
	if !slices.Equal(waiting.Status.Ports, want) {
		t.Errorf("status.ports is %+v, want %+v", waiting.Status.Ports, want)
	}
}
