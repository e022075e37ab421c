// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlvm

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/fake"
	"cloudnative.tw/drover/test/framework"
)

func TestPowerVerbs(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	first := u.createVM("web")
	for _, step := range []struct {
		verb, printed string
		check         framework.VMCheck
	}{
		{"stop", "stopped", framework.HasPhase(api.PhaseStopped, api.ReasonStoppedAsAsked)},
		{"start", "started", framework.IsActive},
		{"pause", "paused", framework.HasPhase(api.PhasePaused, api.ReasonPausedAsAsked)},
		{"resume", "resumed", framework.IsActive},
		{"restart", "restarted", framework.IsActive},
	} {
		if out := u.mustRun(step.verb, "web", "--wait"); out != "virtualmachine.cloudnative.tw/web "+step.printed+"\n" {
			t.Errorf("%s printed %q", step.verb, out)
		}
		if err := step.check(u.getVM("web")); err != nil {
			t.Errorf("after %s: %v", step.verb, err)
		}
	}
	if count := u.getVM("web").Status.RestartCount - first.Status.RestartCount; count != 2 {
		t.Errorf("the server was started %d times again, want by start and restart", count)
	}
	if out := u.mustRun("start", "web", "--wait"); out != "virtualmachine.cloudnative.tw/web unchanged (action is already active)\n" {
		t.Errorf("start printed %q", out)
	}
	if out := u.mustRun("stop", "web"); out != "virtualmachine.cloudnative.tw/web stopping\n" {
		t.Errorf("stop printed %q", out)
	}
	u.mustFail(1, []string{"error: web: it is stopped"}, "restart", "web")
}

// TestStartAgain starts a VM that ended by itself, which its action does not say.
func TestStartAgain(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	vm := u.createVM("job", "--restart-policy=Never")
	endRun(t, vm)
	u.waitFor("job", framework.HasPhase(api.PhaseStopped, api.ReasonCompleted))
	u.mustRun("start", "job", "--wait")
	if err := framework.IsActive(u.getVM("job")); err != nil {
		t.Error(err)
	}
}

func TestSeveralVMs(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	for _, name := range []string{"a", "b", "c"} {
		u.mustRun("create", name, "--driver=fake", "--labels=n="+name)
	}
	r := u.mustFail(1, []string{`error: virtualmachines "none" not found in namespace "` + u.namespace + `"`}, "stop", "c", "none", "vm/a", "a")
	if r.out != "virtualmachine.cloudnative.tw/c stopping\nvirtualmachine.cloudnative.tw/a stopping\n" {
		t.Errorf("stop printed %q, want the others in their order", r.out)
	}
	if out := u.mustRun("stop", "-l", "n in (b,none)"); out != "virtualmachine.cloudnative.tw/b stopping\n" {
		t.Errorf("stop -l printed %q", out)
	}
	u.mustRun("stop", "--all", "--wait")
	for _, name := range []string{"a", "b", "c"} {
		if err := framework.HasPhase(api.PhaseStopped, api.ReasonStoppedAsAsked)(u.getVM(name)); err != nil {
			t.Error(err)
		}
	}
	u.mustFail(0, []string{"No VMs found with labels \"n=none\""}, "start", "-l", "n=none")
	u.mustFail(1, []string{"no VM is named"}, "start")
	u.mustFail(1, []string{"not both"}, "start", "a", "--all")
}

// TestAppliersGetAConflict checks that a verb's change is visible to those who apply the field.
func TestAppliersGetAConflict(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	manifest := "apiVersion: cloudnative.tw/v1alpha1\nkind: VirtualMachine\nmetadata: {name: web}\nspec: {driver: fake, action: active, resource: {cpu: 1, memory: 64M}}\n"
	apply := []string{"apply", "--server-side", "--field-manager=flux", "--namespace=" + u.namespace, "--filename=-"}
	environment.MustRunKubectl(t, manifest, apply...)
	u.mustRun("stop", "web")
	_, errs, err := environment.RunKubectl(t, manifest, apply...)
	if err == nil || !strings.Contains(errs, `conflict with "kubectl-vm"`) {
		t.Errorf("flux got %v and %s, want a conflict with kubectl-vm", err, errs)
	}
}

// TestInterruptedWait ends a wait by Ctrl-C.
func TestInterruptedWait(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	u.createFailing()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	restart := u.start(ctx, "restart", failing, "--wait")
	u.waitFor(failing, func(vm *api.VirtualMachine) error {
		if vm.Spec.RestartedAt == nil {
			return errNotYet
		}
		return nil
	})
	cancel()
	if code := restart.waitForExit(t); code != 130 || strings.Contains(restart.errs.String(), "error") {
		t.Errorf("it ended with %d: %s", code, restart.errs.String())
	}
}

// patient has a verb that tells what it has brought about wait for that however busy the host is.
const patient = "--timeout=1h"

func TestResizeSaysWhatApplies(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	u.createVM("web", "--cpu=1", "--memory=64Mi", "--port=http=18081:80")
	out := u.mustRun("resize", "web", "--cpu=2", "--memory=128Mi", "--disk=1G", patient)
	wantTexts(t, out, "web resized\n", "cpu 1 -> 2", "memory 64Mi -> 128Mi", "rootDisk default -> 1G", "applied\n")
	if got := u.mustRun("resize", "web", "--cpu=2"); got != "virtualmachine.cloudnative.tw/web unchanged\n" {
		t.Errorf("the same size printed %q", got)
	}
	u.mustFail(1, []string{"rootDisk may only grow: it was 1G and is now 500M"}, "resize", "web", "--disk=500M")
	u.mustFail(1, []string{"nothing to change"}, "resize", "web")
	u.mustFail(1, []string{`--memory "x"`}, "resize", "web", "--memory=x")
	out = u.mustRun("port", "add", "web", "18082:443", "53/udp", patient)
	wantTexts(t, out, "web changed\n", "open tcp-443 18082:443   waits for a restart: "+u.program()+" restart web\n", "open udp-53 53/udp")
	wantTexts(t, u.mustRun("port", "rm", "web", "http", patient), "close http 18081:80", "waits for a restart")
	u.mustFail(1, []string{"no such port: it has tcp-443 18082:443, udp-53 53/udp"}, "port", "rm", "web", "80")
	u.mustFail(2, []string{"ChangePending", u.program() + " restart web"}, "explain", "web")
	u.mustRun("pause", "web", "--wait")
	r := u.run("resume", "web", "--wait") // which does not await the ports
	if wantTexts(t, r.out+r.errs, "web resumed\n", "Warning: ports of web waits for a restart: "+u.program()+" restart web"); r.code != 0 {
		t.Errorf("resume ended with %d", r.code)
	}
	u.mustRun("restart", "web", "--wait")
	wantTexts(t, u.mustRun("list"), "18082:443")
	u.mustRun("stop", "web", "--wait")
	wantTexts(t, u.mustRun("resize", "web", "--cpu=1"), "cpu 2 -> 1   applies when the VM is started\n")
	if cpu := u.getVM("web").Spec.Resource[api.ResourceCPU]; cpu.String() != "1" {
		t.Errorf("the VM has %s CPUs", &cpu)
	}
}

// TestChangesOfPortsAreNotLost adds ports at the same time.
func TestChangesOfPortsAreNotLost(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	u.createVM("web")
	const adders = 6
	done := make(chan result, adders)
	for n := range adders {
		go func() { done <- u.run("port", "add", "web", strconv.Itoa(n+1), "--wait=false") }()
	}
	for range adders {
		if r := <-done; r.code != 0 {
			t.Errorf("ended with %d: %s", r.code, r.errs)
		}
	}
	if ports := u.getVM("web").Spec.Ports; len(ports) != adders {
		t.Errorf("there are %d ports: %+v", len(ports), ports)
	}
}

func TestDelete(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	vm := u.createVM("web", "--disk=1G")
	other := u.createVM("db")
	r := u.mustFail(1, []string{"web: the VM and its server, which is Active, with its disks and all data on them (root 1G)", "confirm with --yes"}, "delete", "web")
	if r.out != "" {
		t.Errorf("it printed %q", r.out)
	}
	if u.getVM("web").DeletionTimestamp != nil {
		t.Fatal("it was deleted without a confirmation")
	}
	r = u.mustFail(1, []string{`virtualmachines "none" not found`}, "delete", "none", "web", "--yes")
	if r.out != "virtualmachine.cloudnative.tw/web deleted\n" {
		t.Errorf("it printed %q", r.out)
	}
	if u.findVM("web") != nil || environment.ReadFakeServer(t, vm.UID) != nil {
		t.Error("the VM or its server is still there")
	}
	if err := framework.IsActive(u.getVM("db")); err != nil || environment.ReadFakeServer(t, other.UID) == nil {
		t.Errorf("the other VM is %v", err)
	}
}

func TestDeleteKeepsTheServer(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	vm := u.createVM("web")
	wantTexts(t, u.mustRun("delete", "web", "--keep-server", "--yes"), "web deleted, its server fake-", "is kept\n")
	if u.findVM("web") != nil {
		t.Error("the VM is still there")
	}
	if environment.ReadReleasedServers(t)[vm.UID] == nil {
		t.Error("the server was not kept")
	}
}

// TestDeleteTimesOut has a finalizer of another program.
func TestDeleteTimesOut(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	vm := u.createVM("web")
	environment.UpdateVM(t, vm, func(vm *api.VirtualMachine) { vm.Finalizers = append(vm.Finalizers, "example.com/other") })
	u.mustFail(1, []string{"web: it is still being deleted: timed out after 1s"}, "delete", "web", "--yes", "--timeout=1s")
	for _, args := range [][]string{{"start", "web"}, {"resize", "web", "--cpu=3"}, {"delete", "web", "--keep-server", "--yes"}} {
		u.mustFail(1, []string{"it is being deleted"}, args...)
	}
	environment.UpdateVM(t, u.getVM("web"), func(vm *api.VirtualMachine) {
		vm.Finalizers = nil
	})
	environment.WaitForDeletion(t, vm)
}

var errNotYet = errors.New("not yet")

// endRun ends a server's run, as a guest that shuts down does.
func endRun(t testing.TB, vm *api.VirtualMachine) {
	t.Helper()
	environment.EditFakeServer(t, vm.UID, func(r *fake.Record) {
		r.State, r.Exit = driver.StateStopped, &fake.Exit{Reason: "Completed", At: time.Now()}
	})
}
