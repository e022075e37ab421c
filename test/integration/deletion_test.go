// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"strings"
	"testing"

	"github.com/moby/moby/client"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver/docker"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/testenv"
)

// waitForDockerSweep creates an orphan container and waits until the sweep has removed it.
// Then the sweep has seen all older orphans twice.
func waitForDockerSweep(t *testing.T) {
	t.Helper()
	uid := uuid.NewUUID()
	testenv.RunForeignContainer(t, "orphan-"+string(uid), map[string]string{
		docker.LabelUID: string(uid), docker.LabelCluster: environment.ClusterID,
		docker.LabelNamespace: "default", docker.LabelName: "orphan",
	})
	assert.Eventually(t, "the orphan is swept", func(t testing.TB) error {
		n := len(testenv.ListContainers(t, uid))
		return assert.ErrorUnless(n == 0, "%d containers", n)
	})
}

func withOwner(b *framework.VMBuilder, kind, apiVersion, name string, uid types.UID) *framework.VMBuilder {
	return b.Meta(func(m *metav1.ObjectMeta) {
		m.OwnerReferences = []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: name, UID: uid, BlockOwnerDeletion: new(true)}}
	})
}

// TestCascadingDeletion deletes an owner of VMs with each of the three propagation policies,
// and checks that the garbage collector and Drover work together.
func TestCascadingDeletion(t *testing.T) {
	t.Parallel()
	for _, cascade := range []string{"foreground", "background", "orphan"} {
		for _, kind := range []string{"configmap", "vm"} {
			t.Run(cascade+" of "+kind, func(t *testing.T) {
				t.Parallel()
				ns := environment.CreateNamespace(t)
				owner := createOwner(t, ns, kind)
				var vms []*api.VirtualMachine
				for n := range 2 {
					vms = append(vms, environment.CreateVM(t, owner(newSmallVM(fmt.Sprintf("owned-%d", n), ns, "fake"))))
				}
				for n := range vms {
					vms[n] = environment.WaitForVM(t, vms[n], framework.IsActive)
				}
				environment.MustRunKubectl(t, "", "delete", kind, "owner", "-n", ns, "--cascade="+cascade, "--timeout=60s")
				for _, vm := range vms {
					checkCascade(t, cascade, vm)
				}
			})
		}
	}
}

func createOwner(t *testing.T, ns, kind string) func(*framework.VMBuilder) *framework.VMBuilder {
	t.Helper()
	if kind == "vm" {
		vm := environment.CreateActiveVM(t, newSmallVM("owner", ns, "fake"))
		return func(b *framework.VMBuilder) *framework.VMBuilder {
			return withOwner(b, "VirtualMachine", api.SchemeGroupVersion.String(), vm.Name, vm.UID)
		}
	}
	m, err := environment.KubeClient.CoreV1().ConfigMaps(ns).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner"}}, metav1.CreateOptions{})
	assert.NoError(t, err)
	return func(b *framework.VMBuilder) *framework.VMBuilder {
		return withOwner(b, "ConfigMap", "v1", m.Name, m.UID)
	}
}

func checkCascade(t *testing.T, cascade string, vm *api.VirtualMachine) {
	t.Helper()
	if cascade != "orphan" {
		if cascade == "foreground" {
			environment.CheckDeletion(t, vm) // the owner's deletion has waited for it
		}
		environment.WaitForDeletion(t, vm)
		environment.CheckServers(t, vm, 0)
		return
	}
	now := environment.WaitForVM(t, vm, framework.IsActive, func(vm *api.VirtualMachine) error {
		return assert.ErrorUnless(len(vm.OwnerReferences) == 0, "owners %v", vm.OwnerReferences)
	})
	assert.True(t, now.Status.Server.ID == vm.Status.Server.ID && now.Status.RestartCount == 0, "its server was replaced or restarted: %s", framework.FormatStatus(now))
	environment.CheckServers(t, vm, 1)
}

// TestForeignContainersAreUnchanged checks that Drover does not touch a container
// without this cluster's id, whatever its other labels.
func TestForeignContainersAreUnchanged(t *testing.T) {
	t.Parallel()
	uid := string(uuid.NewUUID())
	var ids []string
	for n, labels := range []map[string]string{
		nil,
		{docker.LabelUID: uid},
		{docker.LabelUID: uid, docker.LabelCluster: "another", docker.LabelNamespace: "default", docker.LabelName: "vm"},
	} {
		ids = append(ids, testenv.RunForeignContainer(t, fmt.Sprintf("foreign-%d-%s", n, uid), labels))
	}
	waitForDockerSweep(t)
	for _, id := range ids {
		c, err := framework.DockerClient(t).ContainerInspect(t.Context(), id, client.ContainerInspectOptions{})
		assert.True(t, err == nil && c.Container.State.Running && strings.HasPrefix(c.Container.Name, "/foreign-"),
			"container %s is %+v, error %v", id, c.Container.State, err)
	}
}
