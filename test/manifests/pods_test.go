// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/testenv"
)

// podValues are the values that the chart requires for driver pod.
var podValues = []string{"--set", "vmDriver=pod"}

// podStreamsValues are the values that the chart requires for streams of pods.
var podStreamsValues = append([]string{"--set", "pod.streams=true,streams.enabled=true,streams.certSecret=drover-streams-tls"}, podValues...)

// addedRights returns the rights of one installation that another one lacks.
func addedRights(t *testing.T, plain, all []*unstructured.Unstructured) string {
	t.Helper()
	var added []*unstructured.Unstructured
	for _, o := range all {
		if !slices.ContainsFunc(plain, func(p *unstructured.Unstructured) bool {
			return p.GetKind() == o.GetKind() && p.GetName() == o.GetName()
		}) {
			added = append(added, o)
		}
	}
	return permissionsOf(t, added)
}

// TestChartWithoutPods checks that other drivers get neither rights nor flags of driver pod.
func TestChartWithoutPods(t *testing.T) {
	t.Parallel()
	set := "pod.machineImage=drover-machine:dev,pod.image=oci://x,pod.namespaces={default},vmDriver="
	for driver, want := range map[string]bool{"docker": false, "fake": false, "docker,pod": true, "docker, pod": true} {
		all := renderChart(t, "--set", set+strings.ReplaceAll(driver, ",", `\,`))
		has := strings.Contains(fmt.Sprint(controllerContainer(t, findObject(t, all, "Deployment"))["args"]), "--pod-")
		bound := addedRights(t, renderChart(t), all) != ""
		assert.True(t, has == want && bound == want, "drivers %s: has flags of driver pod: %v, has its rights: %v, want %v", driver, has, bound, want)
	}
}

// TestMachineImage checks that pods have the image of the chart's version if values name none.
func TestMachineImage(t *testing.T) {
	t.Parallel()
	for values, want := range map[string]string{
		"vmDriver=pod":                           "--pod-machine-image=drover-machine:dev",
		"vmDriver=pod,pod.machineImage=other:v2": "--pod-machine-image=other:v2",
	} {
		args := fmt.Sprint(controllerContainer(t, findObject(t, renderChart(t, "--set", values), "Deployment"))["args"])
		assert.True(t, strings.Contains(args, want+" "), "with %s the arguments are %s, want %s", values, args, want)
	}
}

// TestPods runs controllers with driver pod that have only the rights of the chart, one after the other.
func TestPods(t *testing.T) {
	t.Parallel()
	w := startWithAllAPIs(t)
	chartArgs := append([]string{"drover", chart, "--namespace", namespace, "--take-ownership", "--force-conflicts"}, podValues...)
	framework.RunHelm(t, w.Kubeconfig, append([]string{"install", "--create-namespace"}, chartArgs...)...)
	checkAllowed(t, testWithPods(t, w, map[string]podTest{
		"life":                        func(t *testing.T, w *testenv.Environment) { testPodLife(t, w, metav1.NamespaceDefault) },
		"life in another namespace":   func(t *testing.T, w *testenv.Environment) { testPodLife(t, w, w.CreateNamespace(t)) },
		"assertions are not accepted": testIgnoredAssertion,
	}))
	checkAllowed(t, testWithPods(t, w, map[string]podTest{
		"assertion": testAssertion, "lost pods": testLostPods, "who may assert": testAssertionPolicy,
	}, "--pod-assertions"))

	framework.RunHelm(t, w.Kubeconfig, append([]string{"upgrade", "--set", "pod.namespaces={default},pod.streams=true,streams.enabled=true,streams.certSecret=x"}, chartArgs...)...)
	for ns, may := range map[string]bool{metav1.NamespaceDefault: true, metav1.NamespaceSystem: false} {
		waitForAccess(t, w, may, authorizationv1.ResourceAttributes{Namespace: ns, Verb: "create", Resource: "secrets"})
	}
	certs, address := t.TempDir(), framework.FreeAddress(t)
	assert.NoError(t, assert.ErrorOf(framework.WriteServerCertificate(certs)))
	testWithPods(t, w, map[string]podTest{"one namespace": testOneNamespace}, "--pod-streams",
		"--streams-address="+address, "--streams-cert-dir="+certs, "--streams-url=https://"+address)
}

type podTest = func(*testing.T, *testenv.Environment)

// testWithPods runs tests in parallel with a controller with driver pod, and returns what it printed.
func testWithPods(t *testing.T, w *testenv.Environment, tests map[string]podTest, flags ...string) string {
	t.Helper()
	controller := startControllerAs(t, w, append([]string{"--vm-driver=pod", "--list-period=1s"}, flags...)...)
	t.Run(strings.Join(append([]string{"controller"}, flags...), " "), func(t *testing.T) {
		for name, test := range tests {
			t.Run(name, func(t *testing.T) { t.Parallel(); test(t, w) })
		}
	})
	controller.MustStop()
	return controller.Output()
}

// checkAllowed checks by a controller's output that no request of it was forbidden.
func checkAllowed(t *testing.T, printed string) {
	t.Helper()
	for line := range strings.Lines(printed) {
		if strings.Contains(line, "forbidden") && !strings.Contains(line, "because it is being terminated") { // the namespace of a test
			t.Errorf("a request was forbidden: %s", line)
		}
	}
}

// testOneNamespace runs a controller that may create pods only in namespace default, and no Secrets for the
// machines' keys. The test creates these Secrets, as docs/cluster.md says.
func testOneNamespace(t *testing.T, w *testenv.Environment) {
	secrets := w.KubeClient.CoreV1().Secrets(metav1.NamespaceSystem)
	assert.NoError(t, secrets.Delete(t.Context(), "drover-machine-control", metav1.DeleteOptions{}))
	keyless := w.CreateVM(t, podVM("keyless"))
	for _, name := range []string{"drover-machine-control", "drover-machine-guests"} {
		w.WaitForVM(t, keyless, framework.HasMessage(name), framework.HasMessage("forbidden"))
		seed := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string][]byte{"seed": make([]byte, 32)}}
		assert.NoError(t, assert.ErrorOf(secrets.Create(t.Context(), seed, metav1.CreateOptions{})))
	}
	testPodLife(t, w, metav1.NamespaceDefault)
	refused := w.CreateVM(t, podVM("refused").Namespace(w.CreateNamespace(t)))
	w.WaitForVM(t, refused, framework.HasMessage("forbidden"), framework.HasMessage("system:serviceaccount:"+namespace+":"+accountName))
	w.DeleteVM(t, refused)
	w.WaitForDeletion(t, refused)
}

// TestChartPodStreams checks that streams of pods are refused where no streams are served.
func TestChartPodStreams(t *testing.T) {
	t.Parallel()
	_, stderr, err := framework.TryHelm(t, os.DevNull, append([]string{"template", "drover", chart, "--set", "pod.streams=true"}, podValues...)...)
	assert.True(t, err != nil && strings.Contains(stderr, "needs streams.enabled"), "pod.streams alone: %v, %q", err, stderr)
}

// startWithAllAPIs starts a cluster whose API server serves all APIs. The cluster runs no pods.
func startWithAllAPIs(t *testing.T) *testenv.Environment {
	t.Helper()
	w, err := testenv.NewWith(framework.ClusterOptions{Args: []string{"--all-apis"}})
	assert.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, w.Close()) })
	return w
}

func podVM(name string) *framework.VMBuilder {
	return framework.NewVM(name).Driver("pod").GracePeriod(5).Image("oci://disk:1").Resource(api.ResourceRootDisk, "1Gi").Spec(func(spec *api.VirtualMachineSpec) {
		spec.SSHAuthorizedKeys = []string{"ssh-ed25519 AAAA me"}
	})
}

// testPodLife creates a VM, waits until its pod may be scheduled, and deletes the VM.
func testPodLife(t *testing.T, w *testenv.Environment, ns string) {
	t.Helper()
	vm := w.CreateVM(t, podVM("life").Namespace(ns))
	waitForPod(t, w, vm)
	w.DeleteVM(t, vm)
	releaseClaim(t, w, vm)
	w.WaitForDeletion(t, vm)
}

// releaseClaim waits until the PVC of a VirtualMachine is deleted, and removes the finalizer that
// kube-controller-manager would remove.
func releaseClaim(t *testing.T, w *testenv.Environment, vm *api.VirtualMachine) {
	t.Helper()
	claims := w.KubeClient.CoreV1().PersistentVolumeClaims(vm.Namespace)
	assert.Eventually(t, "the PVC of "+vm.Name+" is deleted", func(t testing.TB) error {
		list, err := claims.List(t.Context(), metav1.ListOptions{LabelSelector: "cloudnative.tw/uid=" + string(vm.UID)})
		if err != nil || len(list.Items) != 1 || list.Items[0].DeletionTimestamp == nil {
			return fmt.Errorf("the PVCs are %+v, error %w", list, err)
		}
		_, err = claims.Patch(t.Context(), list.Items[0].Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		return err
	})
}

// waitForPod waits until the pod of a VirtualMachine may be scheduled.
func waitForPod(t testing.TB, w *testenv.Environment, vm *api.VirtualMachine) (pod *corev1.Pod) {
	t.Helper()
	assert.Eventually(t, "the pod of "+vm.Name+" may be scheduled", func(t testing.TB) error {
		pods, err := w.KubeClient.CoreV1().Pods(vm.Namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "cloudnative.tw/uid=" + string(vm.UID)})
		switch {
		case err != nil:
			return err
		case len(pods.Items) != 1:
			return fmt.Errorf("there are %d pods", len(pods.Items))
		case len(pods.Items[0].Spec.SchedulingGates) > 0:
			return errors.New("the pod still has scheduling gates")
		}
		pod = &pods.Items[0]
		return nil
	})
	return pod
}
