// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/test/rig"
	"cloudnative.tw/drover/test/vmtest"
)

var drivers = []string{"docker", "fake"}

func setAction(action api.Action) func(*api.VirtualMachine) {
	return func(vm *api.VirtualMachine) { vm.Spec.Action = action }
}

// TestPowerStates goes from each state to each other one.
func TestPowerStates(t *testing.T) {
	t.Parallel()
	states := map[api.Action]struct {
		check   rig.Check
		docker  container.ContainerState
		fake    driver.State
		running metav1.ConditionStatus
	}{
		api.ActionActive:  {rig.Phase(api.PhaseActive, api.ReasonRunning), "running", driver.StateRunning, metav1.ConditionTrue},
		api.ActionStopped: {rig.Phase(api.PhaseStopped, api.ReasonStoppedAsAsked), "exited", driver.StateStopped, metav1.ConditionFalse},
		api.ActionPaused:  {rig.Phase(api.PhasePaused, api.ReasonPausedAsAsked), "paused", driver.StatePaused, metav1.ConditionFalse},
	}
	way := []api.Action{
		api.ActionActive, api.ActionStopped, api.ActionActive, api.ActionPaused, api.ActionStopped,
		api.ActionPaused, api.ActionActive,
	}
	for _, name := range drivers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			vm := environment.Active(t, newSmallVM("vm", environment.Namespace(t), name))
			id := vm.Status.Server.ID
			for _, action := range way[1:] {
				environment.Edit(t, vm, setAction(action))
				want := states[action]
				vm = environment.Await(t, vm, rig.Soon, want.check,
					rig.Condition(api.ConditionReady, metav1.ConditionTrue), rig.Condition(api.ConditionRunning, want.running))
				if vm.Status.Server.ID != id {
					t.Fatalf("%s: the server was %s and is %s", action, id, vm.Status.Server.ID)
				}
				if name == "docker" && rig.Container(t, vm).State.Status != want.docker {
					t.Errorf("%s: the container is %s", action, rig.Container(t, vm).State.Status)
				}
				if name == "fake" && environment.Fake(t, vm.UID).State != want.fake {
					t.Errorf("%s: the server is %s", action, environment.Fake(t, vm.UID).State)
				}
			}
		})
	}
}

func TestCreatedInAnyPowerState(t *testing.T) {
	t.Parallel()
	for _, name := range drivers {
		for action, check := range map[api.Action]rig.Check{
			api.ActionStopped: rig.Phase(api.PhaseStopped, api.ReasonStoppedAsAsked),
			api.ActionPaused:  rig.Phase(api.PhasePaused, api.ReasonPausedAsAsked),
		} {
			t.Run(name+"/"+string(action), func(t *testing.T) {
				t.Parallel()
				vm := environment.Create(t, newSmallVM("vm", environment.Namespace(t), name).Action(action))
				vm = environment.Await(t, vm, rig.Soon, check, rig.Condition(api.ConditionReady, metav1.ConditionTrue))
				environment.Delete(t, vm)
				environment.AwaitGone(t, vm, rig.Soon)
				environment.HasServers(t, vm, 0, time.Second)
			})
		}
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
			vm := environment.Active(t, newSmallVM("vm", environment.Namespace(t), name).RestartedAt(first))
			if vm.Status.RestartCount != 0 || vm.Status.RestartedAt == nil {
				t.Errorf("after creation the status is %s", rig.Show(vm))
			}
			before := vm
			history := environment.Record(t, vm)
			environment.Edit(t, vm, func(vm *api.VirtualMachine) { vm.Spec.RestartedAt = &metav1.Time{Time: first.Add(time.Minute)} })
			vm = environment.Await(t, vm, rig.Soon, rig.Active, func(vm *api.VirtualMachine) error {
				if !vm.Spec.RestartedAt.Equal(vm.Status.RestartedAt) {
					return fmt.Errorf("status.restartedAt is %v", vm.Status.RestartedAt)
				}
				return nil
			})
			// Another change of the spec makes the controller reconcile again.
			environment.Edit(t, vm, func(vm *api.VirtualMachine) { vm.Spec.Resource[api.ResourceMemory] = parseQuantity("40M") })
			vm = environment.Await(t, vm, rig.Soon, rig.Active)
			if n := countStarts(history.Until(t, vm)); n != 2 || vm.Status.RestartCount != 1 || vm.Status.Server.ID != before.Status.Server.ID {
				t.Errorf("%d starts, status %s", n, rig.Show(vm))
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
			before := environment.Active(t, newSmallVM("vm", environment.Namespace(t), name))
			for _, size := range [][2]string{{"1", "64M"}, {"500m", "48M"}} {
				environment.Edit(t, before, func(vm *api.VirtualMachine) {
					vm.Spec.Resource[api.ResourceCPU], vm.Spec.Resource[api.ResourceMemory] = parseQuantity(size[0]), parseQuantity(size[1])
				})
				vm := environment.Await(t, before, rig.Soon, rig.Active, rig.Condition(api.ConditionRestartRequired, ""))
				if vm.Status.Server.ID != before.Status.Server.ID || vm.Status.RestartCount != 0 {
					t.Errorf("it was not live: %s", rig.Show(vm))
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
		c := rig.Container(t, vm)
		haveCPU, haveMemory = c.HostConfig.NanoCPUs/1e6, c.HostConfig.Memory
	} else {
		r := environment.Fake(t, vm.UID)
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
			before := environment.Active(t, newSmallVM("vm", environment.Namespace(t), name).Image(vmtest.GuestPlain))
			environment.Edit(t, before, func(vm *api.VirtualMachine) { vm.Spec.Image.Source = vmtest.GuestOther })
			vm := environment.Await(t, before, rig.Soon, rig.Phase(api.PhaseActive, api.ReasonChangePending), rig.Says("image"),
				rig.Condition(api.ConditionRestartRequired, metav1.ConditionTrue), rig.Condition(api.ConditionReady, metav1.ConditionFalse))
			if !vm.Status.StartTime.Equal(before.Status.StartTime) {
				t.Error("it was restarted unasked")
			}
			environment.Edit(t, vm, func(vm *api.VirtualMachine) { vm.Spec.RestartedAt = new(metav1.Now()) })
			vm = environment.Await(t, vm, rig.Soon, rig.Active, rig.Condition(api.ConditionRestartRequired, ""))
			if name == "docker" && rig.Container(t, vm).Config.Image != vmtest.GuestOther {
				t.Errorf("it runs %s", rig.Container(t, vm).Config.Image)
			}
			if name == "fake" && environment.Fake(t, vm.UID).Image != vmtest.GuestOther {
				t.Errorf("it runs %s", environment.Fake(t, vm.UID).Image)
			}
		})
	}
}

// TestGuestIgnoringSIGTERM has a guest that ignores the request to stop, and is stopped by
// force when its grace period is over, not before.
func TestGuestIgnoringSIGTERM(t *testing.T) {
	t.Parallel()
	const grace, defaultGrace = 3 * time.Second, 30 * time.Second
	stubborn := func(t *testing.T) *api.VirtualMachine {
		vm := environment.Active(t, newSmallVM("vm", environment.Namespace(t), "docker").Image(vmtest.GuestStubborn).Grace(int64(grace.Seconds())))
		rig.AskGuest(t, vm, "/") // so that it is up and ignores signals
		return vm
	}
	within := func(t *testing.T, took time.Duration) {
		if took < grace-time.Second || took > defaultGrace {
			t.Errorf("it took %s, want about %s, and not the default of %s", took, grace, defaultGrace)
		}
	}
	t.Run("stopped", func(t *testing.T) {
		t.Parallel()
		vm := stubborn(t)
		begin := time.Now()
		environment.Edit(t, vm, setAction(api.ActionStopped))
		environment.Await(t, vm, rig.Soon, rig.Phase(api.PhaseActive, api.ReasonStopping), rig.Condition(api.ConditionReady, metav1.ConditionFalse))
		vm = environment.Await(t, vm, rig.Soon, rig.Phase(api.PhaseStopped, api.ReasonStoppedAsAsked), rig.Condition(api.ConditionReady, metav1.ConditionTrue))
		within(t, time.Since(begin))
		if code := rig.Container(t, vm).State.ExitCode; code != 137 {
			t.Errorf("exit code %d, want 137", code)
		}
	})
	t.Run("deleted", func(t *testing.T) {
		t.Parallel()
		vm := stubborn(t)
		begin := time.Now()
		environment.Delete(t, vm)
		environment.Await(t, vm, rig.Soon, rig.Phase(api.PhaseTerminating, api.ReasonStopping))
		environment.AwaitGone(t, vm, rig.Soon)
		within(t, time.Since(begin))
		environment.HasServers(t, vm, 0, time.Second)
	})
}

// TestReadyReflectsTheLatestSpec checks that kubectl wait right after a change waits for
// the change, and that no version of the object is reported ready before.
func TestReadyReflectsTheLatestSpec(t *testing.T) {
	t.Parallel()
	vm := environment.Active(t, newSmallVM("vm", environment.Namespace(t), "docker").Image(vmtest.GuestStubborn).Grace(2))
	rig.AskGuest(t, vm, "/")
	history := environment.Record(t, vm)
	environment.MustKubectl(t, "", "patch", "vm", "vm", "-n", vm.Namespace, "--type=merge", "-p", `{"spec":{"action":"stopped"}}`)
	environment.MustKubectl(t, "", "wait", "vm/vm", "-n", vm.Namespace, "--for=condition=Ready", "--timeout=60s")
	now := environment.Get(t, vm)
	if now.Status.Phase != api.PhaseStopped {
		t.Errorf("kubectl wait returned at %s", rig.Show(now))
	}
	for _, version := range history.Until(t, now) {
		ready := meta.FindStatusCondition(version.Status.Conditions, api.ConditionReady)
		reported := ready.Status == metav1.ConditionTrue && ready.ObservedGeneration == version.Generation
		if as := isAsSpecified(version); reported && !as {
			t.Errorf("version %s of generation %d calls itself ready: %s", version.ResourceVersion, version.Generation, rig.Show(version))
		}
	}
}

func isAsSpecified(vm *api.VirtualMachine) bool {
	return vm.Status.Phase == map[api.Action]api.Phase{api.ActionActive: api.PhaseActive, api.ActionStopped: api.PhaseStopped}[vm.Spec.Action]
}

// TestReadinessProbe checks that a VM becomes Ready only once the port answers.
func TestReadinessProbe(t *testing.T) {
	t.Parallel()
	vm := environment.Create(t, newSmallVM("vm", environment.Namespace(t), "docker").Probe(81))
	vm = environment.Await(t, vm, rig.Soon, rig.Phase(api.PhaseActive, api.ReasonProbeFailing),
		rig.Says(":81"), rig.Says("refused"),
		rig.Condition(api.ConditionReady, metav1.ConditionFalse), rig.Condition(api.ConditionRunning, metav1.ConditionTrue))
	rig.Exec(t, vm, []string{"PORT=81"}, "/demo-guest")
	environment.Await(t, vm, rig.Soon, rig.Active)
	environment.Edit(t, vm, func(vm *api.VirtualMachine) { vm.Spec.ReadinessProbe.TCPSocket.Port = 82 })
	environment.Await(t, vm, rig.Soon, rig.Phase(api.PhaseActive, api.ReasonProbeFailing), rig.Condition(api.ConditionReady, metav1.ConditionFalse))
	environment.Edit(t, vm, func(vm *api.VirtualMachine) { vm.Spec.ReadinessProbe = nil })
	environment.Await(t, vm, rig.Soon, rig.Active)
}

// TestPorts checks that ports are published, and that a taken one is reported.
func TestPorts(t *testing.T) {
	t.Parallel()
	ns := environment.Namespace(t)
	vm := environment.Active(t, newSmallVM("one", ns, "docker").Port("http", 80, 0))
	bindings := rig.Container(t, vm).NetworkSettings.Ports[network.MustParsePort("80/tcp")]
	if len(bindings) == 0 || len(vm.Status.Ports) != 1 {
		t.Fatalf("published are %v, status.ports %+v", bindings, vm.Status.Ports)
	}
	port, host := bindings[0].HostPort, vm.Status.Ports[0].HostPort
	if want := (api.PortStatus{Name: "http", Protocol: api.ProtocolTCP, Port: 80, HostPort: host}); vm.Status.Ports[0] != want || fmt.Sprint(host) != port {
		t.Fatalf("published are %v, status.ports %+v", bindings, vm.Status.Ports)
	}
	second := environment.Create(t, newSmallVM("two", ns, "docker").Port("http", 80, host))
	environment.Await(t, second, rig.Soon, rig.Phase(api.PhaseFailed, api.ReasonPortConflict), rig.Says("spec.ports[0].hostPort"), rig.Says(port))
	environment.Delete(t, vm)
	environment.Await(t, second, rig.Soon, rig.Active)
}
