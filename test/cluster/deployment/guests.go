// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/events"
	"github.com/moby/moby/client"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver/docker"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/users"
)

// stepTimeout bounds a step on a busy host.
const stepTimeout = 3 * time.Minute

// guests are VMs, one in each state, that installing and removing Drover must not affect.
type guests struct {
	d                       *Deployment
	active, stopped, paused *users.User
	leaving                 *users.User // its deletion is requested while Drover is not installed
	left                    chan error
	uids                    map[types.UID]bool
	containers              map[string]container.ContainerState
	events                  int
}

// newVM returns a builder of a small VM that names its image, so that the controller needs no flag for it.
func newVM(name string) *framework.VMBuilder {
	return framework.NewVM(name).Resource(api.ResourceCPU, "100m").Resource(api.ResourceMemory, "32M").
		Namespace("").GracePeriod(1).Image(framework.GuestPlain)
}

// createGuests creates the VMs and waits until each has its state.
func (d *Deployment) createGuests(t testing.TB) *guests {
	t.Helper()
	g := &guests{
		d: d, uids: map[types.UID]bool{}, active: d.newUser("active", 0),
		stopped: d.newUser("stopped", 0), paused: d.newUser("paused", 0),
		leaving: d.newUser("leaving", 0), left: make(chan error, 1),
	}
	for _, user := range []*users.User{g.active, g.stopped, g.paused} {
		d.createVM(t, user)
	}
	d.changeVM(t, g.stopped, `{"spec": {"action": "stopped"}}`)
	d.changeVM(t, g.paused, `{"spec": {"action": "paused"}}`)
	for uid, requested := range d.requests.Requested() {
		g.uids[uid] = requested.DeletedAt.IsZero()
	}
	g.containers, g.events = g.readContainers(t)
	d.createVM(t, g.leaving)
	return g
}

// createVM creates a VM as a user and waits until it runs.
func (d *Deployment) createVM(t testing.TB, user *users.User) {
	t.Helper()
	d.within(t, "VM "+user.Name, func(ctx context.Context) error {
		if err := user.CreateVM(ctx, newVM(user.Name).Obj(), 1); err != nil {
			return err
		}
		return user.WaitUntilApplied(ctx, 1)
	})
}

// within bounds a step.
func (d *Deployment) within(t testing.TB, what string, do func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), stepTimeout, fmt.Errorf("not within %s", stepTimeout))
	defer cancel()
	err := do(ctx)
	assert.Require(t, err == nil, "%s: %v", what, err)
}

// patchVM requests a change that does not start the server.
func (d *Deployment) patchVM(t testing.TB, user *users.User, patch string) {
	t.Helper()
	d.within(t, "patch of VM "+user.Name, func(ctx context.Context) error {
		return users.RetryRequest(ctx, func(ctx context.Context) error {
			_, err := user.VMs.Patch(ctx, user.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
			return err
		})
	})
}

// changeVM requests a change that does not start the server, and waits until it is applied.
func (d *Deployment) changeVM(t testing.TB, user *users.User, patch string) {
	t.Helper()
	d.patchVM(t, user, patch)
	d.within(t, "change of VM "+user.Name, func(ctx context.Context) error { return user.WaitUntilApplied(ctx, 0) })
}

// readContainers returns the containers' states by ID, and the number of events other than
// changes of size.
func (g *guests) readContainers(t testing.TB) (states map[string]container.ContainerState, count int) {
	t.Helper()
	list, err := g.d.Engine.Client.ContainerList(t.Context(), client.ContainerListOptions{All: true})
	assert.NoError(t, err)
	states = map[string]container.ContainerState{}
	for _, c := range list.Items {
		if g.uids[types.UID(c.Labels[docker.LabelUID])] {
			states[c.ID] = c.State
		}
	}
	recorded, err := g.d.Recorder.Events()
	assert.NoError(t, err)
	for _, event := range recorded {
		if g.uids[event.UID] && event.Action != events.ActionUpdate {
			count++
		}
	}
	return states, count
}

// checkUntouched fails the test if the containers were changed.
func (g *guests) checkUntouched(t testing.TB, after string) {
	t.Helper()
	states, count := g.readContainers(t)
	assert.Require(t, maps.Equal(states, g.containers), "after %s the containers are %v; before, they were %v", after, states, g.containers)
	if count != g.events {
		recorded, _ := g.d.Recorder.Events()
		t.Fatalf("during %s the engine reported more events of these VMs: %v", after, recorded)
	}
	list, err := g.d.VMs.CloudnativeV1alpha1().VirtualMachines(userNamespace).List(t.Context(), metav1.ListOptions{})
	assert.NoError(t, err)
	found := 0
	for _, vm := range list.Items {
		if !g.uids[vm.UID] {
			continue
		}
		found++
		assert.True(t, vm.Status.Server != nil && g.containers[vm.Status.Server.ID] != "",
			"after %s, VM %s has another server: %+v", after, vm.Name, vm.Status.Server)
	}
	assert.Require(t, found == len(g.containers), "after %s there are %d of %d VMs", after, found, len(g.containers))
}

// checkManaged checks that Drover creates and deletes a VM.
func (d *Deployment) checkManaged(t testing.TB) {
	t.Helper()
	probe := d.newProbe()
	d.createVM(t, probe)
	d.within(t, "deletion of VM "+probe.Name, probe.DeleteVM)
}

// checkSurvived waits until all replicas run the image with a tag, and checks that Drover works and that
// the containers were not changed.
func (g *guests) checkSurvived(t testing.TB, after, tag string) {
	t.Helper()
	g.d.waitUntilImage(t, tag)
	g.checkUntouched(t, after)
	g.d.checkManaged(t)
}

// requestWithoutDrover checks that the containers were not changed, and requests a change and a deletion
// while Drover is not installed.
func (g *guests) requestWithoutDrover(t testing.TB, after string) {
	t.Helper()
	g.checkUntouched(t, after)
	g.d.patchVM(t, g.active, `{"spec": {"resource": {"cpu": "200m"}}}`)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), stepTimeout)
		defer cancel()
		g.left <- g.leaving.DeleteVM(ctx)
	}()
	assert.Eventually(t, "a deletion is requested", func(t testing.TB) error {
		vm, err := g.leaving.VMs.Get(t.Context(), g.leaving.Name, metav1.GetOptions{})
		if err == nil && vm.DeletionTimestamp == nil {
			err = errors.New("it is not")
		}
		return err
	})
}

// checkReinstalled checks that Drover, after it was installed again, applies the requests of
// requestWithoutDrover and new ones, and does not change the containers otherwise.
func (g *guests) checkReinstalled(t testing.TB) {
	t.Helper()
	err := <-g.left
	assert.Require(t, err == nil, "deletion during the absence: %v", err)
	g.d.within(t, "change during the absence", func(ctx context.Context) error { return g.active.WaitUntilApplied(ctx, 0) })
	g.checkUntouched(t, "the second installation")
	g.d.changeVM(t, g.paused, `{"spec": {"action": "active"}}`)
	g.d.changeVM(t, g.active, `{"spec": {"action": "stopped"}}`)
	g.d.within(t, "deletion", g.stopped.DeleteVM)
	g.d.Judge(t)
}

// waitUntilImage waits until all replicas run the image with a tag.
func (d *Deployment) waitUntilImage(t testing.TB, tag string) {
	t.Helper()
	d.within(t, "replicas", func(ctx context.Context) error {
		_, err := d.WaitUntilSteady(ctx)
		return err
	})
	deployment, err := d.Kube.AppsV1().Deployments(namespace).Get(t.Context(), leaseName, metav1.GetOptions{})
	assert.NoError(t, err)
	image := deployment.Spec.Template.Spec.Containers[0].Image
	assert.Require(t, image == "drover-controller:"+tag, "the replicas run image %s, not tag %s", image, tag)
}

// waitUntilGone waits until no replica is left.
func (d *Deployment) waitUntilGone(t testing.TB) {
	t.Helper()
	assert.Eventually(t, "the replicas are gone", func(t testing.TB) error {
		pods, err := d.pods(t.Context())
		if err == nil && len(pods) > 0 {
			err = fmt.Errorf("there are %d pods", len(pods))
		}
		return err
	})
}
