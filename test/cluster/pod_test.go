// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/client/clientset/versioned"
	"cloudnative.tw/drover/test/cluster"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/users"
)

const (
	podNamespace = "guests"
	guestName    = "web"
)

// podWorld is a namespace with VirtualMachines of driver pod, and a controller for them.
type podWorld struct {
	vms        versioned.Interface
	controller *framework.Process
}

// newPodWorld installs the CRD and starts a controller on this host.
func newPodWorld(t *testing.T) *podWorld {
	t.Helper()
	importMachine(t, shared.Nodes()...)
	root, err := framework.RepositoryRoot()
	if err != nil {
		t.Fatal(err)
	}
	framework.RunKubectl(t, shared.Kubeconfig, "apply", "--server-side", "-k", filepath.Join(root, "config", "crd"))
	w := &podWorld{vms: versioned.NewForConfigOrDie(shared.Config)}
	createNamespace(t, podNamespace)
	binary := filepath.Join(t.TempDir(), "drover-controller")
	framework.MustRunCommand(t, framework.BuildTimeout, nil, "go", "-C", root, "build", "-o", binary, "./cmd/drover-controller")
	w.controller, err = framework.StartProcess(binary, []string{
		"--kubeconfig=" + shared.Kubeconfig, "--vm-driver=pod", "--pod-machine-image=" + machineImage, "--leader-elect=false",
		"--metrics-bind-address=0", "--health-probe-bind-address=0",
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the controller printed:\n%s", w.controller.Output())
		}
		if err := w.controller.Stop(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// createNamespace makes a namespace in which only restricted pods run.
func createNamespace(t *testing.T, name string) {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	namespace.Labels = map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}
	if _, err := shared.Client.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := shared.Client.CoreV1().Namespaces().Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// newGuest is a VirtualMachine of the test's Linux guest.
func newGuest(name string) *api.VirtualMachine {
	return framework.NewVM(name).Namespace(podNamespace).Driver("pod").
		Resource(api.ResourceCPU, "1").Resource(api.ResourceMemory, "192Mi").Resource(api.ResourceRootDisk, "64Mi").
		Port("http", 80, 0).GracePeriod(60).Spec(func(spec *api.VirtualMachineSpec) {
		spec.Image = &api.Image{
			Source: "oci://" + guestImage, PullPolicy: api.PullNever,
			Kernel: &api.Kernel{Source: "/vmlinuz", Initrd: "/initrd", Cmdline: "console=ttyS0 quiet panic=-1"},
		}
		spec.SSHAuthorizedKeys = []string{"ssh-ed25519 AAAA me"}
	}).Obj()
}

func (w *podWorld) create(t *testing.T, vm *api.VirtualMachine) {
	t.Helper()
	if _, err := w.vms.CloudnativeV1alpha1().VirtualMachines(podNamespace).Create(t.Context(), vm, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.delete(t, vm.Name) })
}

func (w *podWorld) delete(t *testing.T, name string) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	vms := w.vms.CloudnativeV1alpha1().VirtualMachines(podNamespace)
	if err := vms.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		t.Error(err)
	}
	framework.Eventually(t, wait, name+" is gone", func() error {
		vm, err := vms.Get(ctx, name, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is there: %s, %w", framework.FormatStatus(vm), err)
		}
		return nil
	})
}

// setAction changes the power state of the guest and waits until the server has it.
func (w *podWorld) setAction(t *testing.T, action api.Action) *api.VirtualMachine {
	t.Helper()
	framework.RunKubectl(t, shared.Kubeconfig, "-n", podNamespace, "patch", "vm", guestName, "--type=merge", "-p", fmt.Sprintf(`{"spec":{"action":%q}}`, action))
	return w.waitApplied(t)
}

func (w *podWorld) waitApplied(t *testing.T) (vm *api.VirtualMachine) {
	t.Helper()
	framework.Eventually(t, wait, guestName+" is as its spec says", func() (err error) {
		if vm, err = w.vms.CloudnativeV1alpha1().VirtualMachines(podNamespace).Get(t.Context(), guestName, metav1.GetOptions{}); err != nil {
			return err
		}
		return users.CheckApplied(vm)
	})
	return vm
}

// podOfGuest returns the pod of the guest, of which there must be one.
func podOfGuest(t *testing.T) *corev1.Pod {
	t.Helper()
	pods, err := shared.Client.CoreV1().Pods(podNamespace).List(t.Context(), metav1.ListOptions{LabelSelector: "cloudnative.tw/name=" + guestName})
	if err != nil {
		t.Fatal(err)
	}
	if len(pods.Items) != 1 {
		t.Fatalf("%s has %d pods, want 1", guestName, len(pods.Items))
	}
	return &pods.Items[0]
}

// checkBoots checks that the guest answers at its address and has counted its boots on its disk.
func checkBoots(t *testing.T, client string, vm *api.VirtualMachine, boots int) {
	t.Helper()
	if len(vm.Status.Addresses) == 0 {
		t.Fatalf("%s has no address: %s", vm.Name, framework.FormatStatus(vm))
	}
	got := get(t, client, "http://"+vm.Status.Addresses[0])
	for _, want := range []string{fmt.Sprintf(`"boots":%d`, boots), "ssh-ed25519 AAAA"} {
		if !strings.Contains(got, want) {
			t.Errorf("the guest answers %q, want %s", got, want)
		}
	}
}

// TestPodDriver runs a Linux guest by the driver pod on real kubelets, through its life and a loss.
func TestPodDriver(t *testing.T) {
	w := newPodWorld(t)
	client := runPod(t, "guest-client", shared.Node(2)).Name
	w.create(t, newGuest(guestName))
	vm := w.waitApplied(t)
	checkBoots(t, client, vm, 1)
	first := podOfGuest(t)

	w.setAction(t, api.ActionStopped)
	checkNoPod(t)
	vm = w.setAction(t, api.ActionActive)
	checkBoots(t, client, vm, 2)
	if second := podOfGuest(t); second.UID == first.UID {
		t.Errorf("the pod is %s as before", second.UID)
	}

	testForcedDeletion(t, w, client)
	if cluster.IsFull() {
		testNodeLoss(t, w, client)
		testForeigners(t, w)
	}
	w.delete(t, guestName)
	checkNoGuestLeft(t)
}

// testForcedDeletion deletes a pod under its guest by force: the next one waits for the kubelet.
func testForcedDeletion(t *testing.T, w *podWorld, client string) {
	before := podOfGuest(t)
	framework.RunKubectl(t, shared.Kubeconfig, "-n", podNamespace, "delete", "pod", before.Name, "--force", "--grace-period=0", "--wait=false")
	framework.Eventually(t, wait, "another pod runs", func() error {
		pod, err := shared.Client.CoreV1().Pods(podNamespace).Get(t.Context(), before.Name, metav1.GetOptions{})
		if err == nil && (pod.UID == before.UID || pod.Status.Phase != corev1.PodRunning) {
			err = fmt.Errorf("pod %s is %s", pod.UID, pod.Status.Phase)
		}
		return err
	})
	checkBoots(t, client, w.waitApplied(t), 3)
}

// testNodeLoss turns the node of a guest off. Nothing else may run until the kubelet is back and has
// reported the end, whatever happens to the objects of the pod and the node.
func testNodeLoss(t *testing.T, w *podWorld, client string) {
	before := podOfGuest(t)
	node, err := shared.NodeByName(before.Spec.NodeName)
	if err != nil {
		t.Fatal(err)
	}
	if err := node.PowerOff(); err != nil {
		t.Fatal(err)
	}
	waitForNode(t, node, false)
	w.waitReady(t, guestName, metav1.ConditionFalse)
	framework.RunKubectl(t, shared.Kubeconfig, "-n", podNamespace, "delete", "pod", before.Name, "--force", "--grace-period=0", "--wait=false")
	w.waitReady(t, guestName, metav1.ConditionFalse)
	if now := podOfGuest(t); now.UID != before.UID {
		t.Errorf("pod %s runs while the end of %s is not proven", now.UID, before.UID)
	}
	if err := node.PowerOn(); err != nil {
		t.Fatal(err)
	}
	waitForNode(t, node, true)
	framework.Eventually(t, wait, "another pod", func() error {
		pod, err := shared.Client.CoreV1().Pods(podNamespace).Get(t.Context(), before.Name, metav1.GetOptions{})
		if err == nil && pod.UID == before.UID {
			err = fmt.Errorf("pod %s has the status %+v", pod.UID, pod.Status)
		}
		return err
	})
	checkBoots(t, client, w.waitApplied(t), 4)
}

// waitReady waits until condition Ready has a status.
func (w *podWorld) waitReady(t *testing.T, name string, status metav1.ConditionStatus) {
	t.Helper()
	framework.Eventually(t, wait, fmt.Sprintf("%s is Ready: %s", name, status), func() error {
		vm, err := w.vms.CloudnativeV1alpha1().VirtualMachines(podNamespace).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		return framework.HasCondition(api.ConditionReady, status)(vm)
	})
}

// testForeigners lets an editor of another namespace claim the UID of a VirtualMachine: neither it
// nor what it has made may change.
func testForeigners(t *testing.T, w *podWorld) {
	const other = "others"
	createNamespace(t, other)
	pod := podOfGuest(t)
	forged := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Labels: pod.Labels, Annotations: map[string]string{"cloudnative.tw/run": string(pod.UID)}},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}
	if _, err := shared.Client.CoreV1().PersistentVolumeClaims(other).Create(t.Context(), forged, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.setAction(t, api.ActionStopped)
	w.setAction(t, api.ActionActive)
	if _, err := shared.Client.CoreV1().PersistentVolumeClaims(other).Get(t.Context(), pod.Name, metav1.GetOptions{}); err != nil {
		t.Errorf("the claim of another namespace: %v", err)
	}
}

// checkNoPod checks that the guest, which is off, has no pod.
func checkNoPod(t *testing.T) {
	t.Helper()
	framework.Eventually(t, wait, "the pod of "+guestName+" is gone", func() error {
		pods, err := shared.Client.CoreV1().Pods(podNamespace).List(t.Context(), metav1.ListOptions{LabelSelector: "cloudnative.tw/name=" + guestName})
		if err == nil && len(pods.Items) > 0 {
			err = fmt.Errorf("%s is there", pods.Items[0].Name)
		}
		return err
	})
}

// checkNoGuestLeft checks that nothing is left of deleted VirtualMachines.
func checkNoGuestLeft(t *testing.T) {
	t.Helper()
	framework.Eventually(t, wait, "nothing is left", func() error {
		core, all := shared.Client.CoreV1(), metav1.ListOptions{LabelSelector: "cloudnative.tw/uid"}
		pods, err1 := core.Pods(podNamespace).List(t.Context(), all)
		claims, err2 := core.PersistentVolumeClaims(podNamespace).List(t.Context(), all)
		secrets, err3 := core.Secrets(podNamespace).List(t.Context(), all)
		err := errors.Join(err1, err2, err3)
		if err == nil && len(pods.Items)+len(claims.Items)+len(secrets.Items) > 0 {
			err = fmt.Errorf("%d pods, %d PVCs and %d Secrets are left", len(pods.Items), len(claims.Items), len(secrets.Items))
		}
		return err
	})
}
