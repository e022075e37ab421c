// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/client/clientset/versioned"
	typed "cloudnative.tw/drover/client/clientset/versioned/typed/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/cluster"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/users"
	"cloudnative.tw/drover/test/tier"
)

const podNamespace = "guests"

// podController is a controller for all VirtualMachines of the cluster.
type podController struct {
	oracle *machineOracle
	// kubectlVM and binary are the programs kubectl-vm and drover-controller.
	kubectlVM, binary string
	flags             []string // further flags of the controller
	controller        *framework.Process
	// guests are all guests that were created.
	guests []*guest
}

// podWorld is a namespace with VirtualMachines of driver pod.
type podWorld struct {
	*podController

	namespace string
	vms       typed.VirtualMachineInterface
}

// newPodWorld installs the CRD and starts a controller on this host, with further flags.
func newPodWorld(t *testing.T, flags ...string) *podWorld {
	t.Helper()
	importMachine(t)
	root, err := framework.RepositoryRoot()
	assert.NoError(t, err)
	framework.RunKubectl(t, shared.Kubeconfig, "apply", "--server-side", "-k", filepath.Join(root, "config", "crd"))
	framework.RunKubectl(t, shared.Kubeconfig, "apply", "-f", filepath.Join(root, "config", "pod", "assertions.yaml"))
	w := (&podController{oracle: startMachineOracle(t), flags: flags}).newNamespace(t, podNamespace)
	dir := t.TempDir()
	w.binary, w.kubectlVM = filepath.Join(dir, "drover-controller"), filepath.Join(dir, "kubectl-vm")
	assert.NoError(t, framework.BuildController(w.binary))
	assert.NoError(t, framework.BuildProgram(w.kubectlVM, "cmd/kubectl-vm"))
	w.startController(t)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the controller printed:\n%s", w.controller.Output())
		}
		assert.NoError(t, w.controller.Stop())
	})
	return w
}

// newNamespace creates a namespace for VirtualMachines.
func (c *podController) newNamespace(t *testing.T, name string) *podWorld {
	t.Helper()
	createNamespace(t, name)
	return &podWorld{c, name, versioned.NewForConfigOrDie(shared.Config).CloudnativeV1alpha1().VirtualMachines(name)}
}

func (c *podController) startController(t *testing.T) {
	t.Helper()
	var err error
	c.controller, err = framework.StartProcess(c.binary, append([]string{
		"--kubeconfig=" + shared.Kubeconfig, "--vm-driver=pod", "--pod-machine-image=" + machineImage, "--pod-assertions", "--leader-elect=false",
		"--metrics-bind-address=0", "--health-probe-bind-address=0",
	}, c.flags...), nil)
	assert.NoError(t, err)
}

// createNamespace creates a namespace that admits only restricted pods.
func createNamespace(t *testing.T, name string) {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	namespace.Labels = map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}
	assert.NoError(t, assert.ErrorOf(shared.Client.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{})))
	t.Cleanup(func() { // another test may use the same name
		ctx, namespaces := context.WithoutCancel(t.Context()), shared.Client.CoreV1().Namespaces()
		assert.Eventually(t, "namespace "+name+" is gone", func(testing.TB) error {
			err := namespaces.Delete(ctx, name, metav1.DeleteOptions{})
			if !apierrors.IsNotFound(err) {
				return fmt.Errorf("it is being deleted: %w", err)
			}
			return nil
		})
	})
}

// guest is a VirtualMachine of the test's Linux guest.
type guest struct {
	*podWorld

	name string
	uid  types.UID
	// boots is how often the guest was booted, as counted on its disk.
	boots int
	// disk is the file of the guest's disk if the guest writes blocks there. rounds is how many it has synced.
	disk   string
	rounds uint64
}

// createGuest creates a VirtualMachine and waits until its guest answers.
func (w *podWorld) createGuest(t *testing.T, name string, change func(*api.VirtualMachineSpec)) *guest {
	t.Helper()
	g := w.requestGuest(t, name, change)
	g.waitRun(t, "")
	return g
}

// newVM returns a small VirtualMachine.
func (w *podWorld) newVM(name, cpu, memory string) *framework.VMBuilder {
	return framework.NewVM(name).Namespace(w.namespace).Driver("pod").Resource(api.ResourceCPU, cpu).Resource(api.ResourceMemory, memory)
}

// linuxImage is the test's Linux guest.
func linuxImage() *api.Image {
	return &api.Image{
		Source: "oci://" + guestImage, PullPolicy: api.PullNever,
		Kernel: &api.Kernel{Source: "/vmlinuz", Initrd: "/initrd", Cmdline: framework.GuestCmdline},
	}
}

// requestGuest creates a VirtualMachine of the Linux guest.
func (w *podWorld) requestGuest(t *testing.T, name string, change func(*api.VirtualMachineSpec)) *guest {
	t.Helper()
	return w.create(t, w.newVM(name, "1", "192Mi").Resource(api.ResourceRootDisk, "64Mi").
		Port("http", 80, 0).GracePeriod(60).Spec(func(spec *api.VirtualMachineSpec) {
		spec.Image, spec.SSHAuthorizedKeys = linuxImage(), []string{"ssh-ed25519 AAAA me"}
	}).Spec(change))
}

// create creates a VirtualMachine, which is deleted at the end of the test.
func (w *podWorld) create(t *testing.T, vm *framework.VMBuilder) *guest {
	t.Helper()
	made, err := w.vms.Create(t.Context(), vm.Obj(), metav1.CreateOptions{})
	assert.NoError(t, err)
	return w.findGuest(t, made.Name)
}

// findGuest returns the guest of a VirtualMachine that exists.
func (w *podWorld) findGuest(t *testing.T, name string) *guest {
	t.Helper()
	vm, err := w.vms.Get(t.Context(), name, metav1.GetOptions{})
	assert.NoError(t, err)
	g := &guest{podWorld: w, name: name, uid: vm.UID}
	w.guests = append(w.guests, g)
	t.Cleanup(func() { g.delete(t) })
	return g
}

// delete deletes the VirtualMachine and waits until it is gone.
func (g *guest) delete(t *testing.T) {
	t.Helper()
	assert.Eventually(t, g.name+" is being deleted", func(t testing.TB) error { // a busy host may miss a call
		err := g.vms.Delete(context.WithoutCancel(t.Context()), g.name, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
	g.waitGone(t)
}

func (g *guest) waitGone(t *testing.T) {
	t.Helper()
	assert.Eventually(t, g.name+" is gone", func(t testing.TB) error {
		vm, err := g.vms.Get(context.WithoutCancel(t.Context()), g.name, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("it still exists: %s, %w", framework.FormatStatus(vm), err)
		}
		return nil
	})
}

func (g *guest) patch(t *testing.T, patch string) {
	t.Helper()
	assert.NoError(t, assert.ErrorOf(g.vms.Patch(t.Context(), g.name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})))
}

// setAction sets the action of the guest's VirtualMachine.
func (g *guest) setAction(t *testing.T, action api.Action) {
	t.Helper()
	g.patch(t, fmt.Sprintf(`{"spec":{"action":%q}}`, action))
}

// stop switches the guest off and waits until its pod is gone.
func (g *guest) stop(t *testing.T) {
	t.Helper()
	g.setAction(t, api.ActionStopped)
	g.waitFor(t, users.CheckApplied)
	assert.Eventually(t, "the pod of "+g.name+" is gone", func(t testing.TB) error {
		if pod, err := g.findPod(t); err != nil || pod != nil {
			return fmt.Errorf("there is %v, %w", pod, err)
		}
		return nil
	})
}

// start switches the guest on and waits until it answers.
func (g *guest) start(t *testing.T) {
	t.Helper()
	g.setAction(t, api.ActionActive)
	g.waitRun(t, "")
}

// waitFor waits until the VirtualMachine passes all checks.
func (g *guest) waitFor(t *testing.T, checks ...framework.VMCheck) (vm *api.VirtualMachine) {
	t.Helper()
	assert.Eventually(t, g.name+" is as it should be", func(t testing.TB) (err error) {
		if vm, err = g.vms.Get(t.Context(), g.name, metav1.GetOptions{}); err != nil {
			return err
		}
		for _, check := range checks {
			if err := check(vm); err != nil {
				return fmt.Errorf("%w; the status is %s", err, framework.FormatStatus(vm))
			}
		}
		return nil
	})
	return vm
}

// findPod returns the guest's pod, or nil.
func (g *guest) findPod(t testing.TB) (*corev1.Pod, error) {
	t.Helper()
	pods, err := shared.Client.CoreV1().Pods(g.namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "cloudnative.tw/name=" + g.name})
	switch {
	case err != nil:
		return nil, err
	case len(pods.Items) > 1:
		t.Fatalf("%s has %d pods", g.name, len(pods.Items))
	case len(pods.Items) == 1:
		return &pods.Items[0], nil
	}
	return nil, nil //nolint:nilnil // Nil is for no pod.
}

// pod returns the guest's pod, of which there must be one.
func (g *guest) pod(t *testing.T) *corev1.Pod {
	t.Helper()
	pod, err := g.findPod(t)
	assert.Require(t, err == nil && pod != nil, "%s lacks a pod: %v", g.name, err)
	return pod
}

// node returns the node of the guest's pod.
func (g *guest) node(t *testing.T) *cluster.Node {
	t.Helper()
	node, err := shared.NodeByName(g.pod(t).Spec.NodeName)
	assert.NoError(t, err)
	return node
}

// waitRun waits until a pod other than the former one runs, and the guest has booted once more.
func (g *guest) waitRun(t *testing.T, before types.UID) *corev1.Pod {
	t.Helper()
	var pod *corev1.Pod
	begun := time.Now()
	assert.Eventually(t, g.name+" runs in another pod", func(t testing.TB) (err error) {
		pod, err = g.findPod(t)
		switch {
		case err != nil:
			return err
		case pod == nil:
			return errors.New("no pod exists")
		case pod.UID == before || pod.Status.Phase != corev1.PodRunning:
			return fmt.Errorf("pod %s on %s, deleted %v, has the status %+v", pod.UID, pod.Spec.NodeName, pod.DeletionTimestamp, pod.Status)
		}
		return nil
	})
	vm := g.waitFor(t, users.CheckApplied)
	pod = g.pod(t) // the first pod may have ended before its guest ran
	if g.boots++; vm.Spec.Ephemeral {
		g.boots = 1
	}
	g.checkAnswers(t, pod)
	g.checkRounds(t, pod)
	g.oracle.checkSeen(t, pod)
	t.Logf("%s runs in pod %s on %s after %v", g.name, pod.UID, pod.Spec.NodeName, time.Since(begun).Round(time.Millisecond))
	return pod
}

// checkAnswers checks that the guest answers at the address of its pod, and its number of boots.
func (g *guest) checkAnswers(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	var got string
	assert.Eventually(t, g.name+" answers", func(t testing.TB) (err error) {
		got, err = getFromHost(t, "http://"+pod.Status.PodIP)
		return err
	})
	for _, want := range []string{fmt.Sprintf(`"boots":%d`, g.boots), "ssh-ed25519 AAAA"} {
		assert.Contains(t, "the guest answers", got, want)
	}
}

func getFromHost(t testing.TB, url string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", err
	}
	response, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	return string(body), err
}

// checkUndisturbed checks that the guest is ready in the same pod as before, without another boot.
func (g *guest) checkUndisturbed(t *testing.T, before *corev1.Pod) {
	t.Helper()
	g.waitFor(t, users.CheckApplied)
	g.checkRunsIn(t, before)
}

// checkRunsIn checks that the guest runs in the same pod as before, without another boot.
func (g *guest) checkRunsIn(t *testing.T, before *corev1.Pod) {
	t.Helper()
	pod := g.pod(t)
	assert.True(t, pod.UID == before.UID && pod.DeletionTimestamp == nil, "%s has pod %s, deleted %v, want %s", g.name, pod.UID, pod.DeletionTimestamp, before.UID)
	g.checkAnswers(t, before)
}

// waitLost waits until the VirtualMachine reports that its node is lost.
func (g *guest) waitLost(t *testing.T, node *cluster.Node) {
	t.Helper()
	waitForNode(t, node, false)
	g.waitFor(t, isLost)
}

// isLost checks that the VirtualMachine reports that its node is lost.
func isLost(vm *api.VirtualMachine) error {
	return errors.Join(
		framework.HasPhase(api.PhaseUnknown, api.ReasonUnresponsive)(vm),
		framework.HasCondition(api.ConditionReady, metav1.ConditionUnknown)(vm),
	)
}

// TestPodDriver runs a Linux guest with driver pod on real kubelets, from creation to deletion and through the
// loss of its node. The full tier adds all other events of its pods.
func TestPodDriver(t *testing.T) {
	w := newPodWorld(t)
	g := w.createGuest(t, "web", func(*api.VirtualMachineSpec) {})
	first := g.pod(t)
	testStreams(t, g)
	g.start(t)
	second := g.pod(t)
	assert.True(t, second.UID != first.UID, "the pod is %s as before", second.UID)
	if tier.IsFull() {
		t.Run("service", func(t *testing.T) { testService(t, g) })
		t.Run("image of a web server", func(t *testing.T) { testWebImage(t, w) })
		t.Run("readiness", func(t *testing.T) { testReadiness(t, w) })
		t.Run("KVM", func(t *testing.T) { testKVM(t, w) })
	}
	testNodeLoss(t, g)
	if tier.IsFull() {
		testDisruptions(t, g)
	}
	g.blockEviction(t)
	g.delete(t)
	w.checkNoGuestLeft(t)
}

// testNodeLoss turns the node of a guest off. No other pod may run until the kubelet is back and has
// reported the end, regardless of the pod's object.
func testNodeLoss(t *testing.T, g *guest) {
	before, node := g.pod(t), g.node(t)
	assert.NoError(t, node.PowerOff())
	g.waitLost(t, node)
	deleteByForce(t, before)
	g.waitFor(t, framework.HasCondition(api.ConditionReady, metav1.ConditionFalse), framework.HasMessage("out-of-service"))
	now := g.pod(t)
	assert.True(t, now.UID == before.UID, "pod %s exists while the end of %s is not proven", now.UID, before.UID)
	assert.NoError(t, node.PowerOn())
	waitForNode(t, node, true)
	g.waitRun(t, before.UID)
}

// deleteByForce deletes a pod without waiting for its kubelet.
func deleteByForce(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	framework.RunKubectl(t, shared.Kubeconfig, "-n", pod.Namespace, "delete", "pod", pod.Name, "--force", "--grace-period=0", "--wait=false")
}

// testForeigners lets an editor of another namespace claim the UID of a VirtualMachine: the
// VirtualMachine and its objects must not change.
func testForeigners(t *testing.T, g *guest) {
	const other = "others"
	createNamespace(t, other)
	pod := g.pod(t)
	forged := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Labels: pod.Labels, Annotations: map[string]string{"cloudnative.tw/run": string(pod.UID)}},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}
	assert.NoError(t, assert.ErrorOf(shared.Client.CoreV1().PersistentVolumeClaims(other).Create(t.Context(), forged, metav1.CreateOptions{})))
	g.stop(t)
	g.start(t)
	claim, err := shared.Client.CoreV1().PersistentVolumeClaims(other).Get(t.Context(), pod.Name, metav1.GetOptions{})
	assert.True(t, err == nil && claim.DeletionTimestamp == nil && claim.Annotations["cloudnative.tw/run"] == string(pod.UID),
		"the claim of another namespace is %+v: %v", claim, err)
}
