// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/testenv"
)

// podsGoldenFile has the rights that driver pod adds.
const podsGoldenFile = "testdata/pods.yaml"

// podValues are the least that the chart needs for driver pod.
var podValues = []string{"--set", "vmDriver=pod,pod.machineImage=drover-machine:dev"}

// TestPodRights checks that the component of kustomize and the chart add the same rights for
// driver pod, and that these are the reviewed ones.
func TestPodRights(t *testing.T) {
	t.Parallel()
	fromConfig := addedRights(t, renderWithPods(t))
	if *update {
		if err := os.WriteFile(podsGoldenFile, []byte(fromConfig), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(podsGoldenFile)
	if err != nil {
		t.Fatal(err)
	}
	for name, got := range map[string]string{"config/pod": fromConfig, "charts/drover": addedRights(t, renderChart(t, podValues...))} {
		if got != string(text) {
			t.Errorf("%s adds other rights than %s; go test ./test/manifests -run TestPodRights -update writes those of config/pod.\ngot:\n%s", name, podsGoldenFile, got)
		}
	}
}

// addedRights returns the rights that are not those of every installation.
func addedRights(t *testing.T, all []*unstructured.Unstructured) string {
	t.Helper()
	var added []*unstructured.Unstructured
	plain := renderChart(t)
	for _, o := range all {
		if !slices.ContainsFunc(plain, func(p *unstructured.Unstructured) bool {
			return p.GetKind() == o.GetKind() && p.GetName() == o.GetName()
		}) {
			added = append(added, o)
		}
	}
	return permissionsOf(t, added)
}

// TestPodFlags checks that the component of kustomize and the chart start the same controller.
func TestPodFlags(t *testing.T) {
	t.Parallel()
	fromConfig := controllerContainer(t, findObject(t, renderWithPods(t), "Deployment"))
	fromChart := fmt.Sprint(controllerContainer(t, findObject(t, renderChart(t, podValues...), "Deployment"))["args"])
	flags := flagsOfVariables(t, fromConfig)
	for _, arg := range fromConfig["args"].([]any) {
		flags = append(flags, arg.(string))
	}
	for _, flag := range append(flags, "--pod-access-mode=ReadWriteOncePod") { // the default
		if !strings.Contains(fromChart, flag) {
			t.Errorf("the chart has %s, want %s", fromChart, flag)
		}
	}
}

// TestChartWithoutPods checks that other drivers get neither rights nor flags of driver pod.
func TestChartWithoutPods(t *testing.T) {
	t.Parallel()
	set := "pod.machineImage=drover-machine:dev,pod.image=oci://x,pod.namespaces={default},vmDriver="
	for driver, want := range map[string]bool{"docker": false, "fake": false, "docker,pod": true, "docker, pod": true} {
		all := renderChart(t, "--set", set+strings.ReplaceAll(driver, ",", `\,`))
		has := strings.Contains(fmt.Sprint(controllerContainer(t, findObject(t, all, "Deployment"))["args"]), "--pod-")
		if bound := addedRights(t, all) != ""; has != want || bound != want {
			t.Errorf("drivers %s: it has flags: %v and rights: %v, want %v", driver, has, bound, want)
		}
	}
}

// renderWithPods renders config/default with the component, as docs/cluster-operations.md says.
func renderWithPods(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	out, _ := framework.RunKubectl(t, os.DevNull, "kustomize", writeOverlay(t, "default", "pod"))
	return decodeObjects(t, out)
}

// writeOverlay writes a kustomization of a base and a component of config/, and returns its folder.
func writeOverlay(t *testing.T, base, component string) string {
	t.Helper()
	dir, err := os.MkdirTemp(".", "overlay-") //nolint:usetesting // kustomize refuses absolute paths
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	text := fmt.Sprintf("resources: [../../../config/%s]\ncomponents: [../../../config/%s]\n", base, component)
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestPodPermissions runs a controller with driver pod that has only the rights of the chart, in
// all namespaces and in some.
func TestPodPermissions(t *testing.T) {
	t.Parallel()
	for name, namespaces := range map[string]string{"everywhere": `[]`, "in one namespace": `["default"]`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := startWithChart(t, append(slices.Clone(podValues), "--set-json", "pod.namespaces="+namespaces)...)
			controller := startControllerAs(t, w, "--vm-driver=pod", "--list-period=1s")
			if namespaces != `[]` {
				testWithoutSeed(t, w)
			}
			testPodLife(t, w, metav1.NamespaceDefault)
			other := w.CreateNamespace(t)
			if namespaces == `[]` {
				testPodLife(t, w, other)
			} else {
				vm := w.CreateVM(t, podVM("refused").Namespace(other))
				w.WaitForVM(t, vm, framework.HasMessage("forbidden"), framework.HasMessage("system:serviceaccount:"+namespace+":"+accountName))
				w.DeleteVM(t, vm)
				w.WaitForDeletion(t, vm)
			}
			if out := controller.Output(); namespaces == `[]` && strings.Contains(out, "forbidden") {
				t.Errorf("something was forbidden:\n%s", out)
			}
			controller.MustStop()
		})
	}
}

// startWithAllAPIs starts a cluster whose API server serves all APIs. Nothing runs pods.
func startWithAllAPIs(t *testing.T) *testenv.Environment {
	t.Helper()
	w, err := testenv.NewWith(framework.ClusterOptions{Args: []string{"--all-apis"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// startWithChart starts a cluster with what the chart installs.
func startWithChart(t *testing.T, args ...string) *testenv.Environment {
	t.Helper()
	w := startWithAllAPIs(t)
	framework.RunHelm(t, w.Kubeconfig, append([]string{"install", "drover", chart, "--namespace", namespace, "--create-namespace", "--take-ownership", "--force-conflicts"}, args...)...)
	return w
}

func podVM(name string) *framework.VMBuilder {
	return framework.NewVM(name).Driver("pod").GracePeriod(5).Image("oci://disk:1").Resource(api.ResourceRootDisk, "1Gi").Spec(func(spec *api.VirtualMachineSpec) {
		spec.SSHAuthorizedKeys = []string{"ssh-ed25519 AAAA me"}
	})
}

// testWithoutSeed checks that a VirtualMachine waits for the Secret of the machines' keys, which this
// controller may not make, and makes it as docs/cluster.md says.
func testWithoutSeed(t *testing.T, w *testenv.Environment) {
	t.Helper()
	vm := w.CreateVM(t, podVM("keyless"))
	w.WaitForVM(t, vm, framework.HasMessage("drover-machine-control"), framework.HasMessage("forbidden"))
	seed := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "drover-machine-control"}, Data: map[string][]byte{"seed": make([]byte, 32)}}
	if _, err := w.KubeClient.CoreV1().Secrets(metav1.NamespaceSystem).Create(t.Context(), seed, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// testPodLife takes a server to where a scheduler would take it, and removes it.
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
			return fmt.Errorf("there is %+v, %w", list, err)
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
			return errors.New("it may not")
		}
		pod = &pods.Items[0]
		return nil
	})
	return pod
}
