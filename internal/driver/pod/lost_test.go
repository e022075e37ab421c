// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/pod/ends"
	"cloudnative.tw/drover/internal/driver/pod/objects"
	"cloudnative.tw/drover/internal/driver/pod/podtest"
	"cloudnative.tw/drover/test/assert"
)

// addNode has the kubelet run pods on a new node, which is ready and has a boot.
func (w *world) addNode(t *testing.T) *corev1.Node {
	t.Helper()
	node, err := w.kube.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-" + w.namespace}}, metav1.CreateOptions{})
	assert.NoError(t, err)
	w.kubelet.Set(func(k *podtest.Kubelet) { k.NodeName = node.Name })
	return w.postNode(t, node, "first", time.Now().Add(-time.Hour))
}

// postNode posts the status of a ready node in a boot.
func (w *world) postNode(t *testing.T, node *corev1.Node, boot string, now time.Time) *corev1.Node {
	t.Helper()
	node.Status.NodeInfo.SystemUUID, node.Status.NodeInfo.BootID = "system", boot
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.NewTime(now)}}
	posted, err := w.kube.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{})
	assert.NoError(t, err)
	return posted
}

// listed returns what a list of all servers has of one.
func (s *server) listed(t *testing.T) driver.Server {
	t.Helper()
	all, err := s.d.List(t.Context())
	assert.NoError(t, err)
	n := slices.IndexFunc(all, func(found driver.Server) bool { return found.UID == s.UID })
	assert.Require(t, n >= 0, "%s is not in the list", s.Name)
	return all[n]
}

// wantLost checks that no call takes the container that was lost for one that has ended.
func (s *server) wantLost(t *testing.T, p *corev1.Pod) {
	t.Helper()
	for _, power := range []driver.Power{driver.PowerOff, driver.PowerPaused, driver.PowerOn} {
		s.Power = power
		_, err := s.ensure(t)
		assert.ErrorIs(t, "Ensure of "+string(power), err, driver.ErrRetry, "has not seen the end of the machine's container")
		assert.Equal(t, "the reason", driver.ReasonOf(err), "PodLost")
	}
	err := s.d.Delete(t.Context(), s.Target, false)
	assert.True(t, driver.ReasonOf(err) == "PodLost", "Delete returns %v", err)
	now := s.pod(t)
	if got := s.listed(t); now.UID != p.UID || !slices.Contains(now.Finalizers, objects.FinalizerStopped) || got.State != driver.StateUnknown || got.Err == nil {
		t.Errorf("the pod is %s with the finalizers %v, was %s; the server is %+v", now.UID, now.Finalizers, p.UID, got)
	}
}

// TestLostContainer has a runtime lose the container of a machine that may run. That ends the run only once the
// node has booted again, or an operator has asserted that the machine is off, also if the node is ready, or the
// kubelet has removed the control group of the pod.
func TestLostContainer(t *testing.T) {
	t.Parallel()
	w := newIsolatedWorld(t)
	node, s := w.addNode(t), w.newServer(t, "web")
	asserted := types.UID("")
	s.d.reader.PodAssertedOff = func(types.UID) types.UID { return asserted }
	s.reach(t, driver.StateRunning)
	boot := s.pod(t).Annotations[objects.AnnotationBoot]
	assert.True(t, boot == "" && !s.listed(t).NeedsEnsure, "of a node status that is older than the container, the boot %q is recorded", boot)
	node = w.postNode(t, node, "first", time.Now().Add(time.Hour))
	assert.True(t, s.listed(t).NeedsEnsure, "a boot that is known is not to be recorded")
	s.reach(t, driver.StateRunning)
	first := s.pod(t)
	if boot := first.Annotations[objects.AnnotationBoot]; boot != "system/first" || s.listed(t).NeedsEnsure {
		t.Errorf("the boot %q is recorded, and the server is %+v", boot, s.listed(t))
	}
	assert.NoError(t, w.kubelet.Lose(t.Context(), first))
	s.wantLost(t, first)
	node = w.postNode(t, node, "second", time.Now().Add(2*time.Hour))
	s.reach(t, driver.StateRunning)
	second := s.pod(t)
	if end := s.endRecord(t); second.UID == first.UID || !strings.Contains(end, string(first.UID)) || !strings.Contains(end, "has been booted again") {
		t.Errorf("the pod was %s and is %s, and the end is %s", first.UID, second.UID, end)
	}

	assert.NoError(t, w.kubelet.Lose(t.Context(), second))
	s.wantLost(t, second)
	asserted = second.UID
	s.reach(t, driver.StateRunning)
	third := s.pod(t)
	end := s.endRecord(t)
	assert.True(t, third.UID != second.UID && strings.Contains(end, "asserted"), "the pod was %s and is %s, and the end is %s", second.UID, third.UID, end)

	assert.NoError(t, w.kubelet.Lose(t.Context(), third))
	s.wantLost(t, third)
	assert.NoError(t, w.kubelet.RemoveGroup(t.Context(), s.pod(t)))
	s.reach(t, driver.StateRunning)
	if end := s.endRecord(t); s.pod(t).UID == third.UID || !strings.Contains(end, "removed the control group") {
		t.Errorf("the pod was %s and is %s, and the end is %s", third.UID, s.pod(t).UID, end)
	}
	s.deleteAll(t)
	assert.NoError(t, w.kube.CoreV1().Nodes().Delete(t.Context(), node.Name, metav1.DeleteOptions{}))
}

// endRecord returns what the PVC has of the last end.
func (s *server) endRecord(t *testing.T) string {
	t.Helper()
	claim, err := s.w.kube.CoreV1().PersistentVolumeClaims(s.Namespace).Get(t.Context(), s.base(), metav1.GetOptions{})
	assert.NoError(t, err)
	return claim.Annotations[objects.AnnotationEnd]
}

// injectInit has a policy, as webhooks do, add init containers to the pods of the world.
func (w *world) injectInit(t *testing.T) {
	t.Helper()
	w.mutatePods(t, "init", admissionv1.Mutation{PatchType: admissionv1.PatchTypeApplyConfiguration, ApplyConfiguration: &admissionv1.ApplyConfiguration{
		Expression: `Object{spec: Object.spec{initContainers: [
			Object.spec.initContainers{name: "a", image: "i"}, Object.spec.initContainers{name: "b", image: "i"}]}}`,
	}})
	assert.Eventually(t, "the policy is in force", func(t testing.TB) error {
		tried := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "tried"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
		p, err := w.kube.CoreV1().Pods(w.namespace).Create(t.Context(), tried, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil && len(p.Spec.InitContainers) == 0 {
			err = errors.New("a pod lacks init containers")
		}
		return err
	})
}

// TestDeletedWhileInitialized checks that a server stops, starts and is deleted whose pod never came past the init
// containers that a webhook has added: its kubelet reports for ever that the others wait.
func TestDeletedWhileInitialized(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.injectInit(t)
	w.kubelet.Set(func(k *podtest.Kubelet) { k.Initializes = true })
	s := w.newServer(t, "web")
	s.reach(t, driver.StateStarting)
	s.waitUntilBound(t)
	first := s.pod(t)
	s.turn(t, driver.PowerOff, driver.StateStopped)
	s.turn(t, driver.PowerOn, driver.StateStarting)
	s.waitUntilBound(t)
	next := s.pod(t)
	assert.True(t, next.UID != first.UID && len(next.Spec.InitContainers) == 2, "the pod was %s and is %+v", first.UID, next)
	s.deleteAll(t)
}

// TestDebuggedPod checks that the end of a pod is seen although an ephemeral container of it never started.
func TestDebuggedPod(t *testing.T) {
	t.Parallel()
	w, s := newServer(t)
	s.reach(t, driver.StateRunning)
	p := s.pod(t)
	p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug", Image: "absent"}}}
	p, err := w.kube.CoreV1().Pods(s.Namespace).UpdateEphemeralContainers(t.Context(), p.Name, p, metav1.UpdateOptions{})
	assert.NoError(t, err)
	p.Status.EphemeralContainerStatuses = []corev1.ContainerStatus{{Name: "debug", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull"}}}}
	assert.NoError(t, w.kubelet.Finish(t.Context(), p))
	s.waitStopped(t)
	s.turn(t, driver.PowerOff, driver.StateStopped)
	s.deleteAll(t)
}

// TestPhaseOfOthers checks on a real API server that a terminal phase ends a pod which waits only if its kubelet
// has written it.
func TestPhaseOfOthers(t *testing.T) {
	t.Parallel()
	kube := kubernetes.NewForConfigOrDie(shared.Config)
	waitForServiceAccount(t, kube, metav1.NamespaceDefault)
	pods := kube.CoreV1().Pods(metav1.NamespaceDefault) // no kubelet of the tests is there
	for manager, want := range map[string]bool{"kubelet": true, "kube-controller-manager": false} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "phase-"}, Spec: corev1.PodSpec{NodeName: nodeName, Containers: []corev1.Container{{Name: objects.ContainerName, Image: "i"}}}}
		p, err := pods.Create(t.Context(), p, metav1.CreateOptions{})
		assert.NoError(t, err)
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: objects.ContainerName, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}}}
		p, err = pods.UpdateStatus(t.Context(), p, metav1.UpdateOptions{FieldManager: "kubelet"})
		assert.NoError(t, err)
		p.Status.Phase = corev1.PodFailed
		p, err = pods.UpdateStatus(t.Context(), p, metav1.UpdateOptions{FieldManager: manager})
		assert.NoError(t, err)
		exit := ends.ProvenEnd(p)
		assert.True(t, (exit != nil) == want, "a phase that %s has written gives the end %+v of %s", manager, exit, fmt.Sprint(p.ManagedFields))
		assert.NoError(t, pods.Delete(t.Context(), p.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))
	}
}
