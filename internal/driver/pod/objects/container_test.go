// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/machine/description"
	"cloudnative.tw/drover/test/assert"
)

// TestContainersOfOthers checks that the machine's container is found by its name, where a webhook has put
// another one first that looks like it, and that a pod without one is none.
func TestContainersOfOthers(t *testing.T) {
	t.Parallel()
	const kvm = "example.com/kvm"
	port := driver.Port{Name: "web", Port: 80, Protocol: "TCP"}
	p, err := (&Template{}).NewPod(driver.ServerSpec{Ports: []driver.Port{port}}, Run{Nonce: "nonce"})
	assert.NoError(t, err)
	other := *MachineContainer(p).DeepCopy()
	other.Name, other.StartupProbe = "other", nil
	for n := range other.Ports {
		other.Ports[n].Name, other.Ports[n].ContainerPort = "other", other.Ports[n].ContainerPort+1
	}
	other.Resources.Requests[kvm] = resource.MustParse("1")
	p.Spec.Containers = append([]corev1.Container{other}, p.Spec.Containers...)
	mounted := []corev1.VolumeMountStatus{{
		Name: "image", VolumeStatus: &corev1.VolumeStatus{Image: &corev1.ImageVolumeStatus{ImageRef: "other@sha256:1"}},
	}}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "other", VolumeMounts: mounted}, {Name: ContainerName}}
	at, ok := ControlPortOf(p)
	if c := MachineContainer(p); c.Name != ContainerName || c.StartupProbe == nil || MachineStatus(p).Name != ContainerName || !ok || at != firstControlPort {
		t.Errorf("the machine's container is %+v, its status %+v, its control port %d", c, MachineStatus(p), at)
	}
	if name, requested, digest := containerPortName(p, port), RequestedOf(p, kvm), ImageDigest(p); name != "web" || requested != "" || digest != "" {
		t.Errorf("the port is %q, %q is requested, the digest is %q", name, requested, digest)
	}
	if !LeadsToGuest(p, 80) || LeadsToGuest(p, 81) || LeadsToGuest(p, firstControlPort) {
		t.Error("of the ports 80, 81 and the control port others lead to the guest than 80 alone")
	}
}

// TestNodeAddresses checks that a machine is told the addresses of its node.
func TestNodeAddresses(t *testing.T) {
	t.Parallel()
	p, err := (&Template{}).NewPod(driver.ServerSpec{}, Run{Nonce: "nonce"})
	assert.NoError(t, err)
	env := MachineContainer(p).Env
	if len(env) != 1 || env[0].Name != description.NodeAddresses || env[0].ValueFrom.FieldRef.FieldPath != "status.hostIPs" {
		t.Errorf("its environment is %+v", env)
	}
}

// TestPodWithoutMachine checks that a pod without the machine's container has none.
func TestPodWithoutMachine(t *testing.T) {
	t.Parallel()
	const kvm = "example.com/kvm"
	port := driver.Port{Name: "web", Port: 81, Protocol: "TCP"}
	p, err := (&Template{}).NewPod(driver.ServerSpec{Ports: []driver.Port{port}}, Run{Nonce: "nonce"})
	assert.NoError(t, err)
	p.Spec.Containers[0].Name = "other"
	if _, ok := ControlPortOf(p); ok || MachineContainer(p) != nil || RequestedOf(p, kvm) != "" || containerPortName(p, port) != "" || LeadsToGuest(p, 81) {
		t.Error("a pod without the machine's container has one")
	}
}
