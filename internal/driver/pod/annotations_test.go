// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/pod/objects"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// policyOfDocs returns the policy in docs/cluster.md that gives pods an annotation.
func policyOfDocs(t *testing.T) string {
	t.Helper()
	root, err := framework.RepositoryRoot()
	assert.NoError(t, err)
	page, err := os.ReadFile(filepath.Join(root, "docs", "cluster.md"))
	assert.NoError(t, err)
	for block := range strings.SplitSeq(string(page), "```yaml\n") {
		if text, _, _ := strings.Cut(block, "```"); strings.Contains(text, "kind: MutatingAdmissionPolicy\n") {
			return text
		}
	}
	t.Fatal("docs/cluster.md lacks a policy")
	return ""
}

// TestAnnotationsOfPods checks that annotations of a VirtualMachine do not reach its pod, that the policy in the
// docs gives an annotation to the pods of VirtualMachines with its label alone, to each new one, and that Drover
// leaves it there.
func TestAnnotationsOfPods(t *testing.T) {
	t.Parallel()
	const annotation = "cluster-autoscaler.kubernetes.io/safe-to-evict"
	w := newWorld(t)
	binary, err := framework.DroverBinary()
	assert.NoError(t, err)
	apply := exec.CommandContext(t.Context(), binary, "kubectl", "--kubeconfig", shared.Kubeconfig, "apply", "-f", "-")
	apply.Stdin = strings.NewReader(policyOfDocs(t))
	out, err := apply.CombinedOutput()
	assert.Require(t, err == nil, "the policy is refused: %v: %s", err, out)
	keep := map[string]string{"example.com/keep": "true"}
	assert.Eventually(t, "the policy is in force", func(t testing.TB) error {
		tried := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "tried", Labels: map[string]string{"example.com/keep": "true", objects.LabelUID: "x"}}, Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "c", Image: "i"}},
		}}
		made, err := w.kube.CoreV1().Pods(w.namespace).Create(t.Context(), tried, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil && made.Annotations[annotation] == "" {
			err = errors.New("it is not")
		}
		return err
	})
	for name, labels := range map[string]map[string]string{"kept": keep, "other": nil} {
		s := w.newServer(t, name)
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"k8s.v1.cni.cncf.io/networks":"storage",%q:"true"}}}`, annotation)
		assert.NoError(t, assert.ErrorOf(w.vms.Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{})))
		s.Labels = labels
		s.reach(t, driver.StateRunning)
		for range 2 {
			got := s.pod(t).Annotations
			if _, leaked := got["k8s.v1.cni.cncf.io/networks"]; leaked || (got[annotation] == "false") != (labels != nil) || labels == nil && got[annotation] != "" {
				t.Errorf("the pod of %s has the annotations %v", name, got)
			}
			s.restart(t)
		}
		s.deleteAll(t)
	}
}
