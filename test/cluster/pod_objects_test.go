// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver/pod/podtest"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/cluster"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/tier"
)

// TestPodObjects checks how real kubelets, admission and other users treat the objects of guests.
func TestPodObjects(t *testing.T) {
	tier.Full(t, "it takes five minutes; package pod has each case with a simulated kubelet")
	w := newPodWorld(t)
	for _, tc := range []struct {
		name string
		run  func(*testing.T, *podWorld)
	}{
		{"full ephemeral disk", testFullEphemeralDisk},
		{"claim deleted", testClaimDeleted},
		{"sidecar", testSidecar},
		{"limit refused", testLimitRefused},
	} {
		t.Run(tc.name, func(t *testing.T) { tc.run(t, w) })
	}
	w.checkNoGuestLeft(t)
}

// volumePeriod is longer than the period in which a kubelet measures the size of volumes.
const volumePeriod = 80 * time.Second

// testFullEphemeralDisk fills the disk of an ephemeral guest, for which the kubelet must not evict the guest. A guest
// that is evicted repeatedly, because its log is too large, starts after ever longer delays.
func testFullEphemeralDisk(t *testing.T, w *podWorld) {
	g := w.createGuest(t, "full", func(spec *api.VirtualMachineSpec) { spec.Ephemeral = true })
	before := g.pod(t)
	fillFile(t, filepath.Join(g.node(t).Dir, "lib", "kubelet", "pods", string(before.UID), "volumes", "kubernetes.io~empty-dir", "disk"))
	time.Sleep(volumePeriod)
	g.checkRunsIn(t, before)
	for attempts := range int32(2) {
		evicted := g.pod(t)
		g.fillLog(t)
		g.waitFor(t, func(vm *api.VirtualMachine) error {
			operation := vm.Status.Operation
			return assert.ErrorUnless(operation != nil && operation.Evicted && operation.Attempts == attempts+1, "the operation is %+v", operation)
		})
		g.waitRun(t, evicted.UID)
	}
	g.delete(t)
}

// fillFile writes all blocks of the largest file of a folder, without changing its size.
func fillFile(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	assert.NoError(t, err)
	path, size := "", int64(0)
	for _, entry := range entries {
		if info, err := entry.Info(); err == nil && info.Size() > size {
			path, size = filepath.Join(dir, entry.Name()), info.Size()
		}
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	assert.NoError(t, err)
	block := make([]byte, 1<<20)
	for at := int64(0); at < size; at += int64(len(block)) {
		n, err := file.ReadAt(block, at)
		if err == nil || errors.Is(err, io.EOF) {
			_, err = file.WriteAt(block[:n], at)
		}
		assert.NoError(t, err)
	}
	assert.NoError(t, errors.Join(err, file.Close()))
}

// testClaimDeleted deletes the claim of a running guest. The claim lacks the labels by which tools select objects to
// delete. The guest keeps running, and Drover reports what will happen.
func testClaimDeleted(t *testing.T, w *podWorld) {
	vm := w.newVM("claimed", "1", "192Mi").Resource(api.ResourceRootDisk, "64Mi").Port("http", 80, 0).Spec(func(spec *api.VirtualMachineSpec) {
		spec.Image, spec.SSHAuthorizedKeys = linuxImage(), []string{"ssh-ed25519 AAAA me"}
	}).Meta(func(meta *metav1.ObjectMeta) { meta.Labels = map[string]string{"app.kubernetes.io/instance": "site"} })
	g := w.create(t, vm)
	before := g.waitRun(t, "")
	assert.Equal(t, "the pod has the label", before.Labels["app.kubernetes.io/instance"], "site")
	claim := g.claim(t)
	label, ok := claim.Labels["app.kubernetes.io/instance"]
	assert.True(t, !ok, "the claim has the label %q", label)
	assert.NoError(t, shared.Client.CoreV1().PersistentVolumeClaims(g.namespace).Delete(t.Context(), claim.Name, metav1.DeleteOptions{}))
	g.waitFor(t, framework.HasCondition(api.ConditionReady, metav1.ConditionFalse), framework.HasMessage(claim.Name+" was deleted"))
	g.waitEvent(t, api.ReasonVolumeDeleting)
	g.checkRunsIn(t, before)
	g.delete(t)
}

// waitEvent waits for an event about the guest.
func (g *guest) waitEvent(t *testing.T, reason string) {
	t.Helper()
	assert.Eventually(t, "an event "+reason, func(t testing.TB) error {
		events, err := shared.Client.CoreV1().Events(g.namespace).List(t.Context(), metav1.ListOptions{FieldSelector: "reason=" + reason + ",involvedObject.name=" + g.name})
		if err == nil && len(events.Items) == 0 {
			err = errors.New("no such event")
		}
		return err
	})
}

// testSidecar lets an operator's policy add a container that never ends. Drover ends the container once the guest
// has shut down by itself, and then starts the next run.
func testSidecar(t *testing.T, w *podWorld) {
	other := w.newNamespace(t, "sidecars")
	addSidecar(t, other.namespace)
	g := other.createGuest(t, "beside", func(spec *api.VirtualMachineSpec) { spec.RestartPolicy = api.RestartAlways })
	before := g.pod(t)
	assert.Require(t, len(before.Spec.Containers) == 2, "the pod has %d containers", len(before.Spec.Containers))
	_, _ = getFromHost(t, "http://"+before.Status.PodIP+"/off") // the guest may end before it has answered
	g.waitRun(t, before.UID)
	g.stop(t)
	g.delete(t)
}

// addSidecar creates a policy that adds a container to the pods of a namespace.
func addSidecar(t *testing.T, namespace string) {
	t.Helper()
	podtest.MutatePods(t, shared.Client, namespace, "sidecar", admissionv1.Mutation{PatchType: admissionv1.PatchTypeJSONPatch, JSONPatch: &admissionv1.JSONPatch{
		Expression: `[JSONPatch{op: "add", path: "/spec/containers/-", value: Object.spec.containers{
			name: "sidecar", image: "` + cluster.ProbeImage + `", imagePullPolicy: "Never", command: ["/probe", "serve"],
			securityContext: Object.spec.containers.securityContext{
				allowPrivilegeEscalation: false,
				capabilities: Object.spec.containers.securityContext.capabilities{drop: ["ALL"]}}}}]`,
	}})
	assert.Eventually(t, "the policy is in force", func(t testing.TB) error {
		probe := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "tried"}, Spec: restrictedSpec(t)}
		made, err := shared.Client.CoreV1().Pods(namespace).Create(t.Context(), probe, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil && len(made.Spec.Containers) == 1 {
			err = errors.New("a pod still has one container")
		}
		return err
	})
}

// restrictedSpec returns the spec of a short-lived pod that restricted namespaces admit.
func restrictedSpec(t testing.TB) corev1.PodSpec {
	t.Helper()
	return corev1.PodSpec{
		SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: new(true), RunAsUser: new(int64(65532)), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
		Containers: []corev1.Container{{
			Name: "probe", Image: cluster.ProbeImage, Command: []string{"/probe", "serve"},
			SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: new(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}},
		}},
	}
}

// testLimitRefused makes a LimitRange refuse the pod of an ephemeral guest. The VM's status names the limit, and the
// VM starts once the limit is removed.
func testLimitRefused(t *testing.T, w *podWorld) {
	other := w.newNamespace(t, "limited")
	limitEphemeralStorage(t, other.namespace)
	ranges := shared.Client.CoreV1().LimitRanges(other.namespace)
	assert.NoError(t, assert.ErrorOf(ranges.Patch(t.Context(), "logs", types.MergePatchType, []byte(`{"spec":{"limits":[{"type":"Container","max":{"ephemeral-storage":"20Mi"}}]}}`), metav1.PatchOptions{})))
	g := other.requestGuest(t, "refused", func(spec *api.VirtualMachineSpec) { spec.Ephemeral = true })
	vm := g.waitFor(t, framework.HasMessage("maximum ephemeral-storage usage per Container is 20Mi"))
	status := framework.FormatStatus(vm)
	assert.True(t, !strings.Contains(status, "Pod Security"), "the status is %s", status)
	assert.NoError(t, ranges.Delete(t.Context(), "logs", metav1.DeleteOptions{}))
	g.waitRun(t, "")
	g.delete(t)
}
