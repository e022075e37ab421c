// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/pod/kvm"
	"cloudnative.tw/drover/internal/driver/pod/objects"
	"cloudnative.tw/drover/internal/driver/pod/podtest"
	"cloudnative.tw/drover/internal/machine/description"
	"cloudnative.tw/drover/test/assert"
)

var errNotYet = errors.New("not yet")

// described returns what the machine of a pod reads.
func (s *server) described(t *testing.T) (d description.Machine) {
	t.Helper()
	assert.NoError(t, json.Unmarshal([]byte(s.pod(t).Annotations[objects.AnnotationMachine]), &d))
	return d
}

// images returns the images that the server's pod mounts.
func (s *server) images(t *testing.T) (all []string) {
	t.Helper()
	for _, v := range s.pod(t).Spec.Volumes {
		if v.Image != nil {
			all = append(all, v.Image.Reference)
		}
	}
	return all
}

// TestMadeDisks checks that the pods after the first one that ran neither make the disks again nor need
// their images.
func TestMadeDisks(t *testing.T) {
	t.Parallel()
	s := newWorld(t).newServer(t, "web")
	s.Volumes = []driver.Volume{{Name: "data", SizeBytes: 1 << 20, Image: &driver.Image{Source: "oci://registry.example/data:1"}}}
	s.reach(t, driver.StateRunning)
	if d := s.described(t); d.RootDisk.MustExist || d.Volumes[0].MustExist || len(s.images(t)) != 2 {
		t.Errorf("the first pod has %+v and %+v, with images %v", d.RootDisk, d.Volumes[0], s.images(t))
	}
	s.Volumes = append(s.Volumes, driver.Volume{Name: "more", SizeBytes: 1 << 20})
	s.restart(t)
	d := s.described(t)
	if !d.RootDisk.MustExist || !d.Volumes[0].MustExist || d.Volumes[1].MustExist || d.RootDisk.Image != "" || len(s.images(t)) > 0 {
		t.Errorf("the second pod has %+v and %+v, with images %v", d.RootDisk, d.Volumes, s.images(t))
	}
	s.deleteAll(t)
}

// TestImageOfMadeDisk checks that a root disk keeps the image that it was made from, whatever the spec says,
// while a kernel comes from the one that the spec names.
func TestImageOfMadeDisk(t *testing.T) {
	t.Parallel()
	s := newWorld(t).newServer(t, "web")
	s.reach(t, driver.StateRunning)
	s.Image.Source = "oci://registry.example/boot:2"
	got := s.reach(t, driver.StateRunning)
	if got.Refused == nil || got.Refused.Reason != driver.ReasonImageImmutable || !strings.Contains(got.Refused.Message, "boot:1") || len(got.Pending) > 0 {
		t.Errorf("another image: refused is %+v, and pending %v", got.Refused, got.Pending)
	}
	s.Image.Kernel = &driver.Kernel{Source: "/vmlinuz"} // now it is for the kernel
	got = s.reach(t, driver.StateRunning)
	assert.True(t, got.Refused == nil && slices.Equal(got.Pending, []string{"image"}), "with a kernel: refused is %+v, and pending %v", got.Refused, got.Pending)
	s.restart(t)
	if got := s.images(t); !slices.Equal(got, []string{"registry.example/boot:2"}) || !s.described(t).RootDisk.MustExist {
		t.Errorf("with a kernel the pod has the images %v", got)
	}
	s.deleteAll(t)
}

// TestDisksThatAreBeingMade checks that a machine that makes its disks is starting, also for a new leader,
// and that disks which it has not finished are made by the next pod.
func TestDisksThatAreBeingMade(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.kubelet.Set(func(k *podtest.Kubelet) { k.MakesDisks = true })
	s := w.newServer(t, "web")
	assert.Eventually(t, "its container runs", func(t testing.TB) error {
		_, err := s.ensure(t)
		if err == nil && len(s.pod(t).Status.ContainerStatuses) == 0 {
			err = errNotYet
		}
		return err
	})
	got := s.reach(t, driver.StateStarting)
	assert.True(t, strings.Contains(got.Progress, "makes its disks") && got.ImageID == "", "it is %+v", got)
	s.d = w.open(t)
	s.reach(t, driver.StateStarting)
	w.kubelet.Set(func(k *podtest.Kubelet) { k.MakesDisks = false })
	s.restart(t)
	d := s.described(t)
	assert.True(t, !d.RootDisk.MustExist && d.RootDisk.Image != "", "after an end during the copy, the next pod has %+v", d.RootDisk)
	s.deleteAll(t)
}

// TestVolumeThatLeavesWhileItIsMade checks that a volume which is removed from the spec while the machine makes
// its disk is not made again when it is given back.
func TestVolumeThatLeavesWhileItIsMade(t *testing.T) {
	t.Parallel()
	w, s := newServer(t)
	w.kubelet.Set(func(k *podtest.Kubelet) { k.MakesDisks = true })
	s.Volumes = []driver.Volume{{Name: "data", SizeBytes: 1 << 20}}
	assert.Eventually(t, "its container runs", func(t testing.TB) error {
		_, err := s.ensure(t)
		if err == nil && len(s.pod(t).Status.ContainerStatuses) == 0 {
			err = errNotYet
		}
		return err
	})
	volumes := s.Volumes
	s.Volumes = nil
	s.reach(t, driver.StateStarting)
	w.kubelet.Set(func(k *podtest.Kubelet) { k.MakesDisks = false })
	assert.Eventually(t, "its disks are made", func(t testing.TB) error {
		p := s.pod(t)
		p.Status.ContainerStatuses[0].Started = new(true)
		_, err := w.kube.CoreV1().Pods(s.Namespace).UpdateStatus(t.Context(), p, metav1.UpdateOptions{})
		return err
	})
	s.reach(t, driver.StateRunning)
	s.Volumes = volumes
	s.restart(t)
	d := s.described(t)
	assert.True(t, d.RootDisk.MustExist && len(d.Volumes) == 1 && d.Volumes[0].MustExist, "the next pod has %+v and %+v", d.RootDisk, d.Volumes)
	s.deleteAll(t)
}

// TestSpecOfAWaitingPod checks that a pod which waits for a node, or for an image, gets a changed spec.
func TestSpecOfAWaitingPod(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		breaks, fixes func(*driver.ServerSpec)
	}{
		"node": {
			func(s *driver.ServerSpec) { s.Placement.NodeSelector = map[string]string{podtest.NoNode: "true"} },
			func(s *driver.ServerSpec) { s.Placement.NodeSelector = nil },
		},
		"image": {
			func(s *driver.ServerSpec) { s.Image.Source = "oci://registry.example/absent:1" },
			func(s *driver.ServerSpec) { s.Image.Source = "oci://registry.example/boot:1" },
		},
		"node of an ephemeral server": {
			func(s *driver.ServerSpec) {
				s.Ephemeral, s.Placement.NodeSelector = true, map[string]string{podtest.NoNode: "true"}
			},
			func(s *driver.ServerSpec) { s.Placement.NodeSelector = nil },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, s := newServer(t)
			c.breaks(&s.ServerSpec)
			s.reach(t, driver.StateStarting)
			first := s.waitUntilSettled(t, s.Placement.NodeSelector == nil)
			c.fixes(&s.ServerSpec)
			got := s.reach(t, driver.StateRunning)
			assert.True(t, got.Run != string(first) && len(got.Pending) == 0, "it runs in pod %s, the first was %s, and %v is pending", got.Run, first, got.Pending)
			s.deleteAll(t)
		})
	}
}

// waitUntilSettled waits until the pod has lost its gate, and has a node if it can get one, and returns its UID.
func (s *server) waitUntilSettled(t *testing.T, hasNode bool) (uid types.UID) {
	t.Helper()
	assert.Eventually(t, "the pod waits", func(t testing.TB) error {
		_, err := s.ensure(t)
		var p *corev1.Pod
		if err == nil {
			p = s.pod(t)
			uid = p.UID
		}
		if err == nil && (objects.IsGated(p) || hasNode == (p.Spec.NodeName == "")) {
			err = errNotYet
		}
		return err
	})
	return uid
}

// TestKVM checks what a new pod requests, and which accelerator its machine is to use, before and after
// a node offers KVM.
func TestKVM(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	name := corev1.ResourceName("kvm.example/" + w.namespace)
	now := clocktesting.NewFakePassiveClock(time.Now())
	drivers := map[kvm.Mode]*Driver{}
	for _, mode := range []kvm.Mode{kvm.Auto, kvm.Require, kvm.Never} {
		d := w.open(t)
		d.kvm.Mode, d.kvm.Resource, d.kvm.Clock = mode, name, now
		drivers[mode] = d
	}
	check := func(vm string, mode kvm.Mode, selector map[string]string, accelerator string, requests int64) {
		t.Helper()
		s := w.newServer(t, vm)
		s.d, s.Placement.NodeSelector = drivers[mode], selector
		s.reach(t, driver.StateRunning)
		described, resources := s.described(t), s.pod(t).Spec.Containers[0].Resources
		requested, limited := resources.Requests[name], resources.Limits[name]
		if described.Accelerator != accelerator || requested.Value() != requests || limited.Value() != requests {
			t.Errorf("%s: the machine uses %s, and the pod requests %s of %s of KVM, want %s and %d of both",
				vm, described.Accelerator, requested.String(), limited.String(), accelerator, requests)
		}
	}
	check("without-a-node", kvm.Auto, nil, "auto", 0)
	check("required-without-a-node", kvm.Require, nil, "kvm", 1)
	node := w.addKVMNode(t, name)
	check("soon-after", kvm.Auto, nil, "auto", 0)
	now.SetTime(now.Now().Add(time.Minute))
	check("not-ready", kvm.Auto, nil, "auto", 0) // by the taint that a new node gets
	node.Spec.Taints = nil
	assert.NoError(t, assert.ErrorOf(w.kube.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{})))
	now.SetTime(now.Now().Add(time.Minute))
	check("with-a-node", kvm.Auto, nil, "auto", 1)
	check("selected", kvm.Auto, map[string]string{"zone": w.namespace}, "auto", 1)
	check("elsewhere", kvm.Auto, map[string]string{"zone": "other"}, "auto", 0)
	check("required", kvm.Require, nil, "kvm", 1)
	check("never", kvm.Never, nil, "tcg", 0)
}

// addKVMNode adds a node that offers a resource, of a zone named as the world's namespace.
func (w *world) addKVMNode(t *testing.T, name corev1.ResourceName) *corev1.Node {
	t.Helper()
	nodes := w.kube.CoreV1().Nodes()
	meta := metav1.ObjectMeta{Name: "kvm-" + w.namespace, Labels: map[string]string{"zone": w.namespace}}
	node, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: meta}, metav1.CreateOptions{})
	assert.NoError(t, err)
	node.Status.Allocatable = corev1.ResourceList{name: resource.MustParse("100")}
	node.Status.Capacity = node.Status.Allocatable
	node, err = nodes.UpdateStatus(t.Context(), node, metav1.UpdateOptions{})
	assert.NoError(t, err)
	return node
}

// TestRefusedByPolicy checks that what a policy of the cluster refuses is an error that says so and may be
// gone later, without a change of the spec.
func TestRefusedByPolicy(t *testing.T) {
	t.Parallel()
	w, s := newServer(t)
	name, policies := "refuse-"+w.namespace, w.kube.AdmissionregistrationV1()
	assert.NoError(t, assert.ErrorOf(policies.ValidatingAdmissionPolicies().Create(t.Context(), &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionv1.MatchResources{
				NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": w.namespace}},
				ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
					Operations: []admissionv1.OperationType{admissionv1.Create},
					Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
				}}},
			},
			Validations: []admissionv1.Validation{{Expression: "false", Message: "no pods today"}},
		},
	}, metav1.CreateOptions{})))
	assert.NoError(t, assert.ErrorOf(policies.ValidatingAdmissionPolicyBindings().Create(t.Context(), &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}},
	}, metav1.CreateOptions{})))
	assert.Eventually(t, "the policy is in force", func(t testing.TB) error {
		tried := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "tried"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
		if _, err := w.kube.CoreV1().Pods(w.namespace).Create(t.Context(), tried, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); !apierrors.IsInvalid(err) {
			return fmt.Errorf("a pod gives %w", err)
		}
		return nil
	})
	assert.ErrorIs(t, "Ensure", assert.ErrorOf(s.ensure(t)), driver.ErrExhausted, "no pods today")
	assert.NoError(t, policies.ValidatingAdmissionPolicyBindings().Delete(t.Context(), name, metav1.DeleteOptions{}))
	s.reach(t, driver.StateRunning)
	s.deleteAll(t)
}
