// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/docker"
	"cloudnative.tw/drover/internal/driver/fake"
	"cloudnative.tw/drover/test/rig"
	"cloudnative.tw/drover/test/vmtest"
)

// TestRetain checks that the released server continues to run, renamed where that
// marks it, and that no sweep touches it.
func TestRetain(t *testing.T) {
	t.Parallel()
	t.Run("docker", func(t *testing.T) {
		t.Parallel()
		vm := environment.Active(t, newSmallVM("vm", environment.Namespace(t), "docker").DeletionPolicy(api.DeletionRetain))
		id, name := vm.Status.Server.ID, rig.Container(t, vm).Name
		environment.Delete(t, vm)
		environment.AwaitGone(t, vm, rig.Soon)
		waitForDockerSweep(t)
		c := rig.Inspect(t, id)
		if !c.State.Running || c.Name != name+docker.RetainedSuffix || c.RestartCount != 0 {
			t.Errorf("the released container is %s, name %s", c.State.Status, c.Name)
		}
	})
	t.Run("fake", func(t *testing.T) {
		t.Parallel()
		vm := environment.Active(t, newSmallVM("vm", environment.Namespace(t), "fake").DeletionPolicy(api.DeletionRetain))
		environment.Delete(t, vm)
		environment.AwaitGone(t, vm, rig.Soon)
		waitForFakeSweep(t)
		r := environment.Released(t)[vm.UID]
		if r == nil || r.State != driver.StateRunning || r.ID != vm.Status.Server.ID {
			t.Errorf("the released server is %+v", r)
		}
	})
}

// waitForDockerSweep returns when the sweep has removed a container that has only just
// lost its owner, so that the sweep has seen older orphans twice.
func waitForDockerSweep(t *testing.T) {
	t.Helper()
	uid := uuid.NewUUID()
	rig.RunForeign(t, "orphan-"+string(uid), map[string]string{
		docker.LabelUID: string(uid), docker.LabelCluster: environment.ID,
		docker.LabelNamespace: "default", docker.LabelName: "orphan",
	})
	vmtest.Eventually(t, rig.Soon, "the orphan is swept", func() error {
		if n := len(rig.Containers(t, uid)); n != 0 {
			return fmt.Errorf("%d containers", n)
		}
		return nil
	})
}

func waitForFakeSweep(t *testing.T) {
	t.Helper()
	uid := uuid.NewUUID()
	environment.EditFake(t, uid, func(r *fake.Record) { r.Namespace, r.Name = "default", "orphan" })
	vmtest.Eventually(t, rig.Soon, "the orphan is swept", func() error {
		if r := environment.Fake(t, uid); r != nil {
			return fmt.Errorf("it is there: %+v", r)
		}
		return nil
	})
}

func withOwner(b *vmtest.Builder, kind, apiVersion, name string, uid types.UID) *vmtest.Builder {
	return b.Meta(func(m *metav1.ObjectMeta) {
		m.OwnerReferences = []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: name, UID: uid, BlockOwnerDeletion: new(true)}}
	})
}

// TestCascadingDeletion deletes an owner of VMs in each of the three ways. The garbage
// collector does its part, and Drover its own.
func TestCascadingDeletion(t *testing.T) {
	t.Parallel()
	for _, cascade := range []string{"foreground", "background", "orphan"} {
		for _, kind := range []string{"configmap", "vm"} {
			t.Run(cascade+" of "+kind, func(t *testing.T) {
				t.Parallel()
				ns := environment.Namespace(t)
				owner := createOwner(t, ns, kind)
				var vms []*api.VirtualMachine
				for n, name := range drivers {
					vms = append(vms, environment.Create(t, owner(newSmallVM(fmt.Sprintf("owned-%d", n), ns, name))))
				}
				for n := range vms {
					vms[n] = environment.Await(t, vms[n], rig.Soon, rig.Active)
				}
				environment.MustKubectl(t, "", "delete", kind, "owner", "-n", ns, "--cascade="+cascade, "--timeout=60s")
				for _, vm := range vms {
					checkCascade(t, cascade, vm)
				}
			})
		}
	}
}

func createOwner(t *testing.T, ns, kind string) func(*vmtest.Builder) *vmtest.Builder {
	t.Helper()
	if kind == "vm" {
		vm := environment.Active(t, newSmallVM("owner", ns, "fake"))
		return func(b *vmtest.Builder) *vmtest.Builder {
			return withOwner(b, "VirtualMachine", api.SchemeGroupVersion.String(), vm.Name, vm.UID)
		}
	}
	m, err := environment.Kube.CoreV1().ConfigMaps(ns).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return func(b *vmtest.Builder) *vmtest.Builder { return withOwner(b, "ConfigMap", "v1", m.Name, m.UID) }
}

func checkCascade(t *testing.T, cascade string, vm *api.VirtualMachine) {
	t.Helper()
	if cascade != "orphan" {
		within := rig.Soon
		if cascade == "foreground" {
			within = time.Second // the owner has waited for it
		}
		environment.AwaitGone(t, vm, within)
		environment.HasServers(t, vm, 0, time.Second)
		return
	}
	now := environment.Await(t, vm, rig.Soon, rig.Active, func(vm *api.VirtualMachine) error {
		if len(vm.OwnerReferences) > 0 {
			return fmt.Errorf("owners %v", vm.OwnerReferences)
		}
		return nil
	})
	if now.Status.Server.ID != vm.Status.Server.ID || now.Status.RestartCount != 0 {
		t.Errorf("its server was touched: %s", rig.Show(now))
	}
	environment.HasServers(t, vm, 1, time.Second)
}

// TestNamespaceDeletion checks that a namespace is deleted with all of its
// servers.
func TestNamespaceDeletion(t *testing.T) {
	t.Parallel()
	ns := environment.Namespace(t)
	var vms []*api.VirtualMachine
	for n := range 20 {
		name := drivers[1]
		if n%5 == 0 {
			name = drivers[0]
		}
		vms = append(vms, environment.Create(t, newSmallVM(fmt.Sprintf("vm-%d", n), ns, name)))
	}
	for _, vm := range vms {
		environment.Await(t, vm, rig.Soon, rig.Active)
	}
	environment.MustKubectl(t, "", "delete", "namespace", ns, "--timeout=120s")
	for _, vm := range vms {
		environment.AwaitGone(t, vm, time.Second)
		environment.HasServers(t, vm, 0, time.Second)
	}
}

// TestReusedName checks that a VM of the same name, created as soon as the first one
// is gone, is a different VM.
func TestReusedName(t *testing.T) {
	t.Parallel()
	for _, name := range drivers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns := environment.Namespace(t)
			first := environment.Active(t, newSmallVM("vm", ns, name))
			environment.MustKubectl(t, "", "delete", "vm", "vm", "-n", ns, "--timeout=60s")
			second := environment.Active(t, newSmallVM("vm", ns, name))
			if first.Status.Server.ID == second.Status.Server.ID {
				t.Error("the second one got the first one's server")
			}
			environment.HasServers(t, first, 0, time.Second)
			environment.HasServers(t, second, 1, time.Second)
		})
	}
}

// TestForeignContainersAreUnchanged checks that Drover does not touch a container
// without this cluster's id, whatever else it carries.
func TestForeignContainersAreUnchanged(t *testing.T) {
	t.Parallel()
	uid := string(uuid.NewUUID())
	var ids []string
	for n, labels := range []map[string]string{
		nil,
		{docker.LabelUID: uid},
		{docker.LabelUID: uid, docker.LabelCluster: "another", docker.LabelNamespace: "default", docker.LabelName: "vm"},
	} {
		ids = append(ids, rig.RunForeign(t, fmt.Sprintf("foreign-%d-%s", n, uid), labels))
	}
	waitForDockerSweep(t)
	for _, id := range ids {
		c, err := vmtest.Docker(t).ContainerInspect(t.Context(), id, client.ContainerInspectOptions{})
		if err != nil || !c.Container.State.Running || !strings.HasPrefix(c.Container.Name, "/foreign-") {
			t.Errorf("container %s is %+v, error %v", id, c.Container.State, err)
		}
	}
}
