// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/testenv"
)

// testAssertionPolicy checks who may say that a machine is off: not an editor of VirtualMachines,
// in any way, and who has the verb may in that namespace alone.
func testAssertionPolicy(t *testing.T, w *testenv.Environment) {
	for _, ns := range []string{usersNamespace, otherNamespace} {
		w.CreateNamedNamespace(t, ns)
		for _, vm := range []string{"vm", "asserted"} {
			w.CreateVM(t, unservedVM(vm).Namespace(ns))
		}
	}
	editor, operator := newRoleUser(t, w, "edit"), newRoleUser(t, w, "drover-assert-stopped")
	waitForPolicy(t, editor.vms)
	assert.Eventually(t, "the operator's rights", func(t testing.TB) error {
		return assertOff("asserted", "a")(t, operator.vms)
	}) // bindings take effect one by one
	for name, tc := range assertionRequests() {
		t.Run(name, func(t *testing.T) {
			checkAssertion(t, "an editor", tc.send(t, editor.vms), tc.editor)
			if tc.operator {
				checkAssertion(t, "an operator", tc.send(t, operator.vms), true)
			}
		})
	}
	checkAssertion(t, "an operator of another namespace", assertOff("vm", "a")(t, operator.others), false)
}

func newRoleUser(t *testing.T, w *testenv.Environment, role string) user {
	t.Helper()
	config, subject := tokenUser(t, w, "user-of-"+role)
	w.Bind(t, usersNamespace, role, subject)
	// An operator may edit in the other namespace, so that only the verb is missing there.
	w.Bind(t, otherNamespace, "edit", subject)
	return newUser(t, role, "token", config)
}

// waitForPolicy waits until the API server applies the rights of an editor and the policy.
func waitForPolicy(t *testing.T, editor dynamic.ResourceInterface) {
	t.Helper()
	assert.Eventually(t, "the policy applies", func(t testing.TB) error {
		err := dryAssertOff("vm", "a")(t, editor)
		if err == nil || !strings.Contains(err.Error(), "drover-machine-is-off") {
			return fmt.Errorf("an editor gets %w", err)
		}
		return nil
	})
}

// assertionRequest is one that may set the annotation.
type assertionRequest struct {
	// editor and operator report whether an editor may send it, and whether an operator may, who
	// only patches.
	editor, operator bool
	send             func(testing.TB, dynamic.ResourceInterface) error
}

func assertionRequests() map[string]assertionRequest {
	return map[string]assertionRequest{
		"set":                       {false, true, dryAssertOff("vm", "a")},
		"change":                    {false, true, dryAssertOff("asserted", "b")},
		"withdraw":                  {true, true, dryAssertOff("asserted", "")},
		"leave":                     {true, true, dryAssertOff("asserted", "a")},
		"change something else":     {true, true, dryPatch("asserted", `{"spec":{"action":"stopped"}}`)},
		"set through the status":    {false, false, dryPatch("vm", `{"metadata":{"annotations":{"cloudnative.tw/machine-is-off":"a"}}}`, "status")},
		"create with it":            {false, false, dryCreate(api.AnnotationMachineIsOff)},
		"create with another":       {true, false, dryCreate("example.org/note")},
		"replace by one without it": {true, false, dryReplace("")},
		"replace by another":        {false, false, dryReplace("b")},
	}
}

func assertOff(name, pod string) func(testing.TB, dynamic.ResourceInterface) error {
	return func(t testing.TB, vms dynamic.ResourceInterface) error {
		_, err := vms.Patch(t.Context(), name, types.MergePatchType, assertionPatch(pod), metav1.PatchOptions{})
		return err
	}
}

func assertionPatch(pod string) []byte {
	return fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, api.AnnotationMachineIsOff, pod)
}

func dryAssertOff(name, pod string) func(testing.TB, dynamic.ResourceInterface) error {
	return dryPatch(name, string(assertionPatch(pod)))
}

func dryPatch(name, patch string, subresources ...string) func(testing.TB, dynamic.ResourceInterface) error {
	return func(t testing.TB, vms dynamic.ResourceInterface) error {
		_, err := vms.Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{DryRun: dryRun}, subresources...)
		return err
	}
}

func dryCreate(annotation string) func(testing.TB, dynamic.ResourceInterface) error {
	return func(t testing.TB, vms dynamic.ResourceInterface) error {
		vm := newUnstructuredVM("new")
		vm.SetAnnotations(map[string]string{annotation: "a"})
		_, err := vms.Create(t.Context(), vm, metav1.CreateOptions{DryRun: dryRun})
		return err
	}
}

// dryReplace replaces the object as kubectl replace does.
func dryReplace(pod string) func(testing.TB, dynamic.ResourceInterface) error {
	return func(t testing.TB, vms dynamic.ResourceInterface) error {
		vm, err := vms.Get(t.Context(), "asserted", metav1.GetOptions{})
		if err != nil {
			return err
		}
		vm.SetAnnotations(nil)
		if pod != "" {
			vm.SetAnnotations(map[string]string{api.AnnotationMachineIsOff: pod})
		}
		_, err = vms.Update(t.Context(), vm, metav1.UpdateOptions{DryRun: dryRun})
		return err
	}
}

func checkAssertion(t *testing.T, who string, err error, allowed bool) {
	t.Helper()
	if (err == nil) != allowed || err != nil && !apierrors.IsForbidden(err) {
		t.Errorf("%s, who may: %t, gets %v", who, allowed, err)
	}
}

const (
	// refused is the annotation of a pod of which an assertion was refused.
	refused = "cloudnative.tw/assertion-refused"
	// otherPod is the UID of none.
	otherPod = "00000000-0000-0000-0000-000000000000"
)

// runOnLostNode creates a VM whose pod runs on a node that does not answer.
func runOnLostNode(t *testing.T, w *testenv.Environment, name string) (*api.VirtualMachine, *corev1.Pod, *corev1.Node) {
	t.Helper()
	node := createNode(t, w, name, corev1.ConditionUnknown)
	vm := w.CreateVM(t, podVM(name))
	pod := runOn(t, w, waitForPod(t, w, vm), node.Name)
	w.WaitForVM(t, vm, framework.HasPhase(api.PhaseActive, api.ReasonRunning))
	return vm, pod, node
}

// testIgnoredAssertion has a controller that accepts no assertions.
func testIgnoredAssertion(t *testing.T, w *testenv.Environment) {
	vm, pod, _ := runOnLostNode(t, w, "ignored")
	setAssertion(t, w, vm, string(pod.UID))
	checkStays(t, w, vm, pod, "the controller accepts no assertions")
}

// testAssertion says of pods on a lost node that their machines are off. It counts for the pod with
// that UID where its node is not ready. One that was made while the node was ready never counts.
func testAssertion(t *testing.T, w *testenv.Environment) {
	vm, first, node := runOnLostNode(t, w, "asserted")
	setAssertion(t, w, vm, otherPod)
	checkStays(t, w, vm, first, "another pod is asserted")
	setReady(t, w, node, corev1.ConditionTrue)
	setAssertion(t, w, vm, string(first.UID))
	assert.Eventually(t, "the refusal is recorded", func(t testing.TB) error {
		if p := waitForPod(t, w, vm); p.Annotations[refused] == "" {
			return errors.New("the pod does not have it")
		}
		return nil
	})
	checkStays(t, w, vm, first, "its node is ready")

	setReady(t, w, node, corev1.ConditionUnknown)
	checkStays(t, w, vm, first, "the assertion was refused")
	setAssertion(t, w, vm, otherPod)
	assert.Eventually(t, "the refusal is forgotten", func(t testing.TB) error {
		if p := waitForPod(t, w, vm); p.Annotations[refused] != "" {
			return errors.New("the pod has it")
		}
		return nil
	})
	setAssertion(t, w, vm, string(first.UID))
	var second *corev1.Pod
	assert.Eventually(t, "another pod", func(t testing.TB) error {
		if second = waitForPod(t, w, vm); second.UID == first.UID {
			return fmt.Errorf("%s is there", first.UID)
		}
		return nil
	})
	second = runOn(t, w, second, node.Name)
	checkStays(t, w, vm, second, "the pod before is asserted")

	w.DeleteVM(t, vm)
	setAssertion(t, w, vm, string(second.UID))
	releaseClaim(t, w, vm)
	w.WaitForDeletion(t, vm)
}

// testLostPods says that the machines of pods are off whose objects are gone.
func testLostPods(t *testing.T, w *testenv.Environment) {
	for name, vm := range map[string]*api.VirtualMachine{
		"with a disk": w.CreateVM(t, podVM("disk")),
		"ephemeral": w.CreateVM(t, podVM("ephemeral").Spec(func(spec *api.VirtualMachineSpec) {
			spec.Ephemeral = true
			delete(spec.Resource, api.ResourceRootDisk)
		})),
	} {
		t.Run(name, func(t *testing.T) {
			pod := runOn(t, w, waitForPod(t, w, vm), "gone")
			w.WaitForVM(t, vm, framework.HasPhase(api.PhaseActive, api.ReasonRunning))
			pods := w.KubeClient.CoreV1().Pods(pod.Namespace)
			if _, err := pods.Patch(t.Context(), pod.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
			assert.NoError(t, pods.Delete(t.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))
			w.WaitForVM(t, vm, framework.HasMessage("nothing proves that its containers have ended"))
			setAssertion(t, w, vm, string(pod.UID))
			if next := waitForPod(t, w, vm); next.UID == pod.UID {
				t.Errorf("the pod is %s as before", next.UID)
			}
		})
	}
}

func createNode(t *testing.T, w *testenv.Environment, name string, ready corev1.ConditionStatus) *corev1.Node {
	t.Helper()
	node, err := w.KubeClient.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	assert.NoError(t, err)
	setReady(t, w, node, ready)
	return node
}

func setReady(t *testing.T, w *testenv.Environment, node *corev1.Node, ready corev1.ConditionStatus) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"status":{"conditions":[{"type":"Ready","status":%q}]}}`, ready)
	if _, err := w.KubeClient.CoreV1().Nodes().Patch(t.Context(), node.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
}

// runOn binds a pod to a node and reports its container as running, as scheduler and kubelet do.
func runOn(t *testing.T, w *testenv.Environment, pod *corev1.Pod, node string) *corev1.Pod {
	t.Helper()
	pods := w.KubeClient.CoreV1().Pods(pod.Namespace)
	binding := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: pod.Name}, Target: corev1.ObjectReference{Kind: "Node", Name: node}}
	assert.NoError(t, pods.Bind(t.Context(), binding, metav1.CreateOptions{}))
	status := `{"status":{"phase":"Running","podIP":"10.1.1.1","podIPs":[{"ip":"10.1.1.1"}],"containerStatuses":[
		{"name":"machine","image":"x","imageID":"x","containerID":"test://x","ready":true,"started":true,"state":{"running":{"startedAt":"2026-01-01T00:00:00Z"}}}]}}`
	bound, err := pods.Patch(t.Context(), pod.Name, types.StrategicMergePatchType, []byte(status), metav1.PatchOptions{}, "status")
	assert.NoError(t, err)
	return bound
}

func setAssertion(t *testing.T, w *testenv.Environment, vm *api.VirtualMachine, pod string) {
	t.Helper()
	if _, err := w.VMClient.CloudnativeV1alpha1().VirtualMachines(vm.Namespace).Patch(t.Context(), vm.Name, types.MergePatchType, assertionPatch(pod), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// checkStays checks that a pod is neither deleted nor released. It changes the spec in a way that no pod is
// changed for, and waits until the controller has acted upon that, and so upon what was there before.
func checkStays(t *testing.T, w *testenv.Environment, vm *api.VirtualMachine, pod *corev1.Pod, why string) {
	t.Helper()
	w.UpdateVM(t, vm, func(vm *api.VirtualMachine) {
		vm.Spec.SSHAuthorizedKeys = []string{fmt.Sprintf("ssh-ed25519 AAAA %d", vm.Generation)}
	})
	w.WaitForVM(t, vm, func(vm *api.VirtualMachine) error {
		if vm.Status.ObservedGeneration != vm.Generation {
			return fmt.Errorf("generation %d of %d is observed", vm.Status.ObservedGeneration, vm.Generation)
		}
		return nil
	})
	now, err := w.KubeClient.CoreV1().Pods(pod.Namespace).Get(t.Context(), pod.Name, metav1.GetOptions{})
	if err != nil || now.UID != pod.UID || now.DeletionTimestamp != nil || len(now.Finalizers) != len(pod.Finalizers) {
		t.Errorf("%s: pod %s does not stay: there is %s, deleted at %v, finalizers %v, %v", why, pod.UID, now.UID, now.DeletionTimestamp, now.Finalizers, err)
	}
}

// TestChartWithoutAssertions checks that the flag and the policy come together, and that the policy is that of
// config/pod.
func TestChartWithoutAssertions(t *testing.T) {
	t.Parallel()
	fromConfig := renderComponent(t, "pod")
	for value, want := range map[string]bool{"true": true, "false": false} {
		all := renderChart(t, append([]string{"--set", "pod.assertions=" + value}, podValues...)...)
		if args := fmt.Sprint(controllerContainer(t, findObject(t, all, "Deployment"))["args"]); strings.Contains(args, "--pod-assertions=true") != want {
			t.Errorf("pod.assertions is %s, and the flags are %s", value, args)
		}
		for _, o := range fromConfig {
			if !strings.HasPrefix(o.GetKind(), "ValidatingAdmissionPolicy") && o.GetName() != "drover-assert-stopped" {
				continue
			}
			n := slices.IndexFunc(all, func(other *unstructured.Unstructured) bool {
				return other.GetKind() == o.GetKind() && other.GetName() == o.GetName()
			})
			if (n >= 0) != want {
				t.Errorf("pod.assertions is %s, and the chart has %s %s: %t", value, o.GetKind(), o.GetName(), !want)
			}
			if n >= 0 && o.Object["spec"] != nil {
				assertSameRules(t, o.GetKind(), o.Object["spec"], all[n].Object["spec"])
			}
		}
	}
}
