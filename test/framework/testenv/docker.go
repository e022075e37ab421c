// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"k8s.io/apimachinery/pkg/types"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver/docker"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// ListContainers returns the containers with a UID's label, of any cluster.
func ListContainers(t testing.TB, uid types.UID) []container.Summary {
	t.Helper()
	return listLabelled(t, docker.LabelUID+"="+string(uid))
}

// ListClusterContainers returns the containers of this environment.
func (env *Environment) ListClusterContainers(t testing.TB) []container.Summary {
	t.Helper()
	return listLabelled(t, docker.LabelCluster+"="+env.ClusterID)
}

func listLabelled(t testing.TB, label string) []container.Summary {
	t.Helper()
	all, err := framework.DockerClient(t).ContainerList(t.Context(), client.ContainerListOptions{
		All: true, Filters: client.Filters{}.Add("label", label),
	})
	assert.NoError(t, err)
	return all.Items
}

// InspectServer inspects the only container of a VM.
func InspectServer(t testing.TB, vm *api.VirtualMachine) container.InspectResponse {
	t.Helper()
	all := ListContainers(t, vm.UID)
	assert.Require(t, len(all) == 1, "%s/%s has %d containers, want 1", vm.Namespace, vm.Name, len(all))
	return InspectContainer(t, all[0].ID)
}

// InspectContainer inspects a container.
func InspectContainer(t testing.TB, id string) container.InspectResponse {
	t.Helper()
	res, err := framework.DockerClient(t).ContainerInspect(t.Context(), id, client.ContainerInspectOptions{})
	assert.NoError(t, err)
	return res.Container
}

// RunForeignContainer runs a container that Drover did not create, with the given labels.
func RunForeignContainer(t testing.TB, name string, labels map[string]string) (id string) {
	t.Helper()
	c := framework.DockerClient(t)
	made, err := c.ContainerCreate(t.Context(), client.ContainerCreateOptions{
		Name: name, Config: &container.Config{Image: framework.GuestPlain, Labels: labels},
	})
	assert.NoError(t, err)
	t.Cleanup(func() { RemoveContainer(t, made.ID) })
	assert.NoError(t, assert.ErrorOf(c.ContainerStart(t.Context(), made.ID, client.ContainerStartOptions{})))
	return made.ID
}

// RemoveContainer removes a container, if it exists, as a user does.
func RemoveContainer(t testing.TB, id string) {
	t.Helper()
	_, err := framework.DockerClient(t).ContainerRemove(context.WithoutCancel(t.Context()), id, client.ContainerRemoveOptions{Force: true})
	if err != nil && !strings.Contains(err.Error(), "No such container") && !strings.Contains(err.Error(), "already in progress") {
		t.Error(err)
	}
}

// RequestFromGuest repeats a request to the demo guest until it answers.
func RequestFromGuest(t testing.TB, vm *api.VirtualMachine, path string) {
	t.Helper()
	assert.Eventually(t, "the guest of "+vm.Name+" answers "+path, func(t testing.TB) error { return TryGuestRequest(t, vm, path) })
}

// TryGuestRequest sends a request to the demo guest once.
func TryGuestRequest(t testing.TB, vm *api.VirtualMachine, path string) error {
	t.Helper()
	assert.Require(t, len(vm.Status.Addresses) != 0, "%s/%s does not have an address", vm.Namespace, vm.Name)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+vm.Status.Addresses[0]+path, nil)
	if err != nil {
		return err
	}
	httpClient := http.Client{Timeout: 5 * time.Second}
	res, err := httpClient.Do(req)
	if err != nil {
		return err
	}
	return res.Body.Close()
}

// ExecInServer runs a program in a VM's container and does not wait for it.
func ExecInServer(t testing.TB, vm *api.VirtualMachine, env []string, command ...string) {
	t.Helper()
	c := framework.DockerClient(t)
	made, err := c.ExecCreate(t.Context(), vm.Status.Server.ID, client.ExecCreateOptions{Env: env, Cmd: command})
	assert.NoError(t, err)
	assert.NoError(t, assert.ErrorOf(c.ExecStart(t.Context(), made.ID, client.ExecStartOptions{Detach: true})))
}
