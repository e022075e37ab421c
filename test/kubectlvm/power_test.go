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
	"cloudnative.tw/drover/test/assert"
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
		assert.Equal(t, step.verb+" printed", u.mustRun(step.verb, "web", "--wait"), "virtualmachine.cloudnative.tw/web "+step.printed+"\n")
		assert.ErrorIs(t, "after "+step.verb, step.check(u.getVM("web")), nil)
	}
	count := u.getVM("web").Status.RestartCount - first.Status.RestartCount
	assert.True(t, count == 2, "the server was started again %d times, want 2: by start and by restart", count)
	assert.Equal(t, "start printed", u.mustRun("start", "web", "--wait"), "virtualmachine.cloudnative.tw/web unchanged (action is already active)\n")
	assert.Equal(t, "stop printed", u.mustRun("stop", "web"), "virtualmachine.cloudnative.tw/web stopping\n")
	u.mustFail(1, []string{"error: web: the VM is stopped"}, "restart", "web")
}

// TestStartAgain starts a VM that has ended by itself, although its action is still active.
func TestStartAgain(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	vm := u.createVM("job", "--restart-policy=Never")
	endRun(t, vm)
	u.waitFor("job", framework.HasPhase(api.PhaseStopped, api.ReasonCompleted))
	u.mustRun("start", "job", "--wait")
	assert.ReportError(t, framework.IsActive(u.getVM("job")))
}

func TestSeveralVMs(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	for _, name := range []string{"a", "b", "c"} {
		u.mustRun("create", name, "--driver=fake", "--labels=n="+name)
	}
	r := u.mustFail(1, []string{`error: virtualmachines "none" not found in namespace "` + u.namespace + `"`}, "stop", "c", "none", "vm/a", "a")
	assert.Equal(t, "stop printed, want the other VMs in their order", r.out, "virtualmachine.cloudnative.tw/c stopping\nvirtualmachine.cloudnative.tw/a stopping\n")
	assert.Equal(t, "stop -l printed", u.mustRun("stop", "-l", "n in (b,none)"), "virtualmachine.cloudnative.tw/b stopping\n")
	u.mustRun("stop", "--all", "--wait")
	for _, name := range []string{"a", "b", "c"} {
		assert.ReportError(t, framework.HasPhase(api.PhaseStopped, api.ReasonStoppedAsAsked)(u.getVM(name)))
	}
	u.mustFail(0, []string{"No VMs found with labels \"n=none\""}, "start", "-l", "n=none")
	u.mustFail(1, []string{"no VM is named"}, "start")
	u.mustFail(1, []string{"not both"}, "start", "a", "--all")
}

// TestAppliersGetAConflict checks that server-side apply of a field that a verb has changed is a conflict.
func TestAppliersGetAConflict(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	manifest := "apiVersion: cloudnative.tw/v1alpha1\nkind: VirtualMachine\nmetadata: {name: web}\nspec: {driver: fake, action: active, resource: {cpu: 1, memory: 64M}}\n"
	apply := []string{"apply", "--server-side", "--field-manager=flux", "--namespace=" + u.namespace, "--filename=-"}
	environment.MustRunKubectl(t, manifest, apply...)
	u.mustRun("stop", "web")
	_, errs, err := environment.RunKubectl(t, manifest, apply...)
	assert.True(t, err != nil && strings.Contains(errs, `conflict with "kubectl-vm"`), "flux got %v and %s, want a conflict with kubectl-vm", err, errs)
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
	code := restart.waitForExit(t)
	assert.True(t, code == 130 && !strings.Contains(restart.errs.String(), "error"), "it ended with %d: %s", code, restart.errs.String())
}

// longTimeout is for verbs that wait for their effect, on a host of any load.
const longTimeout = "--timeout=1h"

func TestResizeSaysWhatApplies(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	u.createVM("web", "--cpu=1", "--memory=64Mi", "--port=http=18081:80")
	out := u.mustRun("resize", "web", "--cpu=2", "--memory=128Mi", "--disk=1G", longTimeout)
	wantTexts(t, out, "web resized\n", "cpu 1 -> 2", "memory 64Mi -> 128Mi", "rootDisk default -> 1G", "applied\n")
	assert.Equal(t, "the same size printed", u.mustRun("resize", "web", "--cpu=2"), "virtualmachine.cloudnative.tw/web unchanged\n")
	u.mustFail(1, []string{"rootDisk may only grow: it was 1G and is now 500M"}, "resize", "web", "--disk=500M")
	u.mustFail(1, []string{"nothing to change"}, "resize", "web")
	u.mustFail(1, []string{`--memory "x"`}, "resize", "web", "--memory=x")
	out = u.mustRun("port", "add", "web", "18082:443", "53/udp", longTimeout)
	wantTexts(t, out, "web changed\n", "open tcp-443 18082:443   waits for a restart: "+u.program()+" restart web\n", "open udp-53 53/udp")
	wantTexts(t, u.mustRun("port", "rm", "web", "http", longTimeout), "close http 18081:80", "waits for a restart")
	u.mustFail(1, []string{"the VM does not have this port, but has tcp-443 18082:443, udp-53 53/udp"}, "port", "rm", "web", "80")
	u.mustFail(2, []string{"ChangePending", u.program() + " restart web"}, "explain", "web")
	u.mustRun("pause", "web", "--wait")
	r := u.run("resume", "web", "--wait") // --wait does not wait for the ports
	if wantTexts(t, r.out+r.errs, "web resumed\n", "Warning: ports of web waits for a restart: "+u.program()+" restart web"); r.code != 0 {
		t.Errorf("resume ended with %d", r.code)
	}
	u.mustRun("restart", "web", "--wait")
	wantTexts(t, u.mustRun("list"), "18082:443")
	u.mustRun("stop", "web", "--wait")
	wantTexts(t, u.mustRun("resize", "web", "--cpu=1"), "cpu 2 -> 1   applies when the VM is started\n")
	cpu := u.getVM("web").Spec.Resource[api.ResourceCPU]
	assert.True(t, cpu.String() == "1", "the VM has %s CPUs", &cpu)
}

// TestChangesOfPortsAreNotLost adds several ports to a VM at the same time.
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
		r := <-done
		assert.True(t, r.code == 0, "ended with %d: %s", r.code, r.errs)
	}
	ports := u.getVM("web").Spec.Ports
	assert.True(t, len(ports) == adders, "there are %d ports: %+v", len(ports), ports)
}

func TestDelete(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	vm := u.createVM("web", "--disk=1G")
	other := u.createVM("db")
	r := u.mustFail(1, []string{"web: the VM and its server, which is Active, with its disks and all data on them (root 1G)", "confirm with --yes"}, "delete", "web")
	assert.Equal(t, "it printed", r.out, "")
	assert.Require(t, u.getVM("web").DeletionTimestamp == nil, "the VM was deleted without a confirmation")
	r = u.mustFail(1, []string{`virtualmachines "none" not found`}, "delete", "none", "web", "--yes")
	assert.Equal(t, "it printed", r.out, "virtualmachine.cloudnative.tw/web deleted\n")
	assert.True(t, u.findVM("web") == nil && environment.ReadFakeServer(t, vm.UID) == nil, "the VM or its server is still there")
	err := framework.IsActive(u.getVM("db"))
	assert.True(t, err == nil && environment.ReadFakeServer(t, other.UID) != nil, "the other VM is %v", err)
}

func TestDeleteKeepsTheServer(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	vm := u.createVM("web")
	wantTexts(t, u.mustRun("delete", "web", "--keep-server", "--yes"), "web deleted, its server fake-", "is kept\n")
	assert.True(t, u.findVM("web") == nil, "the VM is still there")
	assert.True(t, environment.ReadReleasedServers(t)[vm.UID] != nil, "the server was not kept")
}

// TestDeleteTimesOut deletes a VM that has a finalizer of another program.
func TestDeleteTimesOut(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	vm := u.createVM("web")
	environment.UpdateVM(t, vm, func(vm *api.VirtualMachine) { vm.Finalizers = append(vm.Finalizers, "example.com/other") })
	u.mustFail(1, []string{"web is still being deleted: timed out after 1s"}, "delete", "web", "--yes", "--timeout=1s")
	for _, args := range [][]string{{"start", "web"}, {"resize", "web", "--cpu=3"}, {"delete", "web", "--keep-server", "--yes"}} {
		u.mustFail(1, []string{"the VM is being deleted"}, args...)
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
