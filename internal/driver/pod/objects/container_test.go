// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/machine/description"
	"cloudnative.tw/drover/test/assert"
)

// TestContainersOfOthers checks that the machine's container is found by its name, where a webhook has put
// another one first that looks like it, and that nothing is found in a pod without one.
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
	name, requested, digest := containerPortName(p, port), RequestedOf(p, kvm), ImageDigest(p)
	assert.True(t, name == "web" && requested == "" && digest == "", "the port is %q, %q is requested, the digest is %q", name, requested, digest)
	assert.True(t, LeadsToGuest(p, 80) && !LeadsToGuest(p, 81) && !LeadsToGuest(p, firstControlPort),
		"of the ports 80, 81 and the control port others lead to the guest than 80 alone")
}

// TestNodeAddresses checks that a machine is told the addresses of its node.
func TestNodeAddresses(t *testing.T) {
	t.Parallel()
	p, err := (&Template{}).NewPod(driver.ServerSpec{}, Run{Nonce: "nonce"})
	assert.NoError(t, err)
	env := MachineContainer(p).Env
	assert.True(t, len(env) == 1 && env[0].Name == description.NodeAddresses && env[0].ValueFrom.FieldRef.FieldPath == "status.hostIPs",
		"its environment is %+v", env)
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
	assert.NoError(t, CheckStorage(p, driver.ServerSpec{Ephemeral: true}))
}

// TestMetaOfBarePod gives a pod that has lost all labels and annotations those that it should have.
func TestMetaOfBarePod(t *testing.T) {
	t.Parallel()
	p := &corev1.Pod{}
	(&Template{}).SetMeta(p, driver.ServerSpec{Name: "web", Labels: map[string]string{"app": "shop"}}, nil)
	assert.True(t, p.Labels[LabelName] == "web" && p.Labels["app"] == "shop", "the labels are %v", p.Labels)
}

// TestEphemeralStorage checks that an ephemeral server requests the storage of its disk and log, so that its
// node has it and no limit of the namespace's default applies, and that a smaller number is refused.
func TestEphemeralStorage(t *testing.T) {
	t.Parallel()
	spec := driver.ServerSpec{Ephemeral: true, RootDiskBytes: 20 << 30}
	disk := ClaimSize(20 << 30)
	p, err := (&Template{}).NewPod(spec, Run{Nonce: "nonce"})
	assert.NoError(t, err)
	var limit *resource.Quantity
	for _, v := range p.Spec.Volumes {
		if v.EmptyDir != nil {
			limit = v.EmptyDir.SizeLimit
		}
	}
	has := MachineContainer(p).Resources
	if limit == nil || !limit.Equal(disk) || has.Limits.StorageEphemeral().Value() != disk.Value()+logBytes || !has.Requests.StorageEphemeral().Equal(*has.Limits.StorageEphemeral()) {
		t.Errorf("the volume is limited to %v, the container to %+v", limit, has)
	}
	assert.NoError(t, CheckStorage(p, spec))
	has.Limits[corev1.ResourceEphemeralStorage] = resource.MustParse("1Gi")
	assert.ErrorSays(t, "less than the disk", CheckStorage(p, spec), "to 1Gi (1073741824 bytes), and a root disk of this size needs ")
	spec.Ephemeral = false
	assert.NoError(t, CheckStorage(p, spec))
	p, err = (&Template{}).NewPod(spec, Run{Nonce: "nonce"})
	assert.NoError(t, err)
	_, ok := MachineContainer(p).Resources.Limits[corev1.ResourceEphemeralStorage]
	assert.True(t, !ok, "a pod whose disk is in a PVC limits its ephemeral storage")
}

// TestLabelsOfOthers checks which objects have the labels of their VirtualMachine: pods that an owner keeps
// from tools which prune by label, and nothing else.
func TestLabelsOfOthers(t *testing.T) {
	t.Parallel()
	const theirs = "app.kubernetes.io/instance"
	labels := map[string]string{theirs: "shop"}
	root := &corev1.PersistentVolumeClaim{}
	for name, c := range map[string]struct {
		spec driver.ServerSpec
		root *corev1.PersistentVolumeClaim
		want bool
	}{
		"of the VirtualMachine":          {driver.ServerSpec{}, root, true},
		"retained, of its claim":         {driver.ServerSpec{RetainOnDelete: true}, root, true},
		"ephemeral":                      {driver.ServerSpec{Ephemeral: true}, nil, true},
		"retained and ephemeral, nobody": {driver.ServerSpec{RetainOnDelete: true, Ephemeral: true}, nil, false},
	} {
		c.spec.Labels = labels
		p, err := (&Template{}).NewPod(c.spec, Run{Nonce: "nonce", Root: c.root})
		assert.NoError(t, err)
		if _, ok := p.Labels[theirs]; ok != c.want || ok != (len(p.OwnerReferences) > 0) || !HasLabels(p, labels) {
			t.Errorf("%s: the pod has the labels %v and the owners %v", name, p.Labels, p.OwnerReferences)
		}
		p.OwnerReferences = nil
		SetLabels(p, labels)
		_, ok := p.Labels[theirs]
		assert.True(t, !ok, "%s: a pod that lost its owner keeps %v", name, p.Labels)
	}
	for name, object := range map[string]metav1.Object{
		"claim":  (&Template{}).NewClaim(driver.ServerSpec{Labels: labels}, Disk{}, "nonce"),
		"budget": (&Template{}).NewBudget(driver.ServerSpec{Labels: labels}, "nonce"),
	} {
		_, ok := object.GetLabels()[theirs]
		assert.True(t, !ok, "the %s has the labels %v", name, object.GetLabels())
	}
}
