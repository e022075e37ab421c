// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/fake"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/testenv"
	"cloudnative.tw/drover/test/tier"
)

// manualChange changes a VM's server without Drover, as the guest or a user does.
type manualChange func(*testing.T, *api.VirtualMachine)

func dockerChange(do func(context.Context, *client.Client, string) error) manualChange {
	return func(t *testing.T, vm *api.VirtualMachine) {
		t.Helper()
		assert.NoError(t, do(t.Context(), framework.DockerClient(t), vm.Status.Server.ID))
	}
}

func fakeChange(edit func(*fake.Record)) manualChange {
	return func(t *testing.T, vm *api.VirtualMachine) { environment.EditFakeServer(t, vm.UID, edit) }
}

// guestExit makes the guest exit, possibly before it has answered the request.
func guestExit(code int) manualChange {
	return func(t *testing.T, vm *api.VirtualMachine) {
		t.Helper()
		before := testenv.InspectServer(t, vm).State
		assert.Eventually(t, "the guest ends", func(t testing.TB) error {
			err := testenv.TryGuestRequest(t, vm, fmt.Sprintf("/exit?code=%d", code))
			if now := testenv.InspectServer(t, vm).State; !now.Running || now.StartedAt != before.StartedAt {
				return nil
			}
			return err
		})
	}
}

// manualChanges has the changes of each driver, keyed by their effect.
var manualChanges = map[string]map[string]manualChange{
	"docker": {
		"exit 0": guestExit(0),
		"exit 3": guestExit(3),
		"killed": dockerChange(func(ctx context.Context, c *client.Client, id string) error {
			_, err := c.ContainerKill(ctx, id, client.ContainerKillOptions{Signal: "SIGKILL"})
			return err
		}),
		"stopped": func(t *testing.T, vm *api.VirtualMachine) {
			testenv.RequestFromGuest(t, vm, "/") // waits until the guest handles the signal
			dockerChange(func(ctx context.Context, c *client.Client, id string) error {
				_, err := c.ContainerStop(ctx, id, client.ContainerStopOptions{})
				return err
			})(t, vm)
		},
		"paused": dockerChange(framework.PauseContainer),
		"removed": dockerChange(func(ctx context.Context, c *client.Client, id string) error {
			_, err := c.ContainerRemove(ctx, id, client.ContainerRemoveOptions{Force: true})
			return err
		}),
	},
	"fake": {
		"exit 0":  fakeChange(func(r *fake.Record) { r.State, r.Exit = driver.StateStopped, &fake.Exit{Code: 0} }),
		"exit 3":  fakeChange(func(r *fake.Record) { r.State, r.Exit = driver.StateStopped, &fake.Exit{Code: 3} }),
		"killed":  fakeChange(func(r *fake.Record) { r.State, r.Exit = driver.StateStopped, &fake.Exit{Code: 137} }),
		"stopped": fakeChange(func(r *fake.Record) { r.State, r.Exit = driver.StateStopped, nil }),
		"paused":  fakeChange(func(r *fake.Record) { r.State = driver.StatePaused }),
		"removed": func(t *testing.T, vm *api.VirtualMachine) { environment.RemoveFakeServer(t, vm.UID) },
	},
}

// expectedStatus is the expected result of a change.
type expectedStatus struct {
	check framework.VMCheck
	ready metav1.ConditionStatus
	// sameServer says that the server is kept, and newRun that there is a new run.
	sameServer, newRun bool
}

var (
	restarted = expectedStatus{framework.IsActive, metav1.ConditionTrue, true, true}
	resumed   = expectedStatus{framework.IsActive, metav1.ConditionTrue, true, false}
	recreated = expectedStatus{framework.IsActive, metav1.ConditionTrue, false, true}
	completed = expectedStatus{framework.HasPhase(api.PhaseStopped, api.ReasonCompleted), metav1.ConditionTrue, true, false}
	failed    = expectedStatus{framework.HasPhase(api.PhaseFailed, api.ReasonExited), metav1.ConditionFalse, true, false}
)

// expectedStatuses is the table of the documentation.
var expectedStatuses = map[api.RestartPolicy]map[string]expectedStatus{
	api.RestartAlways:    {"exit 0": restarted, "exit 3": restarted, "killed": restarted, "stopped": restarted, "paused": resumed, "removed": recreated},
	api.RestartOnFailure: {"exit 0": completed, "exit 3": restarted, "killed": restarted, "stopped": completed, "paused": resumed, "removed": recreated},
	api.RestartNever:     {"exit 0": completed, "exit 3": failed, "killed": failed, "stopped": completed, "paused": resumed, "removed": recreated},
}

// TestManualChanges checks the whole table with the fake engine. The gate checks only one row with
// Docker, because the restart policy is the controller's. Drover can notice the changes only by
// events, as the next list is far away.
func TestManualChanges(t *testing.T) {
	t.Parallel()
	ns := environment.CreateNamespace(t)
	for _, name := range drivers {
		for policy, row := range expectedStatuses {
			if name == "docker" && policy != api.RestartOnFailure && !tier.IsFull() {
				continue
			}
			for how, want := range row {
				t.Run(fmt.Sprintf("%s/%s/%s", name, policy, how), func(t *testing.T) {
					t.Parallel()
					vm := environment.CreateActiveVM(t, newSmallVM(strings.ToLower(strings.ReplaceAll(name+"-"+string(policy)+"-"+how, " ", "-")), ns, name).RestartPolicy(policy))
					manualChanges[name][how](t, vm)
					checkOutcome(t, vm, want)
				})
			}
		}
	}
}

func checkOutcome(t *testing.T, before *api.VirtualMachine, want expectedStatus) {
	t.Helper()
	after := environment.WaitForVM(t, before, want.check, framework.HasCondition(api.ConditionReady, want.ready), func(vm *api.VirtualMachine) error {
		newRun := !vm.Status.StartTime.Equal(before.Status.StartTime)
		return assert.ErrorUnless(newRun == want.newRun, "a new run: %t", newRun)
	})
	if same := after.Status.Server.ID == before.Status.Server.ID; same != want.sameServer {
		t.Errorf("the same server: %t", same)
	} else if !same {
		environment.WaitForEvent(t, after, api.EventRecreated)
	}
	assert.True(t, !want.newRun || after.Status.RestartCount >= 1, "restartCount is %d", after.Status.RestartCount)
	environment.CheckServers(t, after, 1)
}

// TestServerResizedManually checks that Drover restores the size.
func TestServerResizedManually(t *testing.T) {
	t.Parallel()
	vm := environment.CreateActiveVM(t, newSmallVM("vm", environment.CreateNamespace(t), "docker"))
	_, err := framework.DockerClient(t).ContainerUpdate(t.Context(), vm.Status.Server.ID, client.ContainerUpdateOptions{
		Resources: &container.Resources{NanoCPUs: 5e8},
	})
	assert.NoError(t, err)
	assert.Eventually(t, "the size is as specified", func(t testing.TB) error {
		have := testenv.InspectServer(t, vm).HostConfig.NanoCPUs
		return assert.ErrorUnless(have == 1e8, "NanoCpus is %d", have)
	})
}
