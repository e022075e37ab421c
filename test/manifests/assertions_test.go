// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/testenv"
)

// testAssertionPolicy checks who may assert that a machine is off: never an editor of VirtualMachines,
// and a user with the special verb only in the namespace of the verb.
func testAssertionPolicy(t *testing.T, w *testenv.Environment) {
	for _, ns := range []string{usersNamespace, otherNamespace} {
		w.CreateNamedNamespace(t, ns)
		for _, vm := range []string{"vm", "asserted"} {
			w.CreateVM(t, unservedVM(vm).Namespace(ns))
		}
	}
	editor, operator := newRoleUser(t, w, "edit"), newRoleUser(t, w, "drover-assert-stopped")
	assert.Eventually(t, "the policy applies", func(t testing.TB) error {
		_, err := editor.send(t.Context(), usersNamespace, assertOff("vm", "a"))
		if err == nil || !strings.Contains(err.Error(), "drover-machine-is-off") {
			return fmt.Errorf("the editor gets error %w", err)
		}
		return nil
	})
	assert.Eventually(t, "the operator's rights", func(t testing.TB) error { // bindings take effect one by one
		request := assertOff("asserted", "a")
		request.path = "/asserted"
		_, err := operator.send(t.Context(), usersNamespace, request)
		return err
	})
	for name, tc := range assertionRequests() {
		t.Run(name, func(t *testing.T) {
			checkAssertion(t, editor, usersNamespace, tc.request, tc.editor)
			if tc.operator {
				checkAssertion(t, operator, usersNamespace, tc.request, true)
			}
		})
	}
	for pod, allowed := range map[string]bool{"": true, "b": false} {
		assert.Eventually(t, "a replacement with the assertion "+pod, func(testing.TB) error {
			_, err := editor.send(t.Context(), usersNamespace, replaceAsserted(t, w, pod))
			if apierrors.IsConflict(err) { // the controller has written the status meanwhile
				return err
			}
			checkAnswer(t, editor, usersNamespace, err, allowed)
			return nil
		})
	}
	checkAssertion(t, operator, otherNamespace, assertOff("vm", "a"), false)
}

func newRoleUser(t *testing.T, w *testenv.Environment, role string) user {
	t.Helper()
	config, subject := tokenUser(t, w, "user-of-"+role)
	w.Bind(t, usersNamespace, role, subject)
	// The operator may also edit in the other namespace, so that only the verb is missing there.
	w.Bind(t, otherNamespace, "edit", subject)
	return newUser(t, role, "token", config)
}

// assertionRequest is a request that tries to set the annotation.
type assertionRequest struct {
	// editor and operator say whether an editor may send the request, and whether an operator may,
	// who has only the right to patch.
	editor, operator bool
	request
}

func assertionRequests() map[string]assertionRequest {
	patch := func(path, patch string) request { return request{http.MethodPatch, path + dryRun, patch} }
	return map[string]assertionRequest{
		"set":                    {false, true, assertOff("vm", "a")},
		"change":                 {false, true, assertOff("asserted", "b")},
		"withdraw":               {true, true, assertOff("asserted", "")},
		"leave":                  {true, true, assertOff("asserted", "a")},
		"change something else":  {true, true, patch("/asserted", `{"spec":{"action":"stopped"}}`)},
		"set through the status": {false, false, patch("/vm/status", string(assertionPatch("a")))},
		"create with it":         {false, false, request{http.MethodPost, dryRun, manifestOf("new", api.AnnotationMachineIsOff)}},
		"create with another":    {true, false, request{http.MethodPost, dryRun, manifestOf("new", "example.org/note")}},
	}
}

func assertOff(name, pod string) request {
	return request{http.MethodPatch, "/" + name + dryRun, string(assertionPatch(pod))}
}

func assertionPatch(pod string) []byte {
	return fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, api.AnnotationMachineIsOff, pod)
}

// replaceAsserted replaces the object as kubectl replace does.
func replaceAsserted(t *testing.T, w *testenv.Environment, pod string) request {
	t.Helper()
	vm, err := w.VMsIn(usersNamespace).Get(t.Context(), "asserted", metav1.GetOptions{})
	assert.NoError(t, err)
	vm.APIVersion, vm.Kind, vm.Annotations = api.SchemeGroupVersion.String(), "VirtualMachine", nil
	if pod != "" {
		vm.Annotations = map[string]string{api.AnnotationMachineIsOff: pod}
	}
	content, err := json.Marshal(vm)
	assert.NoError(t, err)
	return request{http.MethodPut, "/asserted" + dryRun, string(content)}
}

func checkAssertion(t *testing.T, u user, ns string, r request, allowed bool) {
	t.Helper()
	_, err := u.send(t.Context(), ns, r)
	checkAnswer(t, u, ns, err, allowed)
}

func checkAnswer(t *testing.T, u user, ns string, err error, allowed bool) {
	t.Helper()
	assert.True(t, (err == nil) == allowed && (err == nil || apierrors.IsForbidden(err)), "%s in %s, allowed: %t, gets error %v", u.info.Username, ns, allowed, err)
}

const (
	// refused is the annotation of a pod whose assertion was refused.
	refused = "cloudnative.tw/assertion-refused"
	// otherPod is a UID that no pod has.
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

// testIgnoredAssertion runs with a controller that accepts no assertions.
func testIgnoredAssertion(t *testing.T, w *testenv.Environment) {
	vm, pod, _ := runOnLostNode(t, w, "ignored")
	setAssertion(t, w, vm, string(pod.UID))
	checkStays(t, w, vm, pod, "the controller accepts no assertions")
}

// testAssertion asserts that machines of pods on a lost node are off. An assertion counts for the pod
// with its UID if the pod's node is not ready. An assertion made while the node was ready never counts.
func testAssertion(t *testing.T, w *testenv.Environment) {
	vm, first, node := runOnLostNode(t, w, "asserted")
	setAssertion(t, w, vm, otherPod)
	checkStays(t, w, vm, first, "another pod is asserted")
	setReady(t, w, node, corev1.ConditionTrue)
	setAssertion(t, w, vm, string(first.UID))
	waitForRefusal(t, w, vm, true)
	checkStays(t, w, vm, first, "its node is ready")

	setReady(t, w, node, corev1.ConditionUnknown)
	checkStays(t, w, vm, first, "the assertion was refused")
	setAssertion(t, w, vm, otherPod)
	waitForRefusal(t, w, vm, false)
	setAssertion(t, w, vm, string(first.UID))
	var second *corev1.Pod
	assert.Eventually(t, "another pod", func(t testing.TB) error {
		if second = waitForPod(t, w, vm); second.UID == first.UID {
			return fmt.Errorf("the pod is still %s", first.UID)
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

func waitForRefusal(t *testing.T, w *testenv.Environment, vm *api.VirtualMachine, want bool) {
	t.Helper()
	assert.Eventually(t, fmt.Sprintf("the refusal is recorded: %t", want), func(t testing.TB) error {
		return assert.ErrorUnless((waitForPod(t, w, vm).Annotations[refused] != "") == want, "recorded: %t", !want)
	})
}

// testLostPods asserts that machines are off whose pods' objects were deleted.
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
			_, err := pods.Patch(t.Context(), pod.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
			assert.NoError(t, err)
			assert.NoError(t, pods.Delete(t.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))
			w.WaitForVM(t, vm, framework.HasMessage("nothing proves that its containers have ended"))
			setAssertion(t, w, vm, string(pod.UID))
			next := waitForPod(t, w, vm)
			assert.True(t, next.UID != pod.UID, "the pod is %s as before", next.UID)
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
	_, err := w.KubeClient.CoreV1().Nodes().Patch(t.Context(), node.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	assert.NoError(t, err)
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
	vms := w.VMsIn(vm.Namespace)
	_, err := vms.Patch(t.Context(), vm.Name, types.MergePatchType, assertionPatch(pod), metav1.PatchOptions{})
	assert.NoError(t, err)
}

// checkStays checks that a pod is neither deleted nor released. It makes a change of the spec that changes no
// pod, and waits until the controller has observed this change, and so all earlier ones.
func checkStays(t *testing.T, w *testenv.Environment, vm *api.VirtualMachine, pod *corev1.Pod, why string) {
	t.Helper()
	w.UpdateVM(t, vm, func(vm *api.VirtualMachine) {
		vm.Spec.SSHAuthorizedKeys = []string{fmt.Sprintf("ssh-ed25519 AAAA %d", vm.Generation)}
	})
	w.WaitForVM(t, vm, func(vm *api.VirtualMachine) error {
		return assert.ErrorUnless(vm.Status.ObservedGeneration == vm.Generation, "generation %d of %d is observed", vm.Status.ObservedGeneration, vm.Generation)
	})
	now, err := w.KubeClient.CoreV1().Pods(pod.Namespace).Get(t.Context(), pod.Name, metav1.GetOptions{})
	assert.True(t, err == nil && now.UID == pod.UID && now.DeletionTimestamp == nil && len(now.Finalizers) == len(pod.Finalizers),
		"%s: pod %s does not stay: there is %s, deleted at %v, finalizers %v, %v", why, pod.UID, now.UID, now.DeletionTimestamp, now.Finalizers, err)
}

// TestChartWithoutAssertions checks that a value removes the flag, the policy and the role.
func TestChartWithoutAssertions(t *testing.T) {
	t.Parallel()
	all := renderChart(t, append([]string{"--set", "pod.assertions=false"}, podValues...)...)
	flags := flagsOf(t, all)
	assert.True(t, !slices.Contains(flags, "--pod-assertions=true"), "the flags are %s", flags)
	for _, o := range all {
		assert.True(t, !strings.HasPrefix(o.GetKind(), "ValidatingAdmissionPolicy") && o.GetName() != "drover-assert-stopped",
			"there is %s %s", o.GetKind(), o.GetName())
	}
}
